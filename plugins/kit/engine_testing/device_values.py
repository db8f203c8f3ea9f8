"""Level of the kit: values on the device, and the streams that say when they are complete."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from engine.errors import EngineError
from engine.types import Capability, DeviceBuffer, DType, Value
from engine_testing import models
from engine_testing.level import PATIENCE_S, Array, Level, Running, Trial, row, time_predict, turns
from engine_testing.lifecycle import expect_no_growth

KINDS = [
    DType.FLOAT32, DType.FLOAT16, DType.FLOAT64, DType.INT64, DType.UINT8, DType.BOOL,
]  # fmt: skip
STEPS = 12


class Memory:
    """The device's memory, by the backend's hooks."""

    def __init__(self, trial: Trial) -> None:
        self._buffer = trial.backend.bind("engine_buffer")
        self._copy = trial.backend.bind("engine_copy")
        self._order = trial.backend.bind("engine_order")
        self.device = trial.device

    def allocate(self, dtype: DType, shape: tuple[int, ...]) -> DeviceBuffer:
        """Allocate memory on the device, and check that it is what was asked for."""
        buffer = self._buffer(self.device, dtype, shape, False)
        assert isinstance(buffer, DeviceBuffer), f"expected a DeviceBuffer, got {type(buffer)}"
        assert (buffer.dtype, buffer.shape) == (dtype, shape), buffer
        assert buffer.device == self.device, f"{buffer} is on another device"
        assert buffer.owner is not None, "a new buffer has no owner to keep its memory"
        assert buffer.stream is None, "a new buffer is complete, so it has no stream"
        return buffer

    def on_host(self, dtype: DType, shape: tuple[int, ...]) -> Value:
        """Allocate host memory that the device reaches."""
        value: Value = self._buffer(self.device, dtype, shape, True)
        return value

    def copy(self, source: Value, target: Value, stream: int | None = None) -> None:
        """Copy, complete on return where `stream` is None."""
        assert self._copy(source, target, stream), "engine_copy did not return True"

    def order(self, earlier: int, later: int | None) -> None:
        """Make `later`, or this thread, wait for `earlier`."""
        assert self._order(self.device, earlier, later), "engine_order did not return True"

    def put(self, array: Array) -> DeviceBuffer:
        """Return a complete buffer with the array's contents."""
        buffer = self.allocate(DType.from_numpy(array.dtype), array.shape)
        self.copy(array, buffer)
        return buffer

    def get(self, buffer: Value) -> Array:
        """Return the contents of a buffer, when its stream has come to them."""
        assert isinstance(buffer, DeviceBuffer), f"expected a DeviceBuffer, got {type(buffer)}"
        array = np.zeros(buffer.shape, buffer.dtype.numpy)
        self.copy(buffer, array)
        return array


