"""Operators on ranks: the axes that each leaves alone stay divided, and the check sees mistakes."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from slicing_models import Builder

from engine.errors import ModelError
from engine.layouts.rules import LOOKUPS, RULES, Op, Way
from engine.layouts.rules.op import Local
from engine.sharding import NodeStrategy, Strategy, slice_model
from engine.sharding.slicing.check_inputs import generated
from engine.sharding.slicing.original import open_original

needs_cpu = pytest.mark.skipif(
    importlib.util.find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)
ROOT = Path(__file__).parents[2]
TP = 0
"""In a split: as many ways as there are ranks."""


class Case(NamedTuple):
    """build: adds the node, and returns its output; split: of that node's inputs."""

    build: Callable[[Builder], str]
    shape: list[int]
    split: tuple[tuple[int, ...], ...]
    dtype: int = TensorProto.FLOAT


def picture(g: Builder) -> str:
    return str(g.add("Conv", "x", g.weight(10, 3, 1, 1)))


def quantized(g: Builder, x: str = "x") -> tuple[str, str, str]:
    scale, zero = g.constant(0.05, np.float32), g.constant(128, np.uint8)
    return g.add("QuantizeLinear", x, scale, zero), scale, zero


def int8(g: Builder, *shape: int) -> str:
    return g.constant(np.random.default_rng(1).integers(-100, 100, shape), np.int8)


def weights(g: Builder, *shape: int, scales: int, zeros: int) -> tuple[str, str, str]:
    """Weights with a scale each; their zero points count up to `zeros`."""
    scale = g.constant(np.linspace(0.01, 0.02, scales), np.float32)
    return int8(g, *shape), scale, g.constant(np.arange(scales) % zeros, np.int8)


def computed_sizes(g: Builder) -> str:
    sizes = g.add("Concat", g.ints(2, 10), g.add("Add", g.ints(4, 4), g.ints(5, 5)), axis=0)
    return str(g.add("Resize", picture(g), "", "", sizes))


def roi_align(g: Builder) -> str:
    regions = g.constant([[0, 0, 4, 4], [1, 1, 5, 5]], np.float32), g.ints(0, 1)
    return str(g.add("RoiAlign", picture(g), *regions, output_height=2, output_width=2))


def reversed_(g: Builder, x: str) -> str:
    return str(g.add("ReverseSequence", x, g.ints(5, 2, 3, 4), time_axis=0, batch_axis=1))


def one_hot(g: Builder) -> str:
    places = g.add("ArgMax", g.dense("x", 6, 10), axis=1, keepdims=0)
    return str(g.add("OneHot", places, g.ints(8), g.constant([0, 1], np.float32), axis=1))


def qlinear_conv(g: Builder) -> str:
    """Onnxruntime 1.23 wants one zero point for all channels."""
    bias = g.constant(np.arange(10), np.int32)
    return str(
        g.add("QLinearConv", *quantized(g), *weights(g, 10, 3, 1, 1, scales=10, zeros=1),
              g.constant(0.1, np.float32), g.constant(120, np.uint8), bias)
    )  # fmt: skip


def qlinear_matmul(g: Builder) -> str:
    made = g.constant(0.1, np.float32), g.constant(120, np.uint8)
    return str(g.add("QLinearMatMul", *quantized(g), *weights(g, 6, 10, scales=10, zeros=3), *made))


def conv_integer(g: Builder) -> str:
    x, _, zero = quantized(g)
    return str(g.add("ConvInteger", x, int8(g, 10, 3, 1, 1), zero, g.constant(1, np.int8)))


PICTURES, TABLE = [2, 3, 6, 6], [2, 8, 6]
CHANNELS, COLUMNS = ((1, TP, 1, 1),), ((1, 1, TP),)
OF_WEIGHTS = ((1, 1, 1, 1), (TP, 1, 1, 1))
CASES = {
    "TopK": Case(
        lambda g: g.add("TopK", g.dense("x", 6, 10), g.ints(2), outputs=2, axis=1)[0],
        TABLE, COLUMNS,
    ),
    "Resize to sizes": Case(
        lambda g: g.add("Resize", picture(g), "", "", g.ints(2, 10, 9, 9)), PICTURES, CHANNELS
    ),
    "Resize to computed sizes": Case(computed_sizes, PICTURES, CHANNELS),
    "GridSample": Case(
        lambda g: g.add("GridSample", picture(g), g.weight(2, 3, 3, 2)), PICTURES, CHANNELS
    ),
    "RoiAlign": Case(roi_align, PICTURES, CHANNELS),
    "Det": Case(lambda g: g.add("Det", picture(g)), PICTURES, CHANNELS),
    "OneHot": Case(one_hot, TABLE, ((1, TP),)),
    "ReverseSequence of columns": Case(
        lambda g: reversed_(g, g.dense("x", 6, 10)), [5, 4, 6], (*COLUMNS, (1,))
    ),
    "ReverseSequence of samples": Case(
        lambda g: reversed_(g, g.add("Relu", "x")), [5, 4, 6], ((1, TP, 1), (TP,))
    ),
    "ConvInteger": Case(conv_integer, PICTURES, OF_WEIGHTS, TensorProto.INT32),
    "QLinearConv": Case(
        qlinear_conv, PICTURES, (OF_WEIGHTS[0], (), (), OF_WEIGHTS[1], (TP,)), TensorProto.UINT8
    ),
    "QLinearMatMul": Case(
        qlinear_matmul, TABLE, ((1, 1, 1), (), (), (1, TP), (TP,), (TP,)), TensorProto.UINT8
    ),
    "QLinearMatMul by rows": Case(
        qlinear_matmul, TABLE, ((1, TP, 1), (), (), (1, 1)), TensorProto.UINT8
    ),
}  # fmt: skip


