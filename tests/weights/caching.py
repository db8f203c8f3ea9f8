"""The run of the model that tests of the cache build, y = 2x + 1."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from engine import Model

X = np.array([[1, 2, 3]], np.float32)

needs_cpu = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)


def check(model: Model) -> None:
    """Assert that a model gives 2x + 1."""
    np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)


def run(model: Model) -> None:
    """Do so, and close it."""
    with model:
        check(model)
