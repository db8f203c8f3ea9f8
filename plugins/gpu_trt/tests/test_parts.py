"""A model in parts on gpu, cpu and gpu (emulated): shapes by name reach the parts behind others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import engine
from engine.backends import open_backend
from engine.types import CompileOptions, LoadedModel, ModelSource, ShapeRange
from engine_testing import making

WEIGHT = np.arange(15, dtype=np.int8).reshape(3, 5) - 7


def sandwich(folder: Path, opened: str | None = "b") -> Path:
    """y = relu(integer product of relu(x) and w): TensorRT has no MatMulInteger.

    opened: the first axis; None leaves it unknown. The dims inside are not in the file.
    """
    node = helper.make_node
    nodes = [
        node("Relu", ["x"], ["a"], name="first"),
        node("Cast", ["a"], ["bytes"], name="narrow", to=TensorProto.UINT8),
        node("MatMulInteger", ["bytes", "w"], ["product"], name="product"),
        node("Cast", ["product"], ["wide"], name="widen", to=TensorProto.FLOAT),
        node("Relu", ["wide"], ["y"], name="last"),
    ]
    x, y = [making.tensor("x", [opened, 3])], [making.tensor("y", [opened, 5])]
    return making.write(folder, "sandwich", x, y, nodes, {"w": WEIGHT})


def expected(x: np.ndarray) -> np.ndarray:
    product = np.maximum(x, 0).astype(np.uint8).astype(np.int32) @ WEIGHT.astype(np.int32)
    return np.maximum(product, 0).astype(np.float32)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], CompileOptions]]:
    """The inputs and options of every load by the backend."""
    backend = open_backend("gpu_trt")
    noted: list[tuple[list[str], CompileOptions]] = []
    load = backend.load

    def noting(source: ModelSource, options: CompileOptions) -> LoadedModel:
        assert source.graph is not None
        noted.append(([spec.name for spec in source.graph.inputs], options))
        return load(source, options)

    monkeypatch.setattr(backend, "load", noting)
    return noted


def run(path: Path, settings: dict[str, str], sizes: list[int]) -> list[str]:
    config: Any = {"gpu_context": settings}
    with engine.load(path, target=["gpu", "cpu"], config=config) as model:
        for size in sizes:
            x = np.linspace(-20, 20, 3 * size, dtype=np.float32).reshape(size, 3)
            for _ in range(3):
                np.testing.assert_array_equal(model(x=x)["y"], expected(x))
        return [placement.backend for placement in model.placement]


@pytest.mark.parametrize("opened", ["b", None])
def test_shapes_by_name_reach_the_parts_that_lie_behind_others(
    tmp_path: Path, asked: list[tuple[list[str], CompileOptions]], opened: str | None
) -> None:
    settings = {"input_shape": "x:[-1,3]", "dynamic_dims": "[2~8]", "opt_dims": "[4]"}
    backends = run(sandwich(tmp_path, opened), settings, [2, 5, 8])
    assert backends == ["gpu_trt", "gpu_trt", "cpu", "gpu_trt", "gpu_trt"]
    whole, first, last = asked
    assert whole[1].plan == ""
    assert first[0] == ["x"]
    assert first[1].shapes == whole[1].shapes == {"x": ShapeRange((2, 3), (4, 3), (8, 3))}
    assert last[1].shapes == {last[0][0]: ShapeRange((2, 5), (4, 5), (8, 5))}
    assert first[1].plan == last[1].plan != ""
    for _, options in asked:
        assert options.options.keys().isdisjoint({"input_shape", "dynamic_dims", "opt_dims"})


def test_fixed_shapes_fix_what_follows(
    tmp_path: Path, asked: list[tuple[list[str], CompileOptions]]
) -> None:
    run(sandwich(tmp_path), {"input_shape": "x:[4,3]"}, [4])
    last = asked[-1]
    assert last[1].shapes == {last[0][0]: ShapeRange((4, 5), (4, 5), (4, 5))}