@needs_cpu
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_what_leaves_an_axis_alone_keeps_it_divided(name: str, tp: int, tmp_path: Path) -> None:
    g, case = Builder(), CASES[name]
    y = case.build(g)
    path = g.save(tmp_path / "model.onnx", {"x": case.shape}, [y], {y: case.dtype})
    node = g.nodes[-1]
    splits = tuple(tuple(size or tp for size in split) for split in case.split)
    strategy = Strategy({node.name: NodeStrategy(splits)})
    report = slice_model(path, tmp_path / "out", tp=tp, strategy=strategy)
    assert report.collectives == {"AllGather": 1}
    for file in report.files:
        kinds = [node.op_type for node in onnx.load(file).graph.node]
        assert kinds.index("AllGather") > kinds.index(node.op_type)


def without_lengths(op: Op) -> Iterator[Way]:
    """A mistake: a rank takes each of its two sequences for one of one step."""

    def change(local: Local) -> None:
        local.node.input[1] = local.constant(np.ones(2, np.int64))

    for state in op.axis_states(op.inputs[0], 1):
        yield op.way({0: state}, {0: state}, change)


@needs_cpu
def test_the_check_finds_a_rule_that_is_wrong_about_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES[""], "ReverseSequence", without_lengths)
    g = Builder()
    y = g.add("ReverseSequence", g.add("Relu", "x"), "lengths", time_axis=0, batch_axis=1)
    inputs = {"x": [6, 4, 16], "lengths": [4]}
    path = g.save(tmp_path / "model.onnx", inputs, [y], {"lengths": TensorProto.INT64})
    strategy = Strategy({"ReverseSequence_1": NodeStrategy(((1, 2, 1), (1,)))})
    with pytest.raises(ModelError, match="differs from the original's"):
        slice_model(path, tmp_path / "out", tp=2, strategy=strategy)


@pytest.mark.parametrize(
    ("layout", "shape"), [(0, ["time", "batch", 5]), (1, ["batch", "time", 5])]
)
def test_lengths_are_drawn_up_to_the_open_size_of_time(
    layout: int, shape: list[object], tmp_path: Path
) -> None:
    g = Builder()
    given = g.add("Relu", "x"), g.weight(1, 18, 5), g.weight(1, 18, 6), "", "lengths"
    made = g.add("GRU", *given, outputs=2, hidden_size=6, layout=layout)
    inputs = {"x": shape, "lengths": ["batch"]}
    path = g.save(tmp_path / "model.onnx", inputs, made, {"lengths": TensorProto.INT32})
    sizes = {"time": 9, "batch": 3, 5: 5}
    shapes = {"x": tuple(sizes[dim] for dim in shape), "lengths": (3,)}
    drawn = generated(open_original(path), shapes)["lengths"]
    assert sorted((drawn - 1) // 3) == [0, 1, 2]  # one in each third of 1 to 9


NOT_PLACES = {
    "shape", "axes", "axis", "split", "pads", "starts", "ends", "steps", "repeats", "sizes", "k",
    "input", "a", "b", "x", "y",
}  # fmt: skip
"""Inputs of integers that are no indices: shapes, axes, and numbers that are computed with."""


def onnx_operators() -> dict[str, onnx.defs.OpSchema]:
    """ONNX's operators up to operator set 28, without those that are no longer used."""
    found: dict[str, onnx.defs.OpSchema] = {}
    first: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            name, version = schema.name, schema.since_version
            first[name] = min(version, first.get(name, version))
            if name not in found or version > found[name].since_version:
                found[name] = schema
    return {n: s for n, s in found.items() if first[n] <= 28 and not s.deprecated}


def test_every_input_of_indices_or_lengths_of_a_divided_operator_is_in_lookups() -> None:
    integers = {"tensor(int32)", "tensor(int64)"}
    found = {
        (name, place)
        for name, schema in onnx_operators().items()
        if name in RULES[""]
        for place, given in enumerate(schema.inputs)
        if integers & {*given.types} and all("int" in kind for kind in given.types)
        and given.name.lower() not in NOT_PLACES
    }  # fmt: skip
    assert found == LOOKUPS.keys()


def test_the_document_lists_the_operators_that_run_whole() -> None:
    text = (ROOT / "docs" / "coverage.md").read_text()
    table = text.split("| operators of ONNX without a rule |")[1].split("\n\n")[0]
    listed = re.findall(r"`(\w+)`", table)
    assert sorted(listed) == sorted(onnx_operators().keys() - RULES[""].keys() - {"Constant"})
