import errno
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import engine
from engine import Context, Model
from engine_testing import models, plugins
from engine_testing.fixtures import null_backend, plugin_folder

# Models of tests are no business of the user's cache; its own tests turn it on.
os.environ["ENGINE_CACHE"] = "off"
sys.path.insert(0, str(Path(__file__).parent))  # tests of several folders use `hostile`

__all__ = ["null_backend", "plugin_folder"]


@pytest.fixture
def null_context(null_backend: str) -> Context:
    """A context whose target is the null backend."""
    context = Context()
    context.target = [null_backend]
    return context


@pytest.fixture
def affine(null_backend: str, tmp_path: Path) -> Model:
    """y = 2x + 1, x float32[batch, 3]."""
    return engine.load(models.affine(tmp_path), target=null_backend)


@pytest.fixture
def several(null_backend: str, tmp_path: Path) -> Model:
    """Inputs z, a, m; outputs y = z - a, b = a * m, x = z + m; all float32[2, 3] but m, [3]."""
    return engine.load(models.several(tmp_path), target=null_backend)


SOURCE = """
from dataclasses import replace

from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *

loads, calls, opened = [], [], []
# Capabilities of the evaluator by itself, without the null backend's device.
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
    from engine.reference.evaluator import load

    loads.append(source)
    return load(source, host({name!r}, DEVICE, options.options))


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


@pytest.fixture
def make_read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Nothing below a folder can be changed from then on, as on a disk that is mounted read-only.

    By the calls of the operating system: modes would not keep root from writing.
    """

    def make(top: Path) -> None:
        def refusing(name: str) -> None:
            really = getattr(os, name)

            def call(path: Any, *arguments: Any, **named: Any) -> Any:
                flags = arguments[0] if name == "open" and arguments else 0
                is_change = name != "open" or flags & (os.O_CREAT | os.O_RDWR | os.O_WRONLY)
                if isinstance(path, int) or not is_change or top not in Path(path).parents:
                    return really(path, *arguments, **named)
                if name == "access":
                    return not arguments[0] & os.W_OK and really(path, *arguments)
                if name == "mkdir" and os.path.exists(path):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

            monkeypatch.setattr(os, name, call)

        for name in (
            "open", "mkdir", "rename", "replace", "unlink", "rmdir", "utime", "access", "chmod",
        ):  # fmt: skip
            refusing(name)

    return make
