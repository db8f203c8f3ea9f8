"""Pooling over all of space, for any number of axes, on the backend `reference`."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from graphs import parsed

import engine

pytestmark = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)


@pytest.mark.parametrize("sizes", [(5,), (4, 3), (2, 3, 4), (2, 1, 3, 2)])
@pytest.mark.parametrize("operator", ["GlobalMaxPool", "GlobalAveragePool"])
def test_it_is_taken_over_every_axis_in_space(operator: str, sizes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, *sizes)).astype(np.float32)
    model = parsed(f"g (float{[*x.shape]} x) => (float y) {{ y = {operator}(x) }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    found = engine.load(model, target="reference")(x=x)["y"]
    take = np.max if operator == "GlobalMaxPool" else np.mean
    expected = take(x, axis=tuple(range(2, x.ndim)), keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
