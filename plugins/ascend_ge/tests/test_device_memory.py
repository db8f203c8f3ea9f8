"""Tensors that stay on the device: buffers, copies, order, resident outputs. Emulated."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from engine.errors import BackendUnavailable, DeadlineExceeded, InputError
from engine.types import Device, DeviceBuffer, DType
from engine_ascend_ge import engine_buffer, engine_copy, engine_order, runtime
from engine_testing import making, models

NPU = Device("ascend", 0)
F32 = DType.FLOAT32
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def put(array: np.ndarray[Any, Any], device: Device = NPU) -> DeviceBuffer:
    """Return the array on the device."""
    buffer = engine_buffer(device, DType.from_numpy(array.dtype), array.shape, False)
    assert isinstance(buffer, DeviceBuffer)
    assert engine_copy(array, buffer, None) is True
    return buffer


def get(buffer: Any) -> np.ndarray[Any, Any]:
    """Return what is in the buffer."""
    assert isinstance(buffer, DeviceBuffer)
    array = np.empty(buffer.shape, buffer.dtype.numpy)
    engine_copy(buffer, array, None)
    return array


def empty() -> DeviceBuffer:
    """Return memory for X on the device."""
    return put(np.zeros_like(X))


def pinned() -> Any:
    """Return X in page-locked memory, which the caller keeps while a copy may read it."""
    array: Any = engine_buffer(NPU, F32, (2, 3), True)
    array[:] = X
    return array


@pytest.fixture
def stream(machine: Any) -> Any:
    """Make streams in the device's context, as a library beside this one does."""
    made = []

    def make() -> int:
        acl, _ = runtime.use_device(0)
        handle, code = acl.rt.create_stream()
        assert code == 0
        made.append(handle)
        return int(handle)

    yield make
    acl, _ = runtime.use_device(0)
    for handle in made:
        assert acl.rt.synchronize_stream(handle) == 0
        assert acl.rt.destroy_stream(handle) == 0


def test_a_buffer_is_freed_with_its_last_owner_in_any_thread(machine: Any) -> None:
    buffers = [put(X)]
    view = replace(buffers[0], shape=(6,))
    gc.collect()
    assert machine.live() == {"Memory": 1}
    buffers.clear()
    gc.collect()
    assert machine.live() == {"Memory": 1}, "another buffer names the owner"
    keep = [view]
    del view
    thread = threading.Thread(target=keep.clear)  # a thread that has no ACL context
    thread.start()
    thread.join()
    gc.collect()
    assert machine.live() == {}


def test_freeing_a_buffer_leaves_the_threads_context_as_it_was(machine: Any) -> None:
    one, other = put(X), put(X, Device("ascend", 1))
    acl, context = runtime.use_device(0)
    del other
    gc.collect()
    assert acl.rt.get_context() == (context, 0)
    np.testing.assert_array_equal(get(one), X)


def test_a_buffer_that_outlives_acl_is_freed_before_its_end(machine: Any) -> None:
    buffer = put(X)
    runtime.stop()
    assert machine.live() == {}
    calls = sum(machine.calls.values())
    del buffer
    gc.collect()
    assert sum(machine.calls.values()) == calls


def test_page_locked_memory_is_freed_with_its_last_view(machine: Any) -> None:
    array = pinned()
    row = array[1]
    del array
    gc.collect()
    assert machine.live() == {"HostMemory": 1}
    np.testing.assert_array_equal(row, X[1])
    del row
    gc.collect()
    assert machine.live() == {}


@pytest.mark.parametrize("on_host", [False, True])
def test_memory_that_is_short_is_unavailable_and_says_how_much(machine: Any, on_host: bool) -> None:
    machine.fail("rt.malloc_host" if on_host else "rt.malloc", 207001)
    with pytest.raises(BackendUnavailable, match=r"allocate 4000 bytes .*the device is full"):
        engine_buffer(NPU, F32, (1000,), on_host)
    assert machine.live() == {}


def test_text_has_no_place_on_the_device(machine: Any) -> None:
    with pytest.raises(ValueError, match="Ascend devices have no string tensors"):
        engine_buffer(NPU, DType.STRING, (1,), False)


def test_copies_between_devices_go_by_way_of_the_host(machine: Any) -> None:
    source = put(X)
    target = put(np.zeros_like(X), Device("ascend", 1))
    engine_copy(source, target, None)
    np.testing.assert_array_equal(get(target), X)


def test_a_copy_on_one_device_stays_there(machine: Any) -> None:
    source, target = put(X), empty()
    machine.copied.clear()
    engine_copy(source, target, None)
    assert machine.copied == {"on device": 24}
    np.testing.assert_array_equal(get(target), X)


