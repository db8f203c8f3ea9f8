"""Values on the device: inputs used where they lie, outputs that stay, and the order of streams."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import engine_gpu_trt as plugin
from engine.errors import EngineError, InputError
from engine.types import Device, DeviceBuffer, DType, ShapeRange
from engine_testing import models
from engine_testing.device_values import Memory
from engine_testing.level import Running, Trial

Make = Callable[..., Any]

GPU = Device("gpu", 0)
WIDE = {"x": ShapeRange((0, 3), (4, 3), (64, 3))}


def rows(count: int, start: int = 0) -> np.ndarray[Any, Any]:
    return np.arange(start, start + 3 * count, dtype=np.float32).reshape(count, 3)


def put(trial: Trial, array: np.ndarray[Any, Any]) -> DeviceBuffer:
    return Memory(trial).put(array)


def get(trial: Trial, buffer: Any) -> np.ndarray[Any, Any]:
    return Memory(trial).get(buffer)


def test_a_chain_copies_only_its_first_input_and_its_last_output(
    trial: Trial, emulated: Any
) -> None:
    first, second = (trial.open(models.affine, resident=frozenset({"y"})) for _ in range(2))
    last = trial.open(models.affine)
    for start in (0, 7):
        x = rows(4, start)
        with emulated.counting() as counts:
            [value] = first.predict(x)
            [value] = second.predict(value)
            [y] = last.predict(value)
        np.testing.assert_array_equal(y, 8 * x + 7)
        assert counts["host to device"] == counts["device to host"] == x.nbytes
        assert counts["device to device"] == 0
        assert counts["synchronisations"] == 1, "only the last output is waited for"


def test_page_locked_arrays_are_copied_from_and_to_where_they_lie(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = trial.open(models.affine)
    x, y = (plugin.engine_buffer(GPU, DType.FLOAT32, (4, 3), True) for _ in range(2))
    x[:] = rows(4)

    def no_pinning(nbytes: int) -> None:
        raise AssertionError(f"{nbytes} bytes were pinned to copy through")

    monkeypatch.setattr(running.context.run.gpu, "pin", no_pinning)  # type: ignore[attr-defined]
    outputs = [y]
    assert running.predict(x, outputs=outputs) is outputs
    x[:] = 0  # the caller's again
    np.testing.assert_array_equal(y, 2 * rows(4) + 1)


def test_a_page_locked_input_may_be_written_again_although_the_output_stays(trial: Trial) -> None:
    running = trial.open(models.affine, resident=frozenset({"y"}))
    x = plugin.engine_buffer(GPU, DType.FLOAT32, (4, 3), True)
    x[:] = rows(4)
    [y] = running.predict(x)
    x[:] = 0
    np.testing.assert_array_equal(get(trial, y), 2 * rows(4) + 1)


def test_resident_outputs_are_the_same_objects_while_shapes_are_equal(trial: Trial) -> None:
    running = trial.open(models.affine, shapes=WIDE, resident=frozenset({"y"}))
    [first] = running.predict(rows(4))
    [second] = running.predict(rows(4, 5))
    assert first is second
    np.testing.assert_array_equal(get(trial, second), 2 * rows(4, 5) + 1)
    [larger] = running.predict(rows(64))
    assert larger is not first
    assert larger.shape == (64, 3)  # type: ignore[union-attr]
    np.testing.assert_array_equal(get(trial, larger), 2 * rows(64) + 1)
    [smaller] = running.predict(rows(2))
    np.testing.assert_array_equal(get(trial, smaller), 2 * rows(2) + 1)


def test_a_resident_output_outlives_its_context_and_is_freed_by_whoever_held_it(
    trial: Trial, emulated: Any
) -> None:
    running = trial.open(models.affine, shapes=WIDE, resident=frozenset({"y"}))
    [small] = running.predict(rows(4))
    running.predict(rows(64))  # takes larger memory, which must not free what is held here
    running.context.close()
    running.executable.close()
    assert emulated.live()["device allocations"] == 1
    get(trial, small)
    held = [small]
    del small
    with ThreadPoolExecutor(1) as pool:  # freed in a thread that has no context
        pool.submit(held.clear).result()
    assert "device allocations" not in emulated.live()


def test_an_output_over_its_own_input_is_right(trial: Trial, model: Make) -> None:
    maker = model([("Transpose", ["x"], ["y"])], [("x", [2, 2])], [("y", [2, 2])])
    x = np.float32([[1, 2], [3, 4]])
    buffer = put(trial, x)
    trial.open(maker).predict(buffer, outputs=[buffer])
    np.testing.assert_array_equal(get(trial, buffer), x.T)


def test_addresses_that_tensorrt_does_not_take_are_copied(trial: Trial) -> None:
    running = trial.open(models.affine)
    memory = put(trial, np.zeros(32, np.float32))

    def part(start: int) -> DeviceBuffer:
        address = memory.pointer + 4 * start
        return DeviceBuffer(address, (4, 3), DType.FLOAT32, GPU, None, memory.owner)

    plugin.engine_copy(rows(4), part(1), None)
    running.predict(part(1), outputs=[part(15)])
    np.testing.assert_array_equal(get(trial, part(15)), 2 * rows(4) + 1)


def test_empty_tensors_need_no_memory(trial: Trial) -> None:
    running = trial.open(models.affine, shapes=WIDE)
    empty = DeviceBuffer(0, (0, 3), DType.FLOAT32, GPU)
    [y] = running.predict(empty)
    assert y.shape == (0, 3)  # type: ignore[union-attr]
    [value] = running.predict(empty, outputs=[GPU])
    assert value.shape == (0, 3)  # type: ignore[union-attr]
    outputs = [empty]
    assert running.predict(empty, outputs=outputs) is outputs
    assert get(trial, value).shape == (0, 3)


def test_a_buffer_of_another_shape_is_named(trial: Trial) -> None:
    running = trial.open(models.affine)
    target = plugin.engine_buffer(GPU, DType.FLOAT32, (5, 3), False)
    with pytest.raises(InputError, match=r"output 'y': expected .* float32\[4, 3\], got \[5, 3\]"):
        running.predict(rows(4), outputs=[target])
    [y] = running.predict(rows(4))
    np.testing.assert_array_equal(y, 2 * rows(4) + 1)


def test_outputs_whose_shape_depends_on_the_data_may_stay_too(trial: Trial) -> None:
    options = {"batch_range": "1~4~64"}
    running = trial.open(models.nonzero, options=options, resident=frozenset({"y"}))
    name = running.executable.outputs[0].name
    running = trial.open(models.nonzero, options=options, resident=frozenset({name}))
    kept = []
    for x in (np.float32([1, 0, 1]), np.ones(64, np.float32), np.zeros(2, np.float32)):
        expected = np.flatnonzero(x)[None]
        [value] = running.predict(x)
        assert isinstance(value, DeviceBuffer)
        np.testing.assert_array_equal(get(trial, value), expected)
        kept.append(value)  # memory that grew must not be freed under it
        [value] = running.predict(x, outputs=[GPU])
        np.testing.assert_array_equal(get(trial, value), expected)
        target = plugin.engine_buffer(GPU, DType.INT64, expected.shape, False)
        running.predict(x, outputs=[target])
        np.testing.assert_array_equal(get(trial, target), expected)


def test_a_producer_writes_again_only_after_its_reader(trial: Trial) -> None:
    producer = trial.open(models.affine, resident=frozenset({"y"}))
    reader = trial.open(models.affine, resident=frozenset({"y"}))
    [between] = producer.predict(rows(4))
    [result] = reader.predict(between)
    producer.predict(rows(4, 100))  # nobody has waited for anything yet
    np.testing.assert_array_equal(get(trial, result), 4 * rows(4) + 3)


def test_an_input_is_read_after_what_its_stream_has_queued(
    trial: Trial, cuda: Any, context: Any, emulated: Any
) -> None:
    running = trial.open(models.affine)
    memory = put(trial, np.zeros((4, 3), np.float32))
    stream = cuda.Stream()  # somebody else's
    device = emulated.MACHINE.devices[0]

    def write() -> None:
        device.bytes(memory.pointer, 48)[:] = rows(4).reshape(-1).view(np.uint8)

    for handle, queue in ((stream.handle, stream._queue), (0, emulated.MACHINE.queue(0))):
        device.bytes(memory.pointer, 48)[:] = 0
        queue.put(write)
        late = DeviceBuffer(memory.pointer, (4, 3), DType.FLOAT32, GPU, handle, memory.owner)
        [y] = running.predict(late)
        np.testing.assert_array_equal(y, 2 * rows(4) + 1)


def test_an_input_without_a_stream_is_the_callers_again_on_return(trial: Trial) -> None:
    running = trial.open(models.affine, resident=frozenset({"y"}))
    buffer = put(trial, rows(4))
    [y] = running.predict(buffer)
    plugin.engine_copy(np.zeros((4, 3), np.float32), buffer, None)
    np.testing.assert_array_equal(get(trial, y), 2 * rows(4) + 1)


def test_an_input_may_be_freed_while_it_is_still_to_be_read(trial: Trial) -> None:
    producer, reader = (trial.open(models.affine, resident=frozenset({"y"})) for _ in range(2))
    [value] = producer.predict(rows(4), outputs=[GPU])
    [y] = reader.predict(value)
    del value
    gc.collect()
    np.testing.assert_array_equal(get(trial, y), 2 * (2 * rows(4) + 1) + 1)


def test_a_context_goes_to_another_thread_with_work_queued(trial: Trial) -> None:
    running = trial.open(models.affine, resident=frozenset({"y"}))
    running.predict(rows(4))
    running.context.reset()  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as pool:
        [y] = pool.submit(running.predict, rows(4, 3)).result()
        pool.submit(running.context.reset).result()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(get(trial, y), 2 * rows(4, 3) + 1)


def test_closing_with_work_queued_waits_for_it(trial: Trial) -> None:
    running = trial.open(models.affine, resident=frozenset({"y"}))
    [y] = running.predict(rows(4))
    running.context.close()  # the emulator notices a context that is destroyed while it runs
    np.testing.assert_array_equal(get(trial, y), 2 * rows(4) + 1)


def test_streams_are_ordered_on_request(trial: Trial, emulated: Any) -> None:
    first, second = (trial.open(models.affine, resident=frozenset({"y"})) for _ in range(2))
    [a], [b] = first.predict(rows(4)), second.predict(rows(4))
    assert isinstance(a, DeviceBuffer)
    assert isinstance(b, DeviceBuffer)
    assert a.stream is not None
    assert b.stream is not None
    queues = [emulated.MACHINE.streams[stream] for stream in (a.stream, b.stream)]
    with emulated.counting() as counts:
        assert plugin.engine_order(GPU, a.stream, b.stream) is True
    assert counts["synchronisations"] == 0
    assert not queues[0].is_done
    second.context.reset()  # type: ignore[attr-defined]
    assert queues[0].is_done
    first.predict(rows(4))
    assert not queues[0].is_done
    assert plugin.engine_order(GPU, a.stream, None) is True
    assert queues[0].is_done


def test_a_stream_that_nobody_knows_is_waited_for(trial: Trial, cuda: Any, context: Any) -> None:
    stream, done = cuda.Stream(), []
    stream._queue.put(lambda: done.append(1))
    plugin.engine_order(GPU, stream.handle, None)
    assert done == [1]
    stream._queue.put(lambda: done.append(2))
    running = trial.open(models.affine, resident=frozenset({"y"}))
    [y] = running.predict(rows(1))
    plugin.engine_order(GPU, stream.handle, y.stream)  # type: ignore[union-attr]
    assert done == [1, 2]
    queue = running.context.run._stream.raw._queue  # type: ignore[attr-defined]
    running.predict(rows(1))
    plugin.engine_order(GPU, y.stream, stream.handle)  # type: ignore[union-attr]
    assert queue.is_done


def test_a_copy_is_queued_on_a_stream_of_this_backend(trial: Trial, emulated: Any) -> None:
    running = trial.open(models.affine, resident=frozenset({"y"}))
    [y] = running.predict(rows(4))
    assert isinstance(y, DeviceBuffer)
    host = plugin.engine_buffer(GPU, DType.FLOAT32, (4, 3), True)
    other = plugin.engine_buffer(GPU, DType.FLOAT32, (4, 3), False)
    with emulated.counting() as counts:
        plugin.engine_copy(y, host, y.stream)
        plugin.engine_copy(y, other, y.stream)
    assert counts["synchronisations"] == 0
    plugin.engine_order(GPU, y.stream, None)
    np.testing.assert_array_equal(host, 2 * rows(4) + 1)
    np.testing.assert_array_equal(get(trial, other), 2 * rows(4) + 1)


@pytest.mark.parametrize("own_stream", [False, True])
def test_tensors_go_from_device_to_device(
    trial: Trial, second_device: int, own_stream: bool, emulated: Any
) -> None:
    second = Device("gpu", second_device)
    running = trial.open(models.affine, resident=frozenset({"y"}))
    there = trial.open(models.affine, device=second)
    [y] = running.predict(rows(4))
    assert isinstance(y, DeviceBuffer)
    target = plugin.engine_buffer(second, DType.FLOAT32, (4, 3), False)
    with emulated.counting() as counts:
        plugin.engine_copy(y, target, y.stream if own_stream else None)
    assert (counts["between devices"], counts["device to host"]) == (48, 0)
    [z] = there.predict(target)
    np.testing.assert_array_equal(z, 4 * rows(4) + 3)
    del target
    gc.collect()


@pytest.mark.parametrize("call", ["Stream", "Event", "mem_alloc", "pagelocked_empty",
                                  "cuMemcpyHtoDAsync", "synchronize"])  # fmt: skip
def test_a_failed_copy_leaves_nothing(trial: Trial, call: str, emulated: Any) -> None:
    before = emulated.live()
    with emulated.fail(call), pytest.raises(EngineError, match=r"^gpu:0: "):
        put(trial, rows(4))
    gc.collect()
    assert emulated.live() == before | {"primary contexts": 1}


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize(
    "call", ["mem_alloc", "execute", "cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync", "synchronize"]
)
def test_a_context_survives_a_failure_with_values_on_the_device(
    trial: Trial, call: str, after: int, emulated: Any
) -> None:
    running = trial.open(models.affine, shapes=WIDE, resident=frozenset({"y"}))
    buffer = put(trial, rows(4))
    with emulated.fail(call, after=after):
        for _ in range(3):
            for entry in (None, GPU, buffer):
                try:
                    running.predict(buffer, outputs=[entry])
                    running.predict(rows(64), outputs=[None])
                except EngineError:
                    pass
    for start in (0, 3):
        [y] = running.predict(put(trial, rows(8, start)))
        np.testing.assert_array_equal(get(trial, y), 2 * rows(8, start) + 1)


def test_bfloat16_stays_what_it_is(trial: Trial) -> None:
    dtype = DType.BFLOAT16
    x = np.arange(6).reshape(2, 3).astype(dtype.numpy)
    running: Running = trial.open(partial(models.moved, dtype=dtype))
    [y] = running.predict(put(trial, x), outputs=[GPU])
    assert get(trial, y).tobytes() == np.ascontiguousarray(x.T).tobytes()
