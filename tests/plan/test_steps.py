"""Runs of a partitioned model: the lists that segments see, whose memory is whose, and devices."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import fake_device
import numpy as np
import pytest
from plan_models import node, save, value

import engine
from engine.errors import Cancelled, InputError
from engine.formats import open_source
from engine.plan import BuildOptions, Targets, build_plan
from engine.plan.plan import Plan
from engine.plan.workspace import COPIED_BYTES
from engine.types import Device, DeviceBuffer, DType

Install = Callable[..., ModuleType]
REFUSES = {"first_context": {"unsupported_ops": "Tanh,NonZero"}}

# Notes the very lists that a segment is called with.
LISTS = """
seen = []


@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    seen.append((inputs, outputs))
    return context.run(inputs, outputs, deadline_s)
"""


@pytest.fixture
def first(null_backend: str, install: Install) -> ModuleType:
    return install("first", extra=LISTS)


@pytest.fixture
def second(install: Install, first: ModuleType) -> ModuleType:
    return install("second", extra=LISTS)


def plan_of(path: Path, config: Any = REFUSES, target: Any = ("first", "second")) -> Plan:
    context = engine.Context()
    context.target = list(target)
    return build_plan(open_source(path), Targets(BuildOptions(context, config)))


def chain(folder: Path) -> Path:
    """y = -tanh(tanh(-x)) in five segments: Neg, Tanh, Neg, Tanh, Neg with two Negs cancelled."""
    names = ["x", "a", "b", "c", "d", "y"]
    ops = ["Neg", "Tanh", "Neg", "Tanh", "Neg"]
    return save(folder, [node(op, *pair) for op, *pair in zip(ops, names, names[1:])])


def expected(x: np.ndarray) -> np.ndarray:
    return -np.tanh(-np.tanh(-x))


@pytest.fixture
def plan(first: ModuleType, second: ModuleType, tmp_path: Path) -> Plan:
    plan = plan_of(chain(tmp_path))
    assert len(plan.executable.segments) == 5  # type: ignore[attr-defined]
    return plan


def x_of(count: int) -> np.ndarray:
    return np.linspace(-1, 1, count, dtype=np.float32)


# ------------------------------------------------------------------------------- lists and memory


def test_from_the_third_run_on_segments_see_the_very_same_lists(
    plan: Plan, first: ModuleType, second: ModuleType
) -> None:
    lease = plan.pool.borrow()
    context = lease.context
    for number in range(5):
        x = x_of(7) + number
        [y] = plan.predict(context, [x], None, None)
        np.testing.assert_allclose(y, expected(x), rtol=1e-6)
    for module, count in ((first, 3), (second, 2)):
        runs = [module.seen[i : i + count] for i in range(0, len(module.seen), count)]
        for (third_in, third_out), (in_, out) in zip(runs[2], runs[4], strict=True):
            assert in_ is third_in
            assert out is third_out
            assert all(isinstance(buffer, np.ndarray) for buffer in (*in_, *out))


def test_shapes_that_alternate_keep_their_lists(plan: Plan, first: ModuleType) -> None:
    lease = plan.pool.borrow()
    context = lease.context
    for count in (3, 5, 3, 5, 3, 5):
        [y] = plan.predict(context, [x_of(count)], None, None)
        np.testing.assert_allclose(y, expected(x_of(count)), rtol=1e-6)
    last, before = first.seen[-3:], first.seen[-9:-6]
    assert all(one[0] is other[0] for one, other in zip(last, before, strict=True))


def test_what_a_caller_gets_is_its_own_and_what_it_passed_is_not_kept(
    plan: Plan, first: ModuleType
) -> None:
    lease = plan.pool.borrow()
    context = lease.context
    results = []
    for number in range(5):
        x = x_of(4) + number
        gone = weakref.ref(x)
        results += plan.predict(context, [x], None, None)
        del x
        first.seen.clear()
        gc.collect()
        assert gone() is None
    for number, y in enumerate(results):
        np.testing.assert_allclose(y, expected(x_of(4) + number), rtol=1e-6)
        assert not any(np.may_share_memory(y, other) for other in results if other is not y)


def test_large_inputs_and_outputs_are_not_copied(
    plan: Plan, first: ModuleType, second: ModuleType
) -> None:
    lease = plan.pool.borrow()
    context = lease.context
    count = COPIED_BYTES // 4 + 1
    x = x_of(count)
    for _ in range(4):
        [y] = plan.predict(context, [x], None, None)
    np.testing.assert_allclose(y, expected(x), rtol=1e-6)
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
    plan: Plan, first: ModuleType, second: ModuleType
) -> None:
    lease = plan.pool.borrow()
    context = lease.context
    for _ in range(3):
        plan.predict(context, [x_of(6)], None, None)
    given = [out for module, count in ((first, 3), (second, 2)) for _, out in module.seen[-count:]]
    assert len(given) == 5
    assert len({id(buffer) for [buffer] in given}) == 2


def test_the_callers_buffers_are_filled_by_the_last_segment_itself(
    plan: Plan, first: ModuleType
) -> None:
    lease = plan.pool.borrow()
    context = lease.context
    inputs: list[Any] = [x_of(7)]
    outputs: list[Any] = [np.zeros(7, np.float32)]
    for number in range(4):
        inputs[0][...] = x_of(7) * number
        assert plan.predict(context, inputs, outputs, None) is outputs
        np.testing.assert_allclose(outputs[0], expected(x_of(7) * number), rtol=1e-6)
    assert first.seen[-1][1][0] is outputs[0]
    assert first.seen[-3][0][0] is inputs[0]
    assert first.seen[-1][1] is first.seen[-4][1]
    other = [x_of(7)]
    assert plan.predict(context, other, outputs, None) is outputs
    np.testing.assert_allclose(outputs[0], expected(x_of(7)), rtol=1e-6)
    assert first.seen[-2][0] is first.seen[-5][0], "the middle has not changed"
    context.reset()  # type: ignore[attr-defined]
    gone = weakref.ref(outputs.pop())
    for module in (first,):
        module.seen.clear()
    gc.collect()
    assert gone() is None


def test_a_new_list_of_the_same_arrays_in_the_same_shapes_is_bound_still(
    plan: Plan, first: ModuleType
) -> None:
    lease = plan.pool.borrow()
    context = lease.context
    x, outputs = x_of(8), [np.zeros(8, np.float32)]
    for _ in range(4):
        plan.predict(context, [x], outputs, None)
    assert first.seen[-3][0] is first.seen[-6][0]
    np.testing.assert_allclose(outputs[0], expected(x), rtol=1e-6)
    other = [x_of(8) + 1]  # the same shapes, but not the same arrays
    plan.predict(context, other, outputs, None)
    np.testing.assert_allclose(outputs[0], expected(x + 1), rtol=1e-6)
    assert first.seen[-3][0][0] is other[0]


def test_a_buffer_that_overlaps_an_input_is_filled_last(plan: Plan) -> None:
    lease = plan.pool.borrow()
    context = lease.context
    for _ in range(4):
        x = x_of(5)
        [y] = plan.predict(context, [x], [x], None)
        assert y is x
        np.testing.assert_allclose(x, expected(x_of(5)), rtol=1e-6)


def test_results_whose_shape_depends_on_the_data_are_allocated_anew(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    nodes = [node("Relu", "x", "a"), node("NonZero", "a", "i"), node("Neg", "i", "y")]
    path = save(tmp_path, nodes, outputs=[value("y", [1, "k"], 7)])
    plan = plan_of(path)
    lease = plan.pool.borrow()
    context = lease.context
    for count in (4, 4, 4, 2, 0, 3):
        x = np.zeros(6, np.float32)
        x[:count] = 1
        for _ in range(2):
            [y] = plan.predict(context, [x], None, None)
            np.testing.assert_array_equal(y, -np.arange(count)[None])
    assert plan.executable.steady == [True, False, False]  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"'y'.*\(1, 3\), got \(1, 9\)"):
        plan.predict(context, [x], [np.zeros((1, 9), np.int64)], None)
    with pytest.raises(InputError, match="'y'"):
        plan.predict(context, [x], [np.zeros((1, 9), np.int64)], None)
    [y] = plan.predict(context, [x], [np.zeros((1, 3), np.int64)], None)
    np.testing.assert_array_equal(y, [[0, -1, -2]])


def test_a_closed_context_holds_no_buffers(plan: Plan) -> None:
    lease = plan.pool.borrow()
    context = lease.context
    for _ in range(3):
        plan.predict(context, [x_of(9)], None, None)
    buffers = [weakref.ref(b) for w in context._workspaces.values() for b in w._own.values()]  # type: ignore[attr-defined]
    assert buffers
    context.close()
    context.close()


# ---------------------------------------------------------------------------------------- devices


@pytest.fixture
def device(null_backend: str, install: Install) -> ModuleType:
    source = fake_device.SOURCE.replace("{name!r}", "'device'")
    return install(
        "device",
        extra=source,
        capabilities=fake_device.CAPABILITIES,
    )


@pytest.fixture
def mixed(device: ModuleType, install: Install, tmp_path: Path) -> Plan:
    """y = -x + tanh(2 * -x): a crosses from device to device, c goes to the host and comes back."""
    install("host")
    nodes = [
        node("Neg", "x", "a"),
        helper_sum("a a", "c"),
        node("Tanh", "c", "b"),
        helper_sum("a b", "y"),
    ]
    config = {"device_context": {"unsupported_ops": "Tanh"}}
    plan = plan_of(save(tmp_path, nodes), config, ("device", "host"))
    assert len(plan.executable.segments) == 3  # type: ignore[attr-defined]
    return plan


def helper_sum(reads: str, writes: str) -> Any:
    return node("Add", reads, writes)


def mixed_expected(x: np.ndarray) -> np.ndarray:
    return -x + np.tanh(-2 * x)


def test_a_value_that_the_next_segment_of_its_device_reads_stays_there(
    mixed: Plan, device: ModuleType
) -> None:
    lease = mixed.pool.borrow()
    context = lease.context
    for count in (5, 5, 5, 3, 3, 3):
        device.copies.clear()
        [y] = mixed.predict(context, [x_of(count)], None, None)
        assert isinstance(y, np.ndarray)
        np.testing.assert_allclose(y, mixed_expected(x_of(count)), rtol=1e-6)
        assert device.copies == [], "c is written for the host, and a never leaves"
    (_, _, [a, _]), (_, taken, _) = device.ran[-2:]
    assert isinstance(a, DeviceBuffer)
    assert a in taken
    assert [sorted(options.resident) for options in device.given[1:]] == [["a"], []]


def test_a_resident_value_is_copied_only_for_a_reader_elsewhere(
    device: ModuleType, install: Install, tmp_path: Path
) -> None:
    install("host")
    nodes = [node("Neg", "x", "a"), node("Tanh", "a", "b"), helper_sum("a b", "y")]
    config = {"device_context": {"unsupported_ops": "Tanh"}}
    plan = plan_of(save(tmp_path, nodes), config, ("device", "host"))
    lease = plan.pool.borrow()
    context = lease.context
    for _ in range(4):
        device.copies.clear()
        [y] = plan.predict(context, [x_of(4)], None, None)
        np.testing.assert_allclose(y, -x_of(4) + np.tanh(-x_of(4)), rtol=1e-6)
        assert device.copies == [("DeviceBuffer", "ndarray")]


def test_a_callers_buffers_and_devices_reach_the_segments(mixed: Plan, device: ModuleType) -> None:
    lease = mixed.pool.borrow()
    context = lease.context
    where = Device("null", 0)
    for _ in range(3):
        x = device.allocate(x_of(6), where)
        [y] = mixed.predict(context, [x], [where], None)
        assert isinstance(y, DeviceBuffer)
        np.testing.assert_allclose(device.memory[y.pointer], mixed_expected(x_of(6)), rtol=1e-6)
        [host] = mixed.predict(context, [x], None, None)
        np.testing.assert_allclose(host, mixed_expected(x_of(6)), rtol=1e-6)
        buffer = device.allocate(np.zeros(6, np.float32), where)
        given = [buffer]
        assert mixed.predict(context, [x], given, None) is given
        np.testing.assert_allclose(device.memory[buffer.pointer], device.memory[y.pointer])
    foreign = DeviceBuffer(1, (6,), DType.FLOAT32, Device("gpu", 3))
    with pytest.raises(InputError, match=r"gpu:3.*null:0"):
        mixed.predict(context, [foreign], None, None)


def test_device_memory_is_freed_with_the_contexts(mixed: Plan, device: ModuleType) -> None:
    lease = mixed.pool.borrow()
    context = lease.context
    for _ in range(3):
        mixed.predict(context, [x_of(6)], None, None)
    assert device.memory
    mixed.pool.discard(lease)
    device.ran.clear(), device.neighbours.clear()
    del context, lease
    gc.collect()
    assert not device.memory


def test_segments_of_one_plan_are_named_so_and_share_a_workspace(
    mixed: Plan, device: ModuleType
) -> None:
    names = {options.plan for options in device.given[1:]}
    assert len(names) == 1
    assert "" not in names
    assert device.given[0].plan == "", "the first load was of the whole model"
    lease = mixed.pool.borrow()
    context = lease.context
    (one, alone), (_, beside) = device.neighbours[-2:]
    assert alone is None
    assert beside is one
    context.close()


# ----------------------------------------------------------------------------------------- cancel


def test_cancel_stops_the_segment_that_runs_and_those_after_it(
    mixed: Plan, device: ModuleType
) -> None:
    lease = mixed.pool.borrow()
    context: Any = lease.context
    mixed.predict(context, [x_of(3)], None, None)
    device.ran.clear()
    device.hold.set()
    device.waiting.clear()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            mixed.predict(context, [x_of(3)], None, None)
        except Cancelled as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert device.waiting.wait(10)
    context.cancel()
    thread.join(10)
    device.hold.clear()
    assert not thread.is_alive()
    assert len(errors) == 1
    assert device.ran == []


def test_a_cancel_between_two_segments_holds(mixed: Plan, device: ModuleType) -> None:
    lease = mixed.pool.borrow()
    context: Any = lease.context
    context.cancel()
    with pytest.raises(Cancelled):
        mixed.predict(context, [x_of(3)], None, None)
    assert device.ran == []