def test_a_copy_from_page_locked_memory_is_queued(machine: Any, stream: Any) -> None:
    buffer, queue = empty(), stream()
    machine.copied.clear()
    array = pinned()
    engine_copy(array, buffer, queue)
    assert machine.copied == {}, "it was made at once"
    engine_order(NPU, queue, None)
    assert machine.copied == {"to device": 24}
    np.testing.assert_array_equal(get(buffer), X)


def test_a_copy_from_ordinary_memory_is_complete_even_where_a_stream_is_named(
    machine: Any, stream: Any
) -> None:
    buffer, queue = empty(), stream()
    array = X.copy()
    engine_copy(array, buffer, queue)
    array[:] = -1
    np.testing.assert_array_equal(get(buffer), X)
    assert machine.calls["rt.memcpy_async"] == 0


def test_a_copy_comes_after_the_buffers_own_stream(stream: Any) -> None:
    first, second = stream(), stream()
    source, target = empty(), empty()
    array = pinned()
    engine_copy(array, source, first)
    engine_copy(replace(source, stream=first), target, second)
    np.testing.assert_array_equal(get(replace(target, stream=second)), X)


def test_what_is_queued_later_on_one_stream_waits_for_another(stream: Any) -> None:
    first, second = stream(), stream()
    source, target = empty(), empty()
    array = pinned()
    engine_copy(array, source, first)
    assert engine_order(NPU, first, second) is True
    engine_copy(source, target, second)
    assert engine_order(NPU, second, None) is True
    np.testing.assert_array_equal(get(target), X)


def test_events_do_not_pile_up(machine: Any, stream: Any) -> None:
    first, second = stream(), stream()
    for _ in range(50):
        engine_order(NPU, first, second)
        engine_order(NPU, second, None)
    assert machine.live()["Event"] <= 2
    runtime.use_device(0)[0].rt.synchronize_stream(first)


def test_inputs_on_the_device_are_read_where_they_are(
    machine: Any, affine: Any, predict: Any, is_affine: Any
) -> None:
    context = affine().open_context()
    x = put(X)
    machine.copied.clear()
    [y] = predict(context, x)
    assert machine.copied == {"to host": 24}
    np.testing.assert_array_equal(y, 2 * X + 1)
    np.testing.assert_array_equal(get(x), X)
    is_affine(context, X + 1)  # a host input after one on the device


def test_an_input_is_read_after_its_stream(affine: Any, predict: Any, stream: Any) -> None:
    queue, x = stream(), empty()
    array = pinned()
    engine_copy(array, x, queue)
    [y] = predict(affine().open_context(), replace(x, stream=queue))
    np.testing.assert_array_equal(y, 2 * X + 1)


def test_an_address_that_cann_does_not_take_is_copied(affine: Any, predict: Any) -> None:
    whole = put(np.arange(7, dtype=np.float32))
    x = replace(whole, pointer=whole.pointer + 4, shape=(2, 3))
    context = affine().open_context()
    y = replace(put(np.zeros(7, np.float32)), shape=(2, 3))
    y = replace(y, pointer=y.pointer + 4)
    assert predict(context, x, outputs=[y])[0] is y
    np.testing.assert_array_equal(get(y), 2 * (X + 1) + 1)


@pytest.mark.parametrize("kind", ["fixed", "gears", "ranges", "open"])
def test_outputs_go_where_they_are_wanted(
    machine: Any, build: Any, predict: Any, sized: Any, geared: Any, path: Path, kind: str
) -> None:
    fields = {
        "fixed": sized(x=(2, 3)),
        "gears": geared({"x": (2, 3)}, {"x": (4, 3)}),
        "ranges": sized(x=((1, 8), 3)),
        "open": {},
    }[kind]
    context = build(path, **fields).open_context()
    given, x = empty(), put(X)
    machine.copied.clear()
    outputs = [given]
    assert list(predict(context, x, outputs=outputs)) == [given]
    [new] = predict(context, x, outputs=[NPU])
    assert machine.copied == {}, "nothing had to cross or move"
    assert (new.shape, new.dtype, new.device, new.stream) == ((2, 3), F32, NPU, None)
    assert new.pointer != given.pointer
    host = np.zeros_like(X)
    assert predict(context, x, outputs=[host])[0] is host
    for y in (get(given), get(new), host):
        np.testing.assert_array_equal(y, 2 * X + 1)
    [other] = predict(context, put(X + 1), outputs=[NPU])
    np.testing.assert_array_equal(get(new), 2 * X + 1, "memory was reused")
    np.testing.assert_array_equal(get(other), 2 * X + 3)


def test_an_output_may_lie_over_an_input(affine: Any, predict: Any) -> None:
    x = put(X)
    predict(affine().open_context(), x, outputs=[x])
    np.testing.assert_array_equal(get(x), 2 * X + 1)


