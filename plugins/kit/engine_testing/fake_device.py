"""A device that is not there: memory that the host cannot read, and streams that run late.

    device = FakeDevice()
    buffer = device.allocate(DType.FLOAT32, (2, 3))
    device.write(buffer, array)
    device.read(buffer)

An address is a number that no process maps: who takes it for a host pointer crashes. New memory
holds garbage, freed memory is refused. Work on a stream runs when somebody waits for it
and no earlier, so work that was not ordered after what it needs gives wrong results, always: what
a real device does now and then.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import BackendUnavailable, InputError
from engine.types import Device, DeviceBuffer, DType, Value

_BASE = 1 << 62  # no user address of any 64-bit machine
_SPAN_BITS = 36  # one allocation may take so much of the addresses: 64 GiB
_GARBAGE = 0xA5

Array = npt.NDArray[Any]


class Allocation:
    """The owner of one piece of memory, which is freed with it."""

    def __init__(self, blocks: dict[int, bytearray], base: int, nbytes: int) -> None:
        self._base = base
        self._blocks = blocks
        blocks[base] = bytearray([_GARBAGE]) * nbytes

    def __del__(self) -> None:
        if hasattr(self, "_blocks"):  # not where a signal handler raised in __init__
            self._blocks.pop(self._base, None)


class Stream:
    """Work in order. `queued` counts what ever came, `done` what has run."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pending: deque[Callable[[], None]] = deque()
        self.queued = 0
        self.done = 0


class FakeDevice:
    """Memory and streams of one device. Any thread may call any method.

    memory_bytes: all memory that it has.
    """

    def __init__(self, device: Device, memory_bytes: int = 1 << 36) -> None:
        self.device = device
        self.memory_bytes = memory_bytes
        self._blocks: dict[int, bytearray] = {}
        self._bases = itertools.count(_BASE, 1 << _SPAN_BITS)
        self._streams: dict[int, Stream] = {}
        self._handles = itertools.count()  # 0 is a stream like any other

    # ----------------------------------------------------------------------------------- memory

    @property
    def held_bytes(self) -> int:
        """The size of all memory that is allocated."""
        return sum(map(len, list(self._blocks.values())))

    def allocate(
        self, dtype: DType, shape: tuple[int, ...], stream: int | None = None
    ) -> DeviceBuffer:
        """Allocate memory for a tensor; it holds garbage. stream: where its contents will come."""
        nbytes = (prod(shape) * dtype.bits + 7) // 8
        free = self.memory_bytes - self.held_bytes
        if nbytes > free:
            raise BackendUnavailable(
                f"{self.device}: out of memory: wanted {nbytes:,} bytes, {free:,} are free"
            )
        base = next(self._bases)
        owner = Allocation(self._blocks, base, nbytes)
        return DeviceBuffer(base, shape, dtype, self.device, stream, owner)

    def read(self, value: Value) -> Array:
        """Return what a tensor holds now: a host array itself, a copy of device memory."""
        if isinstance(value, np.ndarray):
            return value
        assert isinstance(value, DeviceBuffer), f"expected a tensor, got {type(value)}"
        if not value.is_packed:
            return self._view(value).copy()
        dtype, data = value.dtype, np.frombuffer(bytes(self._memory(value)), np.uint8)
        if dtype.bits >= 8:
            return data.view(dtype.numpy).reshape(value.shape).copy()
        bits = np.unpackbits(data, count=prod(value.shape) * dtype.bits, bitorder="little")
        items = np.packbits(bits.reshape(-1, dtype.bits), axis=1, bitorder="little")
        return items.view(dtype.numpy).reshape(value.shape)

    def write(self, value: Value, contents: Array) -> None:
        """Write a tensor of the same dtype and shape now."""
        if isinstance(value, np.ndarray):
            np.copyto(value, contents)
            return
        assert isinstance(value, DeviceBuffer), f"expected a tensor, got {type(value)}"
        if not value.is_packed:
            np.copyto(self._view(value), contents)
            return
        data = np.ascontiguousarray(contents).reshape(-1).view(np.uint8)
        if value.dtype.bits < 8:  # one element a byte on the host, packed on the device
            bits = np.unpackbits(data.reshape(-1, 1), axis=1, bitorder="little")
            data = np.packbits(bits[:, : value.dtype.bits], bitorder="little")
        self._memory(value)[:] = data.tobytes()

    def _view(self, buffer: DeviceBuffer) -> Array:
        """Return a view of memory with strides or an offset."""
        base = buffer.pointer >> _SPAN_BITS << _SPAN_BITS
        first = buffer.pointer - base + buffer.offset_bytes
        block, size = self._blocks.get(base), buffer.dtype.bits // 8
        if block is None or not size:
            raise InputError(f"{self.device}: no memory at {buffer.pointer:#x} that has strides")
        strides = buffer.strides and [step * size for step in buffer.strides]
        try:
            return np.ndarray(buffer.shape, buffer.dtype.numpy, block, first, strides)
        except (ValueError, TypeError) as error:
            raise InputError(f"{self.device}: it is beyond what is allocated: {error}") from error

    def _memory(self, buffer: DeviceBuffer) -> memoryview:
        base = buffer.pointer >> _SPAN_BITS << _SPAN_BITS
        first = buffer.pointer - base
        block = self._blocks.get(base)
        if block is None or first + buffer.nbytes > len(block):
            raise RuntimeError(
                f"{self.device}: {buffer.nbytes} bytes at {buffer.pointer:#x} are not allocated"
            )
        return memoryview(block)[first : first + buffer.nbytes]

    # ---------------------------------------------------------------------------------- streams

    def open_stream(self) -> int:
        """Open a stream and return its handle."""
        handle = next(self._handles)
        self._streams[handle] = Stream()
        return handle

    def close_stream(self, handle: int) -> None:
        """Run what is queued on a stream and close it: who waits for it later waits for nothing."""
        self.synchronise(handle)
        self._streams.pop(handle, None)

    def queue(self, handle: int, work: Callable[[], None]) -> None:
        """Let `work` run after all that is on the stream: when somebody waits for it."""
        stream = self._streams.get(handle)
        if stream is None:
            work()
            return
        with stream.lock:
            stream.pending.append(work)
            stream.queued += 1

    def order(self, earlier: int, later: int | None) -> None:
        """Make what comes on `later` wait for what is on `earlier`; None: the calling thread."""
        if later is None:
            self.synchronise(earlier)
            return
        stream = self._streams.get(earlier)
        if stream is not None and earlier != later:
            mark = stream.queued
            self.queue(later, lambda: _run(stream, mark))

    def synchronise(self, handle: int | None) -> None:
        """Wait for a stream: run what is queued there. None is a stream that is complete."""
        stream = None if handle is None else self._streams.get(handle)
        if stream is not None:
            _run(stream, stream.queued)

    def copy(self, source: Value, target: Value, stream: int | None) -> None:
        """See engine_copy."""
        for tensor in (source, target):
            if isinstance(tensor, DeviceBuffer) and tensor.stream is not None:
                self.order(tensor.stream, stream)
        if stream is None:
            self.write(target, self.read(source))
        else:
            self.queue(stream, lambda: self.write(target, self.read(source)))


def _run(stream: Stream, mark: int) -> None:
    """Run a stream's work until `mark` pieces of all that ever came are done."""
    # Looked at without the lock first: of two streams that wait for each other's past, neither
    # then waits for the thread that runs the other.
    while stream.done < mark:
        with stream.lock:
            if stream.done < mark:
                try:
                    stream.pending.popleft()()
                finally:
                    stream.done += 1
