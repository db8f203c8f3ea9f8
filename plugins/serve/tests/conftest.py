from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine_testing import models

os.environ["ENGINE_CACHE"] = "off"  # what a test builds is no business of the user's cache

sys.path.insert(0, str(Path(__file__).parent))  # `serve_ways` is for every file here

from serve_ways import Serve, Served, served


@pytest.fixture(autouse=True)
def levels_of_logs() -> Iterator[None]:
    """Put the level back that a test's request for log settings gives the whole process."""
    log = logging.getLogger("engine_serve")
    before = log.level
    yield
    log.setLevel(before)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return `served` as a function; what it serves ends with the test."""
    with ExitStack() as stack:
        yield lambda *words, **more: stack.enter_context(served(*words, **more))


@pytest.fixture
def serve_affine(serve: Serve, tmp_path: Path) -> Serve:
    """Return `serve` of a server like `affine`, for the test alone."""
    return lambda **more: serve(models.affine(tmp_path), **more)


@pytest.fixture(scope="module")
def affine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of y = 2x + 1, x float32[batch, 3], that the tests of a file share."""
    with served(models.affine(tmp_path_factory.mktemp("models"))) as found:
        yield found
