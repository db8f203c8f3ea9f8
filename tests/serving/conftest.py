"""Runners of a small model, for the tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engine import ModelParallelRunner
from engine_testing import models

sys.path.insert(0, str(Path(__file__).parent))
import steps

Make = Callable[..., ModelParallelRunner]


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
