"""An observer that notes its events; backends whose speeds are given."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engine.backends import installed
from engine.backends.doors import EXTENSIONS
from engine.report.choice import behind, choosing, contest, duel, keeping
from engine_testing import models, plugins

sys.path.insert(0, str(Path(__file__).parent))  # helpers of this folder can be imported

from choices import Install, Speeds
from choices_apart import SLOW

SOURCE = """
made, events = [], []

class Notes:
    observes = True
    wants_values = {values}

    def __init__(self, options):
        if unknown := set(options) - {{"color"}}:
            raise ValueError(f"unknown option {{min(unknown)!r}}; known: color")
        made.append(dict(options))

    def on_begin(self, model):
        return f"begun {{model.name}}"

    def on_build(self, event): events.append(event)
    def on_request(self, event): events.append(event)
    def on_update(self, event): events.append(event)
    def on_close(self, event): events.append(event)
"""


class Told:
    """The events that the observer "notes" was told of."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def of(self, kind: str) -> list[Any]:
        return [each for each in list(self.module.events) if type(each).__name__ == f"{kind}Event"]

    def statuses(self) -> Counter[str]:
        return Counter(str(each.status) for each in self.of("Request"))


@pytest.fixture
def told(plugin_folder: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> Told:
    """The observer "notes", which is on."""
    values = getattr(request, "param", False)
    name = f"notes_{abs(hash(plugin_folder))}"  # the module of another test is another
    plugins.install(
        plugin_folder,
        "notes",
        f"{name}:Notes",
        group=EXTENSIONS.group,
        source=SOURCE.format(values=values),
    )
    monkeypatch.setenv("ENGINE_EXTENSIONS", "notes")
    return Told(importlib.import_module(name))


GATED = """
import threading

plain, begun, go = engine_predict, threading.Event(), threading.Event()

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    begun.set()
    assert go.wait(60)
    return plain(context, inputs, outputs, deadline_s)
"""


@pytest.fixture
def gate(install: Callable[..., ModuleType]) -> ModuleType:
    """The backend "gated": a predict sets `begun` and waits for `go`."""
    return install("gated", extra=GATED)


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch, install: Install, tmp_path: Path) -> Speeds:
    """Backends `base`, the default, and `other`, alone on this machine; a cache of their own."""
    made = Speeds()
    strange = set(installed())
    install("base")
    install("other")
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", ",".join(strange - {"base", "other"}))
    monkeypatch.setenv("ENGINE_CACHE", "on")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    # Speeds that are given have to be given in this process.
    monkeypatch.setattr(choosing, "can_start_processes", lambda: False)
    monkeypatch.setattr(duel, "duel", made.duel)
    monkeypatch.setattr(contest, "_SLOW", math.inf)
    monkeypatch.setattr(keeping, "_known", {})
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return models.affine(tmp_path)


@pytest.fixture
def alone(
    monkeypatch: pytest.MonkeyPatch, install: Install, tmp_path: Path, request: Any
) -> Install:
    """Backend `base`, the default, alone on this machine; a cache of its own.

    By parameter `base` is another than SLOW.
    """
    monkeypatch.setenv("TEST_PROCESS", str(os.getpid()))
    strange = set(installed())
    install("base", extra=getattr(request, "param", SLOW))
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", ",".join(strange - {"base"}))
    monkeypatch.setenv("ENGINE_CACHE", "on")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(keeping, "_known", {})
    return install


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A file that keeps the backend `other` from compiling; removed at the end."""
    file = tmp_path / "closed"
    file.touch()
    yield file
    file.unlink(missing_ok=True)
    assert behind.wait(60)
