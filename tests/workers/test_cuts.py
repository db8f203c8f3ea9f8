"""Requests are cut along the batch only where that is proven to give what the whole gives."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import Context, MultiDeviceRunner
from engine.errors import InputError
from engine.formats import open_source
from engine.serving.batchable import why_not
from engine.workers.cuts import proven
from engine.workers.protocol import Cuts
from engine.workers.slicing import Slicing

node = helper.make_node


def write(
    folder: Path, nodes: Sequence[Any], x: Sequence[Any], y: Sequence[Any], **weights: Any
) -> Path:
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    path = folder / "net.onnx"
    opsets = [helper.make_opsetid("", 17)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    )
    return path


def cuts_of(path: Path, axes: dict[str, int | None] | None = None) -> Cuts | None:
    source = open_source(path)
    assert source.graph is not None
    return proven(lambda: source, source.graph.inputs, source.graph.outputs, axes)


ATTENTION = [
    node("Transpose", ["x"], ["t"], perm=[1, 0]),
    node("MatMul", ["x", "t"], ["s"], "scores"),
    node("Softmax", ["s"], ["p"], axis=-1),
    node("MatMul", ["p", "x"], ["y"]),
]


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([node("Relu", ["x"], ["y"])], ""),
        ([node("Softmax", ["x"], ["y"], "part", axis=0)], "Softmax 'part'"),
        ([node("CumSum", ["x", "zero"], ["y"], "sums")], "CumSum 'sums'"),
        (ATTENTION, "MatMul 'scores'"),
        (
            [
                node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "scale"),
                node("DequantizeLinear", ["q", "s", "z"], ["y"]),
            ],
            "DynamicQuantizeLinear 'scale'",
        ),
    ],
)
def test_a_model_whose_samples_meet_is_not_cut_and_says_which_node(
    tmp_path: Path, nodes: Sequence[Any], reason: str
) -> None:
    path = write(tmp_path, nodes, ["n", 4], ["n", 4], zero=np.array(0))
    cuts = cuts_of(path)
    assert cuts is not None
    assert cuts.reason.startswith(reason)
    assert bool(cuts.reason) == bool(reason)
    graph = open_source(path).graph
    assert graph is not None
    slicing = Slicing(graph.inputs, graph.outputs, None, cuts)
    assert len(slicing.cut([np.ones((6, 4), np.float32)], 3)) == (1 if reason else 3)


def test_where_the_batch_is_is_no_insistence(tmp_path: Path) -> None:
    path = write(tmp_path, [node("Softmax", ["x"], ["y"], axis=0)], ["n", "m"], ["n", "m"])
    for axis, is_cut in ((0, False), (1, True)):
        cuts = cuts_of(path, {"x": axis})
        assert cuts is not None
        assert (not cuts.reason) == is_cut
    assert cuts_of(path, {"x": None}) is None


@pytest.mark.parametrize(
    ("x", "elsewhere"),
    [(["seq", "batch", 4], {"x": 1}), ([None, None, 4], {"x": 1}), (["n", 2, 4], {})],
)
def test_a_batch_that_is_not_first_is_named_with_how_to_say_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, x: list[Any], elsewhere: dict[str, int]
) -> None:
    name = f"cell of {x}"  # a warning comes once in a process
    lstm = node("LSTM", ["x", "w", "r"], ["y"], name, hidden_size=3)
    weights = {"w": np.ones((1, 12, 4), np.float32), "r": np.ones((1, 12, 3), np.float32)}
    path = write(tmp_path, [lstm], x, [x[0], 1, x[1], 3], **weights)
    cuts = cuts_of(path)
    assert cuts is not None
    assert cuts.elsewhere == elsewhere
    source = open_source(path)
    assert source.graph is not None
    specs = source.graph.inputs, source.graph.outputs
    slicing = Slicing(*specs, None, cuts)
    assert len(slicing.cut([np.ones((6, 2, 4), np.float32)], 3)) == 1
    advice = "if the batch is axis 1 of 'x', pass batch_axes={'x': 1}"
    assert (advice in caplog.text) == bool(elsewhere)
    proven_there = Slicing(*specs, elsewhere, cuts_of(path, elsewhere))
    assert len(proven_there.cut([np.ones((6, 2, 4), np.float32)], 3)) == (2 if elsewhere else 1)
    reason = why_not(lambda: source, *specs)
    assert ("export it with the batch first" in reason) == bool(elsewhere)


def test_the_axes_of_outputs_are_followed_where_names_do_not_tell(tmp_path: Path) -> None:
    path = write(tmp_path, [node("Transpose", ["x"], ["y"])], ["n", 4], [4, None])
    cuts = cuts_of(path)
    assert cuts == Cuts("", (1,))
    graph = open_source(path).graph
    assert graph is not None
    slicing = Slicing(graph.inputs, graph.outputs, None, cuts)
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    parts = slicing.cut([x], 4)
    assert len(parts) == 4
    np.testing.assert_array_equal(slicing.join([[part.T] for [part] in parts])[0], x.T)
    with pytest.raises(InputError, match="output 'y' has its batch at axis 1, but got 0"):
        Slicing(graph.inputs, graph.outputs, {"y": 0}, cuts)


def test_a_model_of_fixed_batch_runs_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, [node("Softmax", ["x"], ["y"], axis=0)], [2, 4], [2, 4])
    assert cuts_of(path) is None
    graph = open_source(path).graph
    assert graph is not None
    slicing = Slicing(graph.inputs, graph.outputs)
    assert len(slicing.cut([np.ones((6, 4), np.float32)], 4)) == 3
    assert slicing.description == "cut into the model's own batch"


def test_a_request_that_may_not_be_cut_is_one_workers_and_the_runner_says_why(
    null_backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, [node("Softmax", ["x"], ["y"], "whole", axis=0)], ["n", 4], ["n", 4])
    context = Context()
    context.target = [null_backend]
    x = np.arange(24, dtype=np.float32).reshape(6, 4) / 7
    whole = np.exp(x) / np.exp(x).sum(0)
    with (
        caplog.at_level(logging.WARNING, "engine"),
        MultiDeviceRunner(str(path), [0, 1], context) as runner,
    ):
        [y] = runner.predict([x])
        np.testing.assert_allclose(y.get_data_to_numpy(), whole, rtol=1e-5)
        said = runner.statistics()
    assert "kept whole: Softmax 'whole': it works along axis 0" in said.batching
    assert said.batching in str(said)
    assert 'batching="force"' in caplog.text
    with MultiDeviceRunner(str(path), [0, 1], context, batching="force") as runner:
        [y] = runner.predict([x])
        said = runner.statistics().batching
    assert said.startswith("cut along the batch; forced, and parts may give other results: Softmax")
    assert y.get_data_to_numpy().sum() == pytest.approx(2 * 4), "each part adds up to 1"
    with pytest.raises(ValueError, match="batching must be"):
        MultiDeviceRunner(str(path), [0], context, batching="cut")  # type: ignore[arg-type]