def test_a_result_of_unknown_size_stays_on_the_device(
    build: Any, predict: Any, tmp_path: Path
) -> None:
    path = models.nonzero(tmp_path)
    context = build(path).open_context()
    values = put(np.array([0, 7, 7], np.float32))
    [new] = predict(context, values, outputs=[NPU])
    np.testing.assert_array_equal(get(new), [[1, 2]])
    given = put(np.zeros((1, 2), np.int64))
    assert predict(context, values, outputs=[given])[0] is given
    np.testing.assert_array_equal(get(given), [[1, 2]])
    with pytest.raises(InputError, match=r"expected a buffer of shape \[1, 2\], got \[1, 3\]"):
        predict(context, values, outputs=[put(np.zeros((1, 3), np.int64))])
    [stays] = predict(build(path, resident=frozenset({"y"})).open_context(), values)
    np.testing.assert_array_equal(get(stays), [[1, 2]])


def test_memory_of_a_run_that_was_given_up_lives_until_its_end(
    machine: Any, affine: Any, predict: Any, is_affine: Any
) -> None:
    context = affine().open_context()
    machine.slow(0.3)
    with pytest.raises(DeadlineExceeded):
        predict(context, put(X), outputs=[NPU], deadline_s=time.monotonic() + 0.05)
    gc.collect()  # the caller has let go of the input: the emulator faults where it is freed
    machine.slow(0)
    is_affine(context, X)


def test_a_resident_output_is_the_same_object_while_shapes_are_equal(
    build: Any, predict: Any, path: Path
) -> None:
    context = build(path, resident=frozenset({"y"})).open_context()
    [first] = predict(context, X)
    assert isinstance(first, DeviceBuffer)
    assert first.stream is None
    np.testing.assert_array_equal(get(first), 2 * X + 1)
    [again] = predict(context, X + 1)
    assert again is first
    np.testing.assert_array_equal(get(first), 2 * X + 3)
    [larger] = predict(context, np.ones((40, 3), np.float32))
    assert larger.shape == (40, 3)
    np.testing.assert_array_equal(get(larger), np.full((40, 3), 3, np.float32))
    np.testing.assert_array_equal(get(first), 2 * X + 3, "freed under its holder")
    host = np.zeros_like(X)
    assert predict(context, X, outputs=[host])[0] is host, "an array that is given is filled"
    np.testing.assert_array_equal(host, 2 * X + 1)


def test_what_a_context_gave_may_be_its_next_input(affine: Any, predict: Any) -> None:
    context = affine(resident=frozenset({"y"})).open_context()
    value, expected = predict(context, X)[0], 2 * X + 1
    for _ in range(3):
        [value] = predict(context, value)
        expected = 2 * expected + 1
    np.testing.assert_array_equal(get(value), expected)


def link(folder: Path, number: int) -> Path:
    """Save t<number+1> = 2 * t<number> + 1 for float32[n, 3]."""
    taken, given = f"t{number}", f"t{number + 1}"
    nodes = [
        helper.make_node("Mul", [taken, "two"], ["doubled"]),
        helper.make_node("Add", ["doubled", "one"], [given]),
    ]
    ends = [making.tensor(name, ["n", 3]) for name in (taken, given)]
    constants = {"two": making.floats(2), "one": making.floats(1)}
    return making.write(folder, f"part{number}", ends[:1], ends[1:], nodes, constants)


def test_of_a_chain_only_the_first_input_and_the_last_output_cross(
    machine: Any, build: Any, predict: Any, sized: Any, tmp_path: Path
) -> None:
    count = 4
    executables = [
        build(
            link(tmp_path, number),
            plan="chain",
            resident=frozenset() if number == count - 1 else frozenset({f"t{number + 1}"}),
            **sized(**{f"t{number}": (2, 3)}),
        )
        for number in range(count)
    ]
    first = executables[0].open_context()
    contexts = [first, *(part.open_context(beside=first) for part in executables[1:])]
    for start in (X, X + 1):
        machine.copied.clear()
        value, expected = start, start
        for context in contexts:
            [value] = predict(context, value)
            expected = 2 * expected + 1
        np.testing.assert_array_equal(value, expected)
        assert machine.copied == {"to device": X.nbytes, "to host": X.nbytes}
    assert machine.live()["Stream"] == 1
    held = sum(part.memory().workspace_bytes + part.memory().weights_bytes for part in executables)
    assert held == machine.memory.used_bytes(0)
    # One scratch of 4096 bytes; the first input and four outputs of at least 64 bytes.
    assert sum(part.memory().workspace_bytes for part in executables) == 4096 + 5 * 64
    for context in reversed(contexts):
        context.close()
    assert "Stream" not in machine.live()
