"""Variable weights that steer shapes inside of Scan, exchanged by swap."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from graphs import parsed

import engine

pytestmark = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).standard_normal((3, 4, 1)).astype(np.float32)


def scanned(operator: str, weight: list[int], declared: str) -> engine.Model:
    """y: for each row of x: float32[3, 4, 1], what the operator makes of it and the weight."""
    w = f"int64[{len(weight)}] w = {{{', '.join(map(str, weight))}}}"
    text = (
        f"g (float[3, 4, 1] x) => (float[] y) <{w}> {{"
        f"s = Scan<num_scan_inputs = 1, body = body (float[4, 1] e) => (float{declared} o)"
        f"{{o = {operator}(e, w)}}>(x) y = Neg(s)}}"
    )
    return engine.load(parsed(text, opset=18), target="cpu", variable_weights=["w"])


CASES: dict[str, tuple[list[int], list[int], Callable[[Array, Array], Array]]] = {
    "Unsqueeze": ([0], [2], lambda x, w: np.expand_dims(x, int(w[0]))),
    "ReduceSum": ([0], [1], lambda x, w: x.sum(axis=int(w[0]), keepdims=True)),
    "Reshape": ([2, 2], [1, 4], lambda x, w: x.reshape(w)),
    "Expand": ([4, 3], [4, 5], lambda x, w: np.broadcast_to(x, tuple(w))),
    "Tile": ([1, 2], [2, 1], lambda x, w: np.tile(x, tuple(w))),
}


@pytest.mark.parametrize("is_declared", [False, True])
@pytest.mark.parametrize("operator", CASES)
def test_an_update_may_change_the_shape_of_what_a_scan_gives(operator, is_declared) -> None:
    first, second, expected = CASES[operator]
    declared = str(list(expected(X[0], np.int64(first)).shape)) if is_declared else "[]"
    model = scanned(operator, first, declared)
    for weight in (first, second, first):
        model.update_weights({"w": np.int64(weight)})
        wanted = -np.stack([expected(row, np.int64(weight)) for row in X])
        for _ in range(3):
            np.testing.assert_allclose(model(x=X)["y"], wanted, rtol=1e-6)
