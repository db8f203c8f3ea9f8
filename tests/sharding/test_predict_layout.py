"""infer_predict_layout: what strategies of nodes mean for parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import of_nodes
from onnx import TensorProto, helper

from engine import sharding
from engine.errors import InputError
from engine.sharding import Layout, NodeStrategy, Strategy


def model(nodes: list[onnx.NodeProto], weights: dict[str, tuple[int, ...]], x: Any) -> Any:
    """A model of these nodes; x: the shape of its only input."""
    zeros = {name: np.zeros(shape, np.float32) for name, shape in weights.items()}
    dtypes = {"x": TensorProto.INT64} if x == ["b", "s"] else {}
    return of_nodes(nodes, {"x": x}, {nodes[-1].output[0]: None}, zeros, dtypes=dtypes)


def node(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name=f"n_{output}", **attributes)


MLP = model(
    [
        node("MatMul", "x w1", "a"),
        node("Add", "a b1", "b"),
        node("Relu", "b", "c"),
        node("Gemm", "c w2 b2", "y", transB=1),
    ],
    {"w1": (8, 16), "b1": (16,), "w2": (4, 16), "b2": (4,)},
    ["batch", 8],
)
COLUMN_THEN_ROW = {
    "n_a": ((1, 1), (1, 4)),
    "n_b": ((1, 4), (4,)),
    "n_y": ((1, 4), (1, 4)),
}


def held(layouts: dict[str, Layout], name: str, shape: tuple[int, ...]) -> list[Any]:
    return [layouts[name].box(rank, shape) for rank in range(layouts[name].device_count)]


def test_column_then_row_parallel_splits_the_weights_so() -> None:
    layouts = sharding.infer_predict_layout(MLP, [(2, 8)], COLUMN_THEN_ROW)
    assert held(layouts, "w1", (8, 16)) == [((0, 8), (4 * r, 4 * r + 4)) for r in range(4)]
    assert held(layouts, "b1", (16,)) == [((4 * r, 4 * r + 4),) for r in range(4)]
    # Transposed: the columns of w2 are what is summed over.
    assert held(layouts, "w2", (4, 16)) == [((0, 4), (4 * r, 4 * r + 4)) for r in range(4)]
    assert held(layouts, "b2", (4,)) == [((0, 4),)] * 4
    assert {layout.device_count for layout in layouts.values()} == {4}


def test_a_strategy_file_and_a_models_file_do_too(tmp_path: Path) -> None:
    onnx.save(MLP, tmp_path / "mlp.onnx")
    nodes = {name: NodeStrategy(inputs) for name, inputs in COLUMN_THEN_ROW.items()}
    Strategy(nodes).save(tmp_path / "s.json")
    expected = sharding.infer_predict_layout(MLP, None, COLUMN_THEN_ROW)
    got = sharding.infer_predict_layout(tmp_path / "mlp.onnx", None, tmp_path / "s.json")
    assert got == expected


def test_more_devices_than_slices_hold_replicas() -> None:
    layouts = sharding.infer_predict_layout(MLP, None, {"n_a": ((2, 1), (1, 2))}, device_num=8)
    # The device matrix is [m, k, n, replicas]: n is the third, so pairs of ranks are replicas.
    expected = [((0, 8), (8 * (rank // 2 % 2), 8 * (rank // 2 % 2) + 8)) for rank in range(8)]
    assert held(layouts, "w1", (8, 16)) == expected
    assert held(layouts, "w2", (4, 16)) == [((0, 4), (0, 16))] * 8


def test_without_a_strategy_everything_is_whole() -> None:
    layouts = sharding.infer_predict_layout(MLP)
    assert all(layout.is_whole for layout in layouts.values())
    assert list(layouts) == ["w1", "b1", "w2", "b2"]


@pytest.mark.parametrize(
    ("nodes", "weights", "x", "strategy", "boxes"),
    [
        pytest.param(
            [node("Conv", "x w b", "y")], {"w": (8, 4, 3, 3), "b": (8,)}, ["n", 4, 9, 9],
            ((1, 1, 1, 1), (2, 1, 1, 1)),
            {"w": [((0, 4), (0, 4), (0, 3), (0, 3)), ((4, 8), (0, 4), (0, 3), (0, 3))],
             "b": [((0, 4),), ((4, 8),)]},
            id="conv-by-output-channels",
        ),
        pytest.param(
            [node("Conv", "x w", "y")], {"w": (8, 4, 3, 3)}, ["n", 4, 9, 9],
            ((1, 2, 1, 1), (1, 2, 1, 1)),
            {"w": [((0, 8), (0, 2), (0, 3), (0, 3)), ((0, 8), (2, 4), (0, 3), (0, 3))]},
            id="conv-by-input-channels",
        ),
        pytest.param(
            [node("Gather", "w x", "y")], {"w": (6, 4)}, ["b", "s"], ((2, 1), (1, 1)),
            {"w": [((0, 3), (0, 4)), ((3, 6), (0, 4))]}, id="lookup-by-rows",
        ),
        pytest.param(
            [node("Gather", "w x", "y")], {"w": (6, 4)}, ["b", "s"], ((1, 2),),
            {"w": [((0, 6), (0, 2)), ((0, 6), (2, 4))]}, id="lookup-by-columns",
        ),
        pytest.param(
            [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "x t", "y")],
            {"w": (6, 4)}, ["b", 4], ((1, 1), (1, 2)),
            {"w": [((0, 3), (0, 4)), ((3, 6), (0, 4))]}, id="transposed-weight",
        ),
        pytest.param(
            [node("LayerNormalization", "x w b", "y")], {"w": (6,), "b": (6,)}, ["b", "s", 6],
            ((1, 1, 2),), {"w": [((0, 3),), ((3, 6),)], "b": [((0, 3),), ((3, 6),)]},
            id="normalization",
        ),
        pytest.param(
            [node("Add", "x w", "y")], {"w": (1, 6)}, ["b", 6], ((2, 1), (1, 1)),
            {"w": [((0, 1), (0, 6))] * 2}, id="broadcast-dimension",
        ),
        pytest.param(
            [node("Einsum", "x w", "y", equation="bd,hd->bh")], {"w": (6, 4)}, ["b", 4],
            ((1, 2), (1, 2)), {"w": [((0, 6), (0, 2)), ((0, 6), (2, 4))]}, id="einsum",
        ),
        pytest.param(
            [node("BatchNormalization", "x s b m v", "y")],
            dict.fromkeys("sbmv", (4,)), ["n", 4, 8, 8], ((1, 2, 1, 1),),
            {name: [((0, 2),), ((2, 4),)] for name in "sbmv"}, id="batch-normalization",
        ),
    ],
)  # fmt: skip
def test_each_rule_splits_the_weights_it_should(
    nodes: list[onnx.NodeProto],
    weights: dict[str, tuple[int, ...]],
    x: Any,
    strategy: Any,
    boxes: dict[str, Any],
) -> None:
    layouts = sharding.infer_predict_layout(model(nodes, weights, x), None, {"n_y": strategy})
    assert {
        name: [layouts[name].box(rank, shape) for rank in range(2)]
        for name, shape in weights.items()
    } == boxes


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        ({"n_aa": ((1, 1), (1, 2))}, r"no node 'n_aa'; did you mean 'n_a'\?"),
        ({"n_a": ((1, 1), (1, 3))}, r"dimension 1 of 'w1', \[8, 16\], cannot be cut into 3"),
        ({"n_a": ((1, 2), (4, 1))}, "is cut into 4, but what it goes with into 2"),
        ({"n_a": ((1, 1), (2,))}, "gives input 1 .'w1'. 1 dimensions, but it has 2"),
        ({"n_a": ((1, 1), (1, 1), (1,))}, "is for 3 inputs; MatMul has 2 here"),
        ({"n_a": (1, 2)}, "expected a tuple for each input"),
        ({"n_a": ((0, 1),)}, "expected a tuple for each input"),
        ({"n_a": ((3, 1), (1, 1))}, "dimension 0 of 'x', .*, cannot be cut into 3"),
        ({"n_a": ((1, 1), (1, 4)), "n_b": ((2, 3), (3,))}, "do not all divide|cannot be cut"),
    ],
)
def test_strategies_that_do_not_fit_are_refused(strategy: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        sharding.infer_predict_layout(MLP, {"x": np.zeros((2, 8))}, strategy)


def test_operators_without_a_rule_are_told_and_so_are_two_ways_of_one_parameter() -> None:
    topk = model([node("TopK", "x w", "y")], {"w": (1,)}, ["b", 4])
    with pytest.raises(InputError, match="'n_y': no rule says how TopK splits; leave the node out"):
        sharding.infer_predict_layout(topk, None, {"n_y": ((2, 1), (1,))})
    conv = model([node("Conv", "x w", "y", group=4)], {"w": (8, 1, 3, 3)}, ["n", 4, 9, 9])
    with pytest.raises(InputError, match="Conv cannot be split along dimension 1 of input 0"):
        sharding.infer_predict_layout(conv, None, {"n_y": ((1, 2, 1, 1), (1, 1, 1, 1))})
    tied = model([node("MatMul", "x w", "a"), node("MatMul", "a w", "y")], {"w": (4, 4)}, ["b", 4])
    two_ways = {"n_a": ((1, 1), (1, 2)), "n_y": ((1, 2), (2, 1))}
    with pytest.raises(InputError, match=r"'w' is split in two ways: by node 'n_y' .* by 'n_a'"):
        sharding.infer_predict_layout(tied, None, two_ways)
    with pytest.raises(TypeError, match="model must be the path"):
        sharding.infer_predict_layout(3)
