"""The conformance kit over isolated models: what holds for a backend holds for it in a worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.backends import Backend
from engine.backends.isolation.backend import isolated
from engine_testing import BackendConformance
from engine_testing.level import Trial
from engine_testing.plugins import install

pytestmark = pytest.mark.slow


class IsolatedTrial(Trial):
    """Opens what a test asks for in a worker."""

    def __init__(self, backend: Backend, *more: object) -> None:
        super().__init__(isolated(backend), *more)


class TestIsolatedNull(BackendConformance):
    backend = "null"
    trials = IsolatedTrial

    @pytest.fixture(autouse=True)
    def isolate(self, plugin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        install(plugin_folder, "null", "engine_testing.null_device")
        monkeypatch.setattr("engine.plan.options._is_true", lambda *setting: True)
