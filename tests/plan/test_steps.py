"""Runs of a partitioned model: the lists that segments see, whose memory is whose, and devices."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from plan_models import chain, plan_of, predicting, refusing, save

from engine.errors import Cancelled, InputError
from engine.plan.plan import Plan
from engine.plan.workspace import COPIED_BYTES
from engine.types import Device, DeviceBuffer, DType

Install = Callable[..., ModuleType]
Predict = Callable[..., Any]

# Notes the very lists that a segment is called with.
LISTS = """
seen = []


@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    seen.append((inputs, outputs))
    return context.run(inputs, outputs, deadline_s)
"""


@pytest.fixture
def first(install: Install) -> ModuleType:
    return install("first", extra=LISTS)


@pytest.fixture
def second(install: Install) -> ModuleType:
    return install("second", extra=LISTS)


def expected(x: np.ndarray) -> np.ndarray:
    return -np.tanh(-np.tanh(-x))


@pytest.fixture
def predict(first: ModuleType, second: ModuleType, tmp_path: Path) -> Predict:
    """The predict of y = -tanh(-tanh(-x)), in five segments."""
    path = chain(tmp_path, "Neg", "Tanh", "Neg", "Tanh", "Neg")
    plan = plan_of(path, ["first", "second"], refusing(first="Tanh"))
    assert len(plan.executable.segments) == 5  # type: ignore[attr-defined]
    return predicting(plan)


def x_of(count: int) -> np.ndarray:
    return np.linspace(-1, 1, count, dtype=np.float32)


def check(y: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(y, wanted, rtol=1e-6)


def test_from_the_third_run_on_segments_see_the_very_same_lists(
    predict: Predict, first: ModuleType, second: ModuleType
) -> None:
    for number in range(5):
        [y] = predict(x_of(7) + number)
        check(y, expected(x_of(7) + number))
    for module, count in ((first, 3), (second, 2)):
        runs = [module.seen[i : i + count] for i in range(0, len(module.seen), count)]
        for (third_in, third_out), (in_, out) in zip(runs[2], runs[4], strict=True):
            assert in_ is third_in
            assert out is third_out
            assert all(isinstance(buffer, np.ndarray) for buffer in (*in_, *out))


def test_shapes_that_alternate_keep_their_lists(predict: Predict, first: ModuleType) -> None:
    for count in (3, 5, 3, 5, 3, 5):
        [y] = predict(x_of(count))
        check(y, expected(x_of(count)))
    last, before = first.seen[-3:], first.seen[-9:-6]
    assert all(one[0] is other[0] for one, other in zip(last, before, strict=True))


def test_what_a_caller_gets_is_its_own_and_what_it_passed_is_not_kept(
    predict: Predict, first: ModuleType
) -> None:
    results = []
    for number in range(5):
        x = x_of(4) + number
        gone = weakref.ref(x)
        results += predict(x)
        del x
        first.seen.clear()
        gc.collect()
        assert gone() is None
    for number, y in enumerate(results):
        check(y, expected(x_of(4) + number))
        assert not any(np.may_share_memory(y, other) for other in results if other is not y)


def test_large_inputs_and_outputs_are_not_copied(predict: Predict, first: ModuleType) -> None:
    x = x_of(COPIED_BYTES // 4 + 1)
    for _ in range(4):
        [y] = predict(x)
    check(y, expected(x))
    *_, (taken, given), _, (_, last) = first.seen
    assert taken[0] is x
    assert given is None, "a list with buffers may be kept, and the caller's array with it"
    assert last is None, "the result is new memory of the backend's"
    x_is_kept = weakref.ref(x)
    first.seen.clear(), first.calls.clear()
    del x, taken
    gc.collect()
    assert x_is_kept() is None


def test_intermediates_of_one_shape_share_memory(
    predict: Predict, first: ModuleType, second: ModuleType
) -> None:
    for _ in range(3):
        predict(x_of(6))
    given = [out for module, count in ((first, 3), (second, 2)) for _, out in module.seen[-count:]]
    assert len(given) == 5
    assert len({id(buffer) for [buffer] in given}) == 2


def test_the_callers_buffers_are_filled_by_the_last_segment_itself(
    predict: Predict, first: ModuleType
) -> None:
    x, outputs = x_of(7), [np.zeros(7, np.float32)]
    for number in range(4):
        x[...] = x_of(7) * number
        assert predict(x, outputs=outputs) is outputs
        check(outputs[0], expected(x))
    assert first.seen[-1][1][0] is outputs[0]
    assert first.seen[-3][0][0] is x
    assert first.seen[-1][1] is first.seen[-4][1]
    assert first.seen[-3][0] is first.seen[-6][0], "a new list of the same array is bound still"
    other = x_of(7)  # the same shape, but not the same array
    assert predict(other, outputs=outputs) is outputs
    check(outputs[0], expected(other))
    assert first.seen[-3][0][0] is other
    assert first.seen[-2][0] is first.seen[-5][0], "the middle has not changed"
    predict.lease.context.reset()  # type: ignore[attr-defined]
    gone = weakref.ref(outputs.pop())
    first.seen.clear()
    gc.collect()
    assert gone() is None


def test_results_whose_shape_depends_on_the_data_are_allocated_anew(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    nodes, values = "a = Relu(x); i = NonZero(a); y = Neg(i)", "(float[n] x) => (int64[1,k] y)"
    config = refusing(first="NonZero")
    plan = plan_of(save(tmp_path, nodes, values), ["first", "second"], config)
    predict = predicting(plan)
    for count in (4, 4, 4, 2, 0, 3):
        x = np.zeros(6, np.float32)
        x[:count] = 1
        for _ in range(2):
            [y] = predict(x)
            np.testing.assert_array_equal(y, -np.arange(count)[None])
    assert plan.executable.steady == [True, False, False]  # type: ignore[attr-defined]
    for message in (r"'y'.*\(1, 3\), got \(1, 9\)", "'y'"):
        with pytest.raises(InputError, match=message):
            predict(x, outputs=[np.zeros((1, 9), np.int64)])
    [y] = predict(x, outputs=[np.zeros((1, 3), np.int64)])
    np.testing.assert_array_equal(y, [[0, -1, -2]])


@pytest.fixture
def device(install_device: Callable[..., ModuleType]) -> ModuleType:
    return install_device()


@pytest.fixture
def on_device(device: ModuleType, second: ModuleType, tmp_path: Path) -> Callable[[str], Plan]:
    """Compile nodes for the device, and their Tanh for the host."""
    config = refusing(device="Tanh")
    return lambda nodes: plan_of(save(tmp_path, nodes), ["device", "second"], config)


@pytest.fixture
def mixed(on_device: Callable[[str], Plan]) -> Plan:
    """y = -x + tanh(2 * -x): a crosses from device to device, c goes to the host and comes back."""
    plan = on_device("a = Neg(x); c = Add(a, a); b = Tanh(c); y = Add(a, b)")
    assert len(plan.executable.segments) == 3  # type: ignore[attr-defined]
    return plan


def mixed_expected(x: np.ndarray) -> np.ndarray:
    return -x + np.tanh(-2 * x)


def test_a_value_that_the_next_segment_of_its_device_reads_stays_there(
    mixed: Plan, device: ModuleType
) -> None:
    predict = predicting(mixed)
    for count in (5, 5, 5, 3, 3, 3):
        device.copies.clear()
        [y] = predict(x_of(count))
        assert isinstance(y, np.ndarray)
        check(y, mixed_expected(x_of(count)))
        assert device.copies == [], "c is written for the host, and a never leaves"
    (_, _, [a, _]), (_, taken, _) = device.ran[-2:]
    assert isinstance(a, DeviceBuffer)
    assert a in taken
    assert [sorted(options.resident) for options in device.given[1:]] == [["a"], []]


def test_a_resident_value_is_copied_only_for_a_reader_elsewhere(
    device: ModuleType, on_device: Callable[[str], Plan]
) -> None:
    predict = predicting(on_device("a = Neg(x); b = Tanh(a); y = Add(a, b)"))
    for _ in range(4):
        device.copies.clear()
        [y] = predict(x_of(4))
        check(y, -x_of(4) + np.tanh(-x_of(4)))
        assert device.copies == [("DeviceBuffer", "ndarray")]


def test_a_callers_buffers_and_devices_reach_the_segments(mixed: Plan, device: ModuleType) -> None:
    predict, where, wanted = predicting(mixed), Device("null", 0), mixed_expected(x_of(6))
    for _ in range(3):
        x = device.allocate(x_of(6), where)
        [y] = predict(x, outputs=[where])
        assert isinstance(y, DeviceBuffer)
        check(device.memory[y.pointer], wanted)
        [host] = predict(x)
        check(host, wanted)
        given = [device.allocate(np.zeros(6, np.float32), where)]
        assert predict(x, outputs=given) is given
        check(device.memory[given[0].pointer], wanted)
    foreign = DeviceBuffer(1, (6,), DType.FLOAT32, Device("gpu", 3))
    with pytest.raises(InputError, match=r"gpu:3.*null:0"):
        predict(foreign)


def test_device_memory_is_freed_with_the_contexts(mixed: Plan, device: ModuleType) -> None:
    predict = predicting(mixed)
    for _ in range(3):
        predict(x_of(6))
    assert device.memory
    mixed.pool.discard(predict.lease)  # type: ignore[attr-defined]
    device.ran.clear(), device.neighbours.clear()
    del predict
    gc.collect()
    assert not device.memory


def test_segments_of_one_plan_are_named_so_and_share_a_workspace(
    mixed: Plan, device: ModuleType
) -> None:
    whole, *parts = device.given
    assert len({options.plan for options in parts} - {""}) == 1
    assert whole.plan == "", "the first load was of the whole model"
    mixed.pool.borrow()
    (one, alone), (_, beside) = device.neighbours[-2:]
    assert alone is None
    assert beside is one


def test_cancel_stops_the_segment_that_runs_and_those_after_it(
    mixed: Plan, device: ModuleType
) -> None:
    predict = predicting(mixed)
    predict(x_of(3))
    device.ran.clear()
    device.hold.set()
    device.waiting.clear()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            predict(x_of(3))
        except Cancelled as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert device.waiting.wait(10)
    predict.lease.context.cancel()  # type: ignore[attr-defined]
    thread.join(10)
    device.hold.clear()
    assert not thread.is_alive()
    assert len(errors) == 1
    assert device.ran == []


def test_a_cancel_between_two_segments_holds(mixed: Plan, device: ModuleType) -> None:
    predict = predicting(mixed)
    predict.lease.context.cancel()  # type: ignore[attr-defined]
    with pytest.raises(Cancelled):
        predict(x_of(3))
    assert device.ran == []
