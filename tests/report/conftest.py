"""An observer that notes its events, for tests of what observers are told."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engine.backends.doors import EXTENSIONS
from engine_testing import plugins

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
