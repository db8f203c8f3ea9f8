"""Backends that are made for a test, and what isolated models leave."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from engine import Model
from engine_testing import models
from engine_testing.plugins import install, installed

sys.path.insert(0, str(Path(__file__).parent))  # helpers of this folder can be imported

from isolating import isolated, left_as_it_was, source_of_odd


@pytest.fixture
def odd(plugin_folder: Path) -> Callable[..., str]:
    """Install a backend with other code in some places, see `source_of_odd`; give its name."""

    def install_odd(**code: str) -> str:
        install(plugin_folder, "odd", "plugin_odd", source=source_of_odd(**code))
        return "odd"

    return install_odd


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """An isolated model, y = 2x + 1, of a backend "shared" that does what PREDICT says."""
    folder = tmp_path_factory.mktemp("shared")
    install(folder, "shared", "plugin_shared", source=source_of_odd("shared"))
    path = models.affine(folder)
    with left_as_it_was(), installed(folder), isolated(path, "shared") as model:
        yield model


@pytest.fixture
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that the test leaves no process, thread or descriptor."""
    with nullcontext() if "shared" in request.fixturenames else left_as_it_was():
        yield
