"""A device of its own for the tests of this folder."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

import engine
from engine_testing import models, plugins

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def fake(plugin_folder: Path) -> ModuleType:
    """Return the module of a fresh backend "fake", with a device whose memory no host reads."""
    source = Path(__file__).with_name("fake_device.py").read_text(encoding="utf-8")
    plugins.install(plugin_folder, "fake", "fake_of_tests", source=source)
    return importlib.import_module("fake_of_tests")


@pytest.fixture
def fake_affine(fake: ModuleType, tmp_path: Path) -> engine.Model:
    """y = 2x + 1 on the fake device."""
    return engine.load(models.affine(tmp_path), target="fake")
