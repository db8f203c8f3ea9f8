"""Runners of a small model, for the tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engine import ModelParallelRunner
from engine_testing import models, plugins

sys.path.insert(0, str(Path(__file__).parent))
import steps

Make = Callable[..., ModelParallelRunner]

BLOCKING = """
from dataclasses import replace

from engine.hookspecs import hookimpl
from engine_testing import null_device
from engine_testing.null_device import *

@hookimpl
def engine_backend():
    found = null_device.engine_backend()
    return replace(found, capabilities=found.capabilities - {"async_predict"})
"""


@pytest.fixture
def null_backend(plugin_folder: Path) -> str:
    """The null backend without engine_predict_async: a thread waits for each predict."""
    plugins.install(plugin_folder, "null", "blocking_null", source=BLOCKING)
    return "null"


@pytest.fixture
def make(null_backend: str, tmp_path: Path) -> Iterator[Make]:
    """Build a runner of y = 2x + 1, x float32[batch, 3], on the null backend; closed at the end."""
    made: list[ModelParallelRunner] = []
    path = models.affine(tmp_path)

    def make(
        workers: int = 2, config: Any = None, target: str = "", max_batch_size: int = 1, **more: Any
    ) -> ModelParallelRunner:
        more["max_batch_size"] = max_batch_size
        made.append(steps.build(path, target or null_backend, workers, config, **more))
        return made[-1]

    yield make
    for runner in made:
        runner.close(finish=False)


@pytest.fixture
def gated(make: Make, install: Callable[..., ModuleType]) -> Iterator[Any]:
    """The module of a backend "gated", whose runs begin, but go on only once `go` is set.

    begun: the first element of each run's first input.
    """
    del make  # named so that its runners, which close after this, find `go` set
    module: Any = install("gated", extra=steps.GATED)
    yield module
    module.go.set()
