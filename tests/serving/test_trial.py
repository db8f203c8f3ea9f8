"""Findings and cost of the trial at build: batching changes no bit, and no build fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from steps import build, save

from engine import Cancelled, CancelToken, ModelError
from engine.serving.batchable import tried
from engine.types import DType, TensorSpec

Array = np.ndarray[Any, Any]
NEGATED = "(float[b,4] x) => (float[b,4] y) {y = Neg(x)}"


@pytest.mark.parametrize("most", [2, 8])
def test_samples_that_only_large_values_mix_are_found(most: int) -> None:
    def mixing(arrays: Sequence[Array]) -> list[Array]:
        [x] = arrays
        return [np.where(x.max(0, keepdims=True) > 5, -x, x)]

    found = tried(mixing, rows(("b", 4)), most)
    assert found.most == 1
    assert found.reason == "a sample of inf changes the results of its neighbours"


def test_another_build_must_give_a_sample_alone_the_bits_that_the_first_one_gives() -> None:
    def added(arrays: Sequence[Array], order: int) -> list[Array]:
        total = np.zeros(len(arrays[0]), np.float32)
        for column in arrays[0].T[::order]:
            total = total + column
        return [total]

    def by_size(arrays: Sequence[Array]) -> list[Array]:
        return added(arrays, 1 if len(arrays[0]) == 1 else -1)

    def forward(arrays: Sequence[Array]) -> list[Array]:
        return added(arrays, 1)

    def backward(arrays: Sequence[Array]) -> list[Array]:
        return added(arrays, -1)

    first = tried(by_size, rows(("b", 64)), 4)
    assert (first.most, first.rounded) == (1, 4)
    assert tried(forward, rows(("b", 64)), 4, by_size).most == 4
    other = tried(backward, rows(("b", 64)), 4, by_size)
    assert (other.most, other.reason) == (1, "a sample alone gives other bits than in the original")
    mixed = tried(lambda arrays: [arrays[0].cumsum(0)], rows(("b", 4)), 4, forward)
    assert mixed.most == 1


def rows(shape: Sequence[Any]) -> list[TensorSpec]:
    return [TensorSpec("x", DType.FLOAT32, tuple(shape))]


def other_bits(where: Callable[[Array], bool]) -> Callable[[Sequence[Array]], list[Array]]:
    """Return a model, y = 2x, whose kernel rounds otherwise for some shapes."""
    return lambda arrays: [arrays[0] * 2 + np.float32(1e-3 if where(arrays[0]) else 0)]


@pytest.mark.parametrize(
    ("where", "shape"),
    [
        (lambda x: len(x) == 7, ("b", 4)),
        (lambda x: len(x) == 31, ("b", 4)),
        (lambda x: len(x) == 100, ("b", 4)),
        (lambda x: x.shape[1] == 1 and len(x) > 1, ("b", "s", 4)),  # one row for a gemv
    ],
)
def test_kernels_that_round_otherwise_for_some_shapes_are_found(where, shape) -> None:
    for asked in (32, 100):
        batching = tried(other_bits(where), rows(shape), asked)
        expected = 1 if asked == 100 or not where(np.zeros((100, 4))) else asked
        assert batching.most == expected


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(lambda x: np.abs(x) > 20, id="large values"),
        pytest.param(lambda x: (np.abs(x) > 1e-3) & (np.abs(x) < 2e-3), id="small values"),
        pytest.param(lambda x: (x.view(np.uint32) >> 3) % 512 == 0, id="one of 512"),
    ],
)
def test_a_narrow_model_that_rounds_few_values_otherwise_is_found(
    where: Callable[[Array], Array],
) -> None:
    """Eight samples of two numbers each would show it by chance only."""

    def rounding(arrays: Sequence[Array]) -> list[Array]:
        [x] = arrays
        is_changed = where(x) & (len(x) > 1)
        return [np.where(is_changed, np.nextafter(x, np.float32(np.inf)), x)]

    batching = tried(rounding, rows(("b", 2)), 8)
    assert (batching.most, batching.rounded) == (1, 8)
    assert batching.reason.endswith("samples in one run give other bits than one by one")


def test_values_that_a_narrow_model_refuses_leave_others_to_be_tried() -> None:
    def choosy(arrays: Sequence[Array]) -> list[Array]:
        [x] = arrays
        if not (np.abs(x) < 8).all():
            raise ModelError("not with this")
        is_changed = ((x.view(np.uint32) >> 3) % 512 == 0) & (len(x) > 1)
        return [np.where(is_changed, np.nextafter(x, np.float32(np.inf)), x)]

    batching = tried(choosy, rows(("b", 2)), 8)
    assert (batching.most, batching.rounded) == (1, 8)


def test_a_model_that_is_the_same_in_all_shapes_is_batched() -> None:
    batching = tried(other_bits(lambda _: False), rows(("b", "s", 4)), 100)
    assert (batching.most, batching.reason) == (100, "as asked for")


def test_sizes_and_values_that_a_model_refuses_are_not_tried() -> None:
    def choosy(arrays: Sequence[Array]) -> list[Array]:
        if arrays[0].shape[1] < 8 or not (np.abs(arrays[0]) < 8).all():
            raise ModelError("not with this")
        return [arrays[0] * 2]

    assert tried(choosy, rows(("b", "s")), 8).most == 8


def test_inputs_that_are_too_large_to_try_are_no_error(null_backend: str, tmp_path: Path) -> None:
    shape = "[b, 3, 5000, 5000]"
    path = save(tmp_path, f"(float{shape} x) => (float{shape} y) {{y = Neg(x)}}")
    with build(path, null_backend) as runner:
        assert "too large to try" in runner.statistics().batching


def test_a_slow_model_is_run_once_at_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.serving.batchable._BUDGET_S", 0.01)
    calls: list[int] = []

    def slow(arrays: Sequence[Array]) -> list[Array]:
        calls.append(len(arrays[0]))
        time.sleep(0.02)
        return [arrays[0]]

    batching = tried(slow, rows(("b", 4)), None)
    assert (batching.most, calls) == (1, [1])
    assert batching.reason.startswith("too slow or too large to measure: 1: ")


@pytest.mark.parametrize(
    ("times_s", "reason"),
    [
        # A third, but less than the hand-off saved.
        ({1: 10e-6, 2: 11e-6, 4: 12e-6}, "a batch saves less than the 0.06 ms that each request in "
         "it costs: 1: 0.01 ms, 2: 0.0055 ms, 4: 0.003 ms a sample"),
        ({1: 10e-3, 2: 20e-3}, "a batch is no faster: 1: 10 ms, 2: 10 ms a sample"),
    ],
)  # fmt: skip
def test_the_reason_for_no_batches_fits_what_was_measured(times_s, reason, monkeypatch) -> None:
    monkeypatch.setattr("engine.serving.batchable._measured", lambda *_: times_s)
    assert tried(other_bits(lambda _: False), rows(("b", 4)), None).reason == reason


def test_a_build_is_cancelled_in_its_trial(install, tmp_path) -> None:
    extra = """
token = []
plain = engine_predict

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    token[0].cancel()
    return plain(context, inputs, outputs, deadline_s)
"""
    module = install("tried", extra=extra)
    module.token.append(CancelToken())
    path = save(tmp_path, NEGATED)
    with pytest.raises(Cancelled):
        build(path, "tried", cancel=module.token[0])


def test_a_model_with_state_is_neither_tried_nor_batched(
    monkeypatch: pytest.MonkeyPatch, null_backend: str, tmp_path: Path
) -> None:
    monkeypatch.setattr("engine.serving.shared_runs.state_of", lambda source: ("total",))
    path = save(tmp_path, NEGATED)
    with build(path, null_backend) as runner:
        assert runner.statistics().batching == "off: it keeps state from one predict to the next"
    with pytest.raises(ModelError, match="it keeps state"):
        build(path, null_backend, max_batch_size=4)
