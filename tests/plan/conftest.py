"""Null backends by any name, which note what they are given."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from engine.testing import plugins

sys.path.insert(0, str(Path(__file__).parent))

SOURCE = """
from dataclasses import replace

from engine.hookspecs import hookimpl
from engine.testing import null
from engine.testing.null import *

loads, calls, opened = [], [], []
# What the evaluator does by itself, without the null backend's device.
HOST = {{
    "dynamic_shapes", "deadlines", "cancel_compile", "cancel_predict", "mixed_placement",
    "files_in_memory",
}}


@hookimpl
def engine_backend():
    manifest = dict(capabilities=null.engine_backend().capabilities & HOST) | {manifest!r}
    return replace(null.engine_backend(), name={name!r}, **manifest)


@hookimpl
def engine_load(source, options):
    from engine.reference.evaluator import Host, load

    settings = Settings.parse(options.options)
    loads.append(source)
    return load(source, Host({name!r}, DEVICE, settings.unsupported_ops, settings.delay_s))


@hookimpl
def engine_compile(loaded, options):
    executable = loaded.compile(options)
    opened.append(executable)
    return executable


@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    results = context.run(inputs, outputs, deadline_s)
    calls.append((list(inputs), list(results)))
    return results
"""

Install = Callable[..., ModuleType]


@pytest.fixture
def install(plugin_folder: Path) -> Install:
    """Install a null backend under a name; returns its module, with what it noted.

    manifest: changes of its BackendInfo. extra: text that goes below the module's.
    loads: the sources that it got; calls: inputs and results of each predict; opened: executables.
    """

    def make(name: str, extra: str = "", **manifest: object) -> ModuleType:
        source = SOURCE.format(name=name, manifest=manifest) + extra
        plugins.install(plugin_folder, name, f"plan_{name}", source=source)
        return importlib.import_module(f"plan_{name}")

    return make
