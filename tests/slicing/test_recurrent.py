"""LSTM, GRU and RNN on ranks: by direction, by samples, or with weights that are gathered."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from slicing_models import Builder

import engine
from engine.context import Context
from engine.layouts.rules import recurrent as rules
from engine.sharding import NodeStrategy, Strategy, slice_model
from engine.sharding.slicing.emulate import run_ranks

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)
Array = np.ndarray[Any, Any]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INSIDE, HIDDEN = 7, 6


def recurrent(
    folder: Path, kind: str, direction: str, *, lengths: bool = False, **attributes: Any
) -> Path:
    """A recurrent operator with all that it may be given, between two products."""
    g, rows, count = Builder(), GATES[kind] * HIDDEN, 2 if direction == "bidirectional" else 1
    given = [
        g.dense("x", 5, INSIDE),
        g.weight(count, rows, INSIDE, scale=0.5),
        g.weight(count, rows, HIDDEN, scale=0.5),
        g.weight(count, 2 * rows, scale=0.5),
        g.constant([4, 2, 3], np.int32) if lengths else "",
        g.weight(count, 3, HIDDEN),
    ]
    if kind == "LSTM":
        given += [g.weight(count, 3, HIDDEN), g.weight(count, 3 * HIDDEN, scale=0.5)]
    outputs = 3 if kind == "LSTM" else 2
    made = g.add(
        kind, *given, outputs=outputs, hidden_size=HIDDEN, direction=direction, **attributes
    )
    y = g.dense(made[0], HIDDEN, 4)
    return g.save(folder / "model.onnx", {"x": [4, 3, 5]}, [y, *made])


def assert_the_models(path: Path, files: list[str], tp: int) -> None:
    inputs = {"x": np.random.default_rng(3).standard_normal((4, 3, 5)).astype(np.float32)}
    whole = engine.load(path)(**inputs)
    for results in run_ranks([Path(file) for file in files], inputs, Context()):
        for name, value in whole.items():
            np.testing.assert_allclose(results[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_ranks_that_hold_parts_of_the_weights_give_the_models_numbers(
    kind: str, direction: str, tp: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "LEAST_ELEMENTS", 1)
    path = recurrent(tmp_path, kind, direction, lengths=direction != "reverse")
    report = slice_model(path, tmp_path / "out", tp=tp, check=False)
    assert_the_models(path, report.files, tp)
    rows = {
        tuple(tensor.dims)[:2]
        for file in report.files
        for tensor in onnx.load(file).graph.initializer
        if len(tensor.dims) == 3 and tensor.dims[2] == INSIDE
    }
    count, gate_rows = (2 if direction == "bidirectional" else 1), GATES[kind] * HIDDEN
    expected = {(1, gate_rows)} if (tp, count) == (2, 2) else {(count, gate_rows // tp)}
    assert rows == expected


def test_two_directions_run_on_two_ranks_each_with_its_own_activations(tmp_path: Path) -> None:
    names = ["Sigmoid", "Tanh", "Tanh", "Sigmoid", "Relu", "Tanh"]
    path = recurrent(tmp_path, "LSTM", "bidirectional", activations=names)
    report = slice_model(path, tmp_path / "out", tp=2, check=False)
    assert_the_models(path, report.files, 2)
    found = []
    for file in report.files:
        [node] = [n for n in onnx.load(file).graph.node if n.op_type == "LSTM"]
        own = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        found.append((own["direction"].decode(), [a.decode() for a in own["activations"]]))
    assert found == [("forward", names[:3]), ("reverse", names[3:])]


def test_samples_are_divided_where_a_strategy_asks_for_it(tmp_path: Path) -> None:
    path = recurrent(tmp_path, "LSTM", "forward", lengths=True)
    strategy = Strategy({"LSTM_2": NodeStrategy(((1, 3, 1), (1, 1, 1), (1, 1, 1)))})
    report = slice_model(path, tmp_path / "out", tp=3, strategy=strategy, check=False)
    assert_the_models(path, report.files, 3)


def test_a_rank_holds_half_of_the_weights_of_a_large_lstm(tmp_path: Path) -> None:
    g = Builder()
    weights = [g.weight(1, 1024, 256, scale=0.1), g.weight(1, 1024, 256, scale=0.1)]
    y, *_ = g.add("LSTM", "x", *weights, g.weight(1, 2048), outputs=3, hidden_size=256)
    path = g.save(tmp_path / "model.onnx", {"x": ["time", "batch", 256]}, [y])
    report = slice_model(path, tmp_path / "out", tp=2)
    assert max(rank.weight_bytes for rank in report.ranks) <= 0.55 * report.weight_bytes
    auto = slice_model(path, tmp_path / "auto", tp=2, strategy="auto", replicas=True, check=False)
    assert not auto.collectives  # the exchange costs more than it saves


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [TensorProto.INT8, TensorProto.UINT4])
def test_weights_with_a_scale_for_each_block_are_divided_between_blocks(
    dtype: int, axis: int, tmp_path: Path
) -> None:
    g, chance = Builder(opset=21), np.random.default_rng(0)
    values = chance.integers(0, 15, (48, 192))
    weights = onnx.helper.make_tensor("packed", dtype, [48, 192], values.reshape(-1).tolist())
    g.weights.append(weights)
    scale = g.constant(chance.uniform(0.01, 0.02, (3, 192)).astype(np.float32))
    w = g.add("DequantizeLinear", "packed", scale, axis=0, block_size=16)
    path = g.save(tmp_path / "model.onnx", {"x": [4, 48]}, [g.add("MatMul", "x", w)])
    splits = ((1, 3), (3, 1)) if axis == 0 else ((1, 1), (1, 3))
    strategy = Strategy({"MatMul_1": NodeStrategy(splits)})
    report = slice_model(path, tmp_path / "out", tp=3, strategy=strategy)
    nbytes = 48 * 192 // (2 if dtype == TensorProto.UINT4 else 1)  # two of 4 bits are in a byte
    assert report.weight_bytes == nbytes + 4 * 3 * 192
    for rank in report.ranks:  # and the sizes of what is reshaped
        assert 0 <= rank.weight_bytes - report.weight_bytes // 3 < 64
    for file in report.files:
        [own] = [
            tensor
            for tensor in onnx.load(file, load_external_data=False).graph.initializer
            if tensor.data_type == dtype
        ]
        assert list(own.dims) == ([16, 192] if axis == 0 else [48, 64])
        assert {entry.key: entry.value for entry in own.external_data}["length"] == f"{nbytes // 3}"


@pytest.mark.parametrize("columns", [1024, 251])
def test_products_behind_a_shape_that_is_computed_are_divided(columns: int, tmp_path: Path) -> None:
    """onnx does not know how many axes such a Reshape makes, nor anything behind it."""
    g = Builder()
    rows = g.add("Slice", g.add("Shape", "x"), g.ints(0), g.ints(1), g.ints(0))
    flat = g.add("Reshape", "x", g.add("Concat", rows, g.ints(-1), axis=0))
    h = g.add("Gemm", flat, g.weight(40, columns), g.weight(columns))
    again = g.add("Concat", g.ints(-1, 1), g.add("Shape", h, start=1), axis=0)
    y = g.add("MatMul", g.add("Relu", g.add("Reshape", h, again)), g.weight(columns, 12))
    path = g.save(tmp_path / "model.onnx", {"x": ["n", "a", "b"]}, [y])
    report = slice_model(path, tmp_path / "out", tp=2, input_shapes={"x": [3, 4, 10]})
    open_sizes = slice_model(path, tmp_path / "open", tp=2, check=False)
    for one in (report, open_sizes):
        assert max(rank.weight_bytes for rank in one.ranks) <= 0.55 * one.weight_bytes


def test_weights_that_stay_whole_because_a_shape_is_not_known_say_so(tmp_path: Path) -> None:
    g = Builder()
    h = g.add("Relu", g.add("Gemm", "x", g.weight(8, 16)))
    rank = g.add("Size", g.add("Shape", "y"))
    h = g.add("Reshape", h, g.add("Expand", g.ints(-1), g.add("Unsqueeze", rank, g.ints(0))))
    z = g.add("MatMul", h, g.weight(1, 16))
    path = g.save(tmp_path / "model.onnx", {"x": ["n", 8], "y": None}, [z])
    report = slice_model(path, tmp_path / "out", tp=2, check=False)
    [kept] = [one.reason for one in report.whole if one.reason.startswith("MatMul")]
    assert "the shape of 'reshape" in kept
    assert "--input-shape" in kept
