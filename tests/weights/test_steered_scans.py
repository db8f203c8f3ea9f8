"""Variable weights that steer shapes inside of Scan, exchanged by swap."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import engine

pytestmark = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).standard_normal((3, 4, 1)).astype(np.float32)


def scanned(
    path: Path, operator: str, weight: Array, declared: list[int] | None, **attributes: int
) -> Path:
    """y: for each row of x: float32[3, 4, 1], what the operator makes of it and the weight."""
    body = helper.make_graph(
        [helper.make_node(operator, ["e", "w"], ["o"], **attributes)], "body",
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, [4, 1])],
        [helper.make_tensor_value_info("o", TensorProto.FLOAT, declared)],
    )  # fmt: skip
    graph = helper.make_graph(
        [
            helper.make_node("Scan", ["x"], ["s"], body=body, num_scan_inputs=1),
            helper.make_node("Neg", ["s"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


CASES: dict[str, tuple[list[int], list[int], Callable[[Array, Array], Array]]] = {
    "Unsqueeze": ([0], [2], lambda x, w: np.expand_dims(x, int(w[0]))),
    "ReduceSum": ([0], [1], lambda x, w: x.sum(axis=int(w[0]), keepdims=True)),
    "Reshape": ([2, 2], [1, 4], lambda x, w: x.reshape(w)),
    "Expand": ([4, 3], [4, 5], lambda x, w: np.broadcast_to(x, tuple(w))),
    "Tile": ([1, 2], [2, 1], lambda x, w: np.tile(x, tuple(w))),
}


@pytest.mark.parametrize("is_declared", [False, True])
@pytest.mark.parametrize("operator", CASES)
def test_an_update_may_change_the_shape_of_what_a_scan_gives(
    tmp_path: Path, operator: str, is_declared: bool
) -> None:
    first, second, expected = CASES[operator]
    shape = list(expected(X[0], np.int64(first)).shape) if is_declared else None
    path = scanned(tmp_path / "m.onnx", operator, np.int64(first), shape)
    model = engine.load(path, target="cpu", variable_weights=["w"])
    for weight in (first, second, first):
        model.update_weights({"w": np.int64(weight)})
        wanted = -np.stack([expected(row, np.int64(weight)) for row in X])
        for _ in range(3):
            np.testing.assert_allclose(model(x=X)["y"], wanted, rtol=1e-6)
