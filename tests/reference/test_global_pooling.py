"""Pooling over all of space, for any number of axes, on the backend `reference`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import engine

pytestmark = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)


@pytest.mark.parametrize("sizes", [(5,), (4, 3), (2, 3, 4), (2, 1, 3, 2)])
@pytest.mark.parametrize("operator", ["GlobalMaxPool", "GlobalAveragePool"])
def test_it_is_taken_over_every_axis_in_space(
    tmp_path: Path, operator: str, sizes: tuple[int, ...]
) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, *sizes)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    found = engine.load(path, target="reference")(x=x)["y"]
    take = np.max if operator == "GlobalMaxPool" else np.mean
    expected = take(x, axis=tuple(range(2, x.ndim)), keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
