"""Requests are cut along the batch only where that is proven to give what the whole gives."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import written

from engine import Context, MultiDeviceRunner
from engine.errors import InputError
from engine.formats import open_source
from engine.serving.batchable import why_not
from engine.workers.cuts import proven
from engine.workers.protocol import Cuts
from engine.workers.slicing import Slicing


def write(folder: Path, nodes: str, x: str, y: str = "", weights: str = "") -> Path:
    text = f"net (float[{x}] x) => (float[{y or x}] y) <{weights}> {{{nodes}}}"
    return written(folder / "net.onnx", text)


def specs_of(path: Path) -> tuple[Any, Any]:
    graph = open_source(path).graph
    return graph.inputs, graph.outputs


def cuts_of(path: Path, axes: dict[str, int | None] | None = None) -> Any:
    return proven(lambda: open_source(path), *specs_of(path), axes)


ATTENTION = (
    "t = Transpose<perm = [1, 0]>(x) [scores] s = MatMul(x, t) p = Softmax<axis = -1>(s) "
    "y = MatMul(p, x)"
)
QUANTIZE = "[scale] q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)"


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("y = Relu(x)", ""),
        ("[part] y = Softmax<axis = 0>(x)", "Softmax 'part'"),
        ("[sums] y = CumSum(x, zero)", "CumSum 'sums'"),
        (ATTENTION, "MatMul 'scores'"),
        (QUANTIZE, "DynamicQuantizeLinear 'scale'"),
    ],
)
def test_a_model_whose_samples_meet_is_not_cut_and_says_which_node(tmp_path, nodes, reason) -> None:
    path = write(tmp_path, nodes, "n, 4", weights="int64 zero = {0}")
    cuts = cuts_of(path)
    assert cuts.reason.startswith(reason)
    assert bool(cuts.reason) == bool(reason)
    slicing = Slicing(*specs_of(path), None, cuts)
    assert len(slicing.cut([np.ones((6, 4), np.float32)], 3)) == (1 if reason else 3)


def test_where_the_batch_is_is_no_insistence(tmp_path: Path) -> None:
    path = write(tmp_path, "y = Softmax<axis = 0>(x)", "n, m")
    for axis, is_cut in ((0, False), (1, True)):
        assert (not cuts_of(path, {"x": axis}).reason) == is_cut
    assert cuts_of(path, {"x": None}) is None


@pytest.mark.parametrize(
    ("x", "y", "elsewhere"),
    [
        ("seq, batch, 4", "seq, 1, batch, 3", {"x": 1}),
        ("?, ?, 4", "?, 1, ?, 3", {"x": 1}),
        ("n, 2, 4", "n, 1, 2, 3", {}),
    ],
)
def test_a_batch_that_is_not_first_is_named_with_how_to_say_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, x: str, y: str, elsewhere: dict[str, int]
) -> None:
    lstm = (
        f"[cell_{len(x)}] y = LSTM<hidden_size = 3>(x, w, r)"  # a warning comes once in a process
    )
    ones = [
        f"float[1, 12, {n}] {name} = {{{'1, ' * (12 * n - 1)}1}}" for name, n in zip("wr", (4, 3))
    ]
    path = write(tmp_path, lstm, x, y, ", ".join(ones))
    cuts, specs = cuts_of(path), specs_of(path)
    assert cuts.elsewhere == elsewhere
    slicing = Slicing(*specs, None, cuts)
    assert len(slicing.cut([np.ones((6, 2, 4), np.float32)], 3)) == 1
    advice = "if the batch is axis 1 of 'x', pass batch_axes={'x': 1}"
    assert (advice in caplog.text) == bool(elsewhere)
    proven_there = Slicing(*specs, elsewhere, cuts_of(path, elsewhere))
    assert len(proven_there.cut([np.ones((6, 2, 4), np.float32)], 3)) == (2 if elsewhere else 1)
    reason = why_not(lambda: open_source(path), *specs)
    assert ("export it with the batch first" in reason) == bool(elsewhere)


def test_the_axes_of_outputs_are_followed_where_names_do_not_tell(tmp_path: Path) -> None:
    path = write(tmp_path, "y = Transpose(x)", "n, 4", "4, ?")
    cuts, specs = cuts_of(path), specs_of(path)
    assert cuts == Cuts("", (1,))
    slicing = Slicing(*specs, None, cuts)
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    parts = slicing.cut([x], 4)
    assert len(parts) == 4
    np.testing.assert_array_equal(slicing.join([[part.T] for [part] in parts])[0], x.T)
    with pytest.raises(InputError, match="output 'y' has its batch at axis 1, but got 0"):
        Slicing(*specs, {"y": 0}, cuts)


def test_a_model_of_fixed_batch_runs_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, "y = Softmax<axis = 0>(x)", "2, 4")
    assert cuts_of(path) is None
    slicing = Slicing(*specs_of(path))
    assert len(slicing.cut([np.ones((6, 4), np.float32)], 4)) == 3
    assert slicing.description == "cut into the model's own batch"


def test_a_request_that_may_not_be_cut_is_one_workers_and_the_runner_says_why(
    null_backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, "[whole] y = Softmax<axis = 0>(x)", "n, 4")
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
        MultiDeviceRunner(str(path), [0], context, batching="cut")
