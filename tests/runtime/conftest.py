"""A device of its own for the tests of this folder."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from engine_testing import plugins


@pytest.fixture
def fake(plugin_folder: Path) -> ModuleType:
    """Return the module of a fresh backend "fake", with a device whose memory no host reads."""
    source = Path(__file__).with_name("fake_device.py").read_text(encoding="utf-8")
    plugins.install(plugin_folder, "fake", "fake_of_tests", source=source)
    return importlib.import_module("fake_of_tests")