class DeviceValues(Level):
    """Capability DEVICE_BUFFERS."""

    @pytest.fixture
    def memory(self, trial: Trial) -> Memory:
        """The device's memory."""
        self.require(trial, Capability.DEVICE_BUFFERS)
        return Memory(trial)

    # ---------------------------------------------------------------------- allocate and copy

    @pytest.mark.parametrize("dtype", KINDS, ids=str)
    def test_a_copy_to_the_device_and_back_changes_nothing(
        self, memory: Memory, dtype: DType
    ) -> None:
        for shape in ((), (3,), (2, 0, 3), (5, 7, 11)):
            array = np.array(np.arange(prod(shape)).reshape(shape) % 100, dtype.numpy)
            first, second = memory.put(array), memory.allocate(dtype, shape)
            memory.copy(first, second)
            array_before = array.copy()
            array[...] = 0
            np.testing.assert_array_equal(memory.get(second), array_before)
            np.testing.assert_array_equal(memory.get(first), array_before)

    def test_a_part_of_a_buffer_can_be_copied(self, trial: Trial, memory: Memory) -> None:
        """The core takes parts by address for collectives; elsewhere they may be refused."""
        array = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
        whole = memory.put(array)
        rows = replace(whole, pointer=whole.pointer + 16 * 64 * 4, shape=(8, 64), owner=whole)
        if not trial.backend.can(Capability.COLLECTIVES):
            try:
                memory.get(rows)
            except (EngineError, ValueError) as error:
                pytest.skip(f"refused: {error}")
        np.testing.assert_array_equal(memory.get(rows), array[16:24])
        memory.copy(np.zeros((8, 64), np.float32), rows)
        array[16:24] = 0
        np.testing.assert_array_equal(memory.get(whole), array)

    def test_host_memory_for_the_device_is_an_array(self, memory: Memory) -> None:
        array = memory.on_host(DType.INT64, (4, 5))
        assert isinstance(array, np.ndarray), f"expected an array, got {type(array)}"
        assert (array.dtype, array.shape) == (np.dtype(np.int64), (4, 5))
        assert array.flags.c_contiguous, "the array is not C-contiguous"
        assert array.flags.writeable, "the array is read-only"
        array[:] = np.arange(20).reshape(4, 5)
        buffer = memory.put(array)
        array[:] = 0
        memory.copy(buffer, array)
        np.testing.assert_array_equal(array, np.arange(20).reshape(4, 5))

    def test_memory_is_freed_with_its_last_owner(self, memory: Memory) -> None:
        def once() -> None:
            buffer = memory.put(np.zeros(2**18, np.float32))  # 1 MiB
            other = replace(buffer, shape=(2**9, 2**9))  # names the same owner
            del buffer
            memory.get(other)
            memory.on_host(DType.FLOAT32, (2**18,))

        expect_no_growth(once, times=60)

    # ----------------------------------------------------------------------------- predict

    def test_inputs_may_be_on_the_device(self, trial: Trial, memory: Memory) -> None:
        running = trial.open(models.affine, row(0))
        for start in (0, 5, 5, 7):
            x = memory.put(row(start))
            [y] = running.predict(x)
            self.assert_close(y, 2 * row(start) + 1)
            self.assert_close(memory.get(x), row(start))  # not modified

    def test_inputs_on_host_and_device_may_be_mixed(self, trial: Trial, memory: Memory) -> None:
        z, a, m = row(1, 2), row(50, 2), np.array([1, 2, 3], np.float32)
        running = trial.open(models.several, z, a, m)
        for inputs in ((memory.put(z), a, memory.put(m)), (z, memory.put(a), m), (z, a, m)):
            y, b, x = running.predict(*inputs)
            self.assert_close(y, z - a)
            self.assert_close(b, a * m)
            self.assert_close(x, z + m)

    def test_given_device_buffers_are_filled_and_returned(
        self, trial: Trial, memory: Memory
    ) -> None:
        running = trial.open(models.affine, row(0))
        buffer = memory.put(np.full((1, 3), -1, np.float32))
        outputs = [buffer]
        for start in range(4):
            results = running.predict(row(start), outputs=outputs)
            assert results is outputs, "all buffers were given, but their list was not returned"
            assert results[0] is buffer, "the given buffer was not returned itself"
            self.assert_close(memory.get(buffer), 2 * row(start) + 1)

    def test_a_buffer_may_have_another_shape_than_it_was_made_with(
        self, trial: Trial, memory: Memory
    ) -> None:
        """The memory says how many elements there are, the DeviceBuffer in which shape."""
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        running = trial.open(models.moved, x)
        for made in ((3, 2), (6,), (2, 3)):
            value = replace(memory.put(x.reshape(made)), shape=(2, 3))
            buffer = replace(memory.put(np.full(made, -1, np.float32)), shape=(3, 2))
            running.predict(value, outputs=[buffer])
            self.assert_close(memory.get(buffer), np.ascontiguousarray(x.T))

    def test_outputs_are_allocated_on_the_device_that_is_named(
        self, trial: Trial, memory: Memory
    ) -> None:
        z, a, m = row(1, 2), row(50, 2), np.array([1, 2, 3], np.float32)
        running = trial.open(models.several, z, a, m)
        buffer = np.full((2, 3), -1, np.float32)
        wanted: list[Any] = [memory.device, buffer, None]
        y, b, x = running.predict(z, a, m, outputs=wanted)
        self.assert_close(memory.get(y), z - a)
        assert b is buffer, "the given buffer was not returned itself"
        self.assert_close(b, a * m)
        self.assert_close(x, z + m)
        assert wanted[0] == memory.device, "predict changed the list of outputs"

    def test_results_on_the_device_belong_to_the_caller(self, trial: Trial, memory: Memory) -> None:
        running = trial.open(models.affine, row(0))
        wanted: list[Any] = [memory.device]
        kept = [(start, running.predict(row(start), outputs=wanted)[0]) for start in range(6)]
        pointers = {value.pointer for _, value in kept if isinstance(value, DeviceBuffer)}
        assert len(pointers) == len(kept), "two results are the same memory"
        running.context.close()
        running.executable.close()
        gc.collect()
        for start, y in kept:
            self.assert_close(memory.get(y), 2 * row(start) + 1)

    # ------------------------------------------------------------------ resident, streams, chains

    def test_resident_outputs_stay_on_the_device(self, trial: Trial, memory: Memory) -> None:
        z, a, m = row(1, 2), row(50, 2), np.array([1, 2, 3], np.float32)
        running = trial.open(models.several, z, a, m, resident=frozenset({"y", "x"}))
        for scale in (1, 2, 3):
            y, b, x = running.predict(scale * z, a, m)
            self.assert_close(memory.get(y), scale * z - a)
            self.assert_close(b, a * m)
            self.assert_close(memory.get(x), scale * z + m)
        buffer = np.zeros((2, 3), np.float32)
        y, *_ = running.predict(z, a, m, outputs=[buffer, None, None])
        assert y is buffer, "a buffer that is given goes before `resident`"
        self.assert_close(buffer, z - a)

    def test_a_resident_output_costs_no_more_than_one_on_the_host(
        self, trial: Trial, memory: Memory
    ) -> None:
        """It would where it goes to the host and back, or is copied otherwise."""
        x = np.linspace(-3, 3, 1 << 20, dtype=np.float32)
        on_host = trial.open(models.waves, x)
        resident = trial.open(models.waves, x, resident=frozenset({"y"}))
        [expected] = on_host.predict(x)
        host_s, resident_s = [], []
        # The best of both: other processes slow them down and let go.
        for turn in turns(PATIENCE_S):
            host_s.append(time_predict(on_host, x))
            begin_s = time.monotonic()
            [y] = resident.predict(x)
            if isinstance(y, DeviceBuffer) and y.stream is not None:
                memory.order(y.stream, None)
            resident_s.append(time.monotonic() - begin_s)
            np.testing.assert_array_equal(memory.get(y), expected)
            if turn > 1 and min(resident_s) < 1.5 * min(host_s):
                return
        raise AssertionError(
            f"a predict that leaves 4 MiB on the device takes {1000 * min(resident_s):.1f} ms at "
            f"best, one that brings them to the host {1000 * min(host_s):.1f} ms"
        )

    def test_a_chain_on_the_device_needs_no_host(self, trial: Trial, memory: Memory) -> None:
        """Each reads what the one before has queued: that is ordered by the buffer's stream."""
        steps: list[Running] = [
            trial.open(models.affine, row(0), resident=frozenset({"y"})) for _ in range(STEPS)
        ]
        for start in range(3):
            value: Value = row(start)
            expected = row(start)
            for step in steps:
                [value] = step.predict(value)
                assert isinstance(value, DeviceBuffer), "a resident output is on the host"
                expected = 2 * expected + 1
            self.assert_close(memory.get(value), expected)

    def test_a_queued_copy_comes_after_what_it_copies(self, trial: Trial, memory: Memory) -> None:
        result = _queued(trial, memory, 3)
        first = memory.allocate(DType.FLOAT32, (1, 3))
        second = memory.allocate(DType.FLOAT32, (1, 3))
        assert result.stream is not None
        memory.copy(result, first, result.stream)
        memory.copy(replace(first, stream=result.stream), second, result.stream)
        memory.order(result.stream, None)
        self.assert_close(memory.get(second), 2 * row(3) + 1)

    def test_a_stream_waits_for_another(self, trial: Trial, memory: Memory) -> None:
        result, other = _queued(trial, memory, 3), _queued(trial, memory, 4)
        assert result.stream is not None
        assert other.stream is not None
        memory.order(result.stream, other.stream)
        target = memory.allocate(DType.FLOAT32, (1, 3))
        # Said to be complete: that it is there in time is what engine_order has seen to.
        memory.copy(replace(result, stream=None), target, other.stream)
        memory.order(other.stream, None)
        self.assert_close(memory.get(target), 2 * row(3) + 1)

    def test_what_was_waited_for_is_complete(self, trial: Trial, memory: Memory) -> None:
        result = _queued(trial, memory, 3)
        assert result.stream is not None
        memory.order(result.stream, None)
        self.assert_close(memory.get(replace(result, stream=None)), 2 * row(3) + 1)


def _queued(trial: Trial, memory: Memory, start: float) -> DeviceBuffer:
    """Return a result on the device with a stream; skip where all are complete on return."""
    wanted: list[Any] = [memory.device]
    [y] = trial.open(models.affine, row(0)).predict(row(start), outputs=wanted)
    assert isinstance(y, DeviceBuffer), f"expected a DeviceBuffer, got {type(y)}"
    if y.stream is None:
        pytest.skip("results on the device are complete on return: there is no stream")
    return y
