"""Pytest fixtures for tests that need a backend and no device; import them in a conftest.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_testing.plugins import install, installed


@pytest.fixture
def plugin_folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder whose plugins this process finds while the test runs."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    with installed(folder):
        yield folder


@pytest.fixture
def null_backend(plugin_folder: Path) -> str:
    """The name of the null backend, discovered like an installed one while the test runs."""
    install(plugin_folder, "null", "engine_testing.null_device")
    return "null"
