"""The CUDA driver, as far as this backend needs it: a thin layer over pycuda.driver.

Where pycuda is not installed, `cuda_bindings.py` offers its names over NVIDIA's cuda.bindings.

A `Gpu` is a device's *primary* context (the one that TensorRT and NCCL use too), retained once
and for the life of the process. It is pushed around each use, so any thread may come:

    with gpu:
        memory = gpu.allocate(1024)

pycuda frees an object only in a thread in which the object's context is current, and otherwise
leaks it with a warning. So the wrappers here hold the only reference to theirs and have a
`close()`, which is called inside `with gpu`. Nothing else in this package imports pycuda.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import BackendUnavailable
from engine_gpu_trt import vendor

Bytes = npt.NDArray[np.uint8]

_gpus: dict[int, Gpu] = {}
_retaining = threading.Lock()
_owner_pid = 0


class Gpu:
    """One device and its primary context; made by `open_gpu`, shared by all threads."""

    def __init__(self, driver: Any, id: int) -> None:
        self.id = id
        self.name = f"gpu:{id}"
        self.Error: type[Exception] = driver.Error
        self._driver = driver
        device = driver.Device(id)
        self._context = device.retain_primary_context()
        self._pop = driver.Context.pop
        # Facts on which an engine depends beside the model and TensorRT.
        self.model = str(device.name())
        self.compute_capability = ".".join(map(str, device.compute_capability()))
        self.driver_version = int(driver.get_driver_version())
        # Bound once for the hot path. copy_in(pointer, bytes, stream), copy_out(bytes, pointer,
        # stream), copy_within(target, source, nbytes, stream): queue a copy; the host's bytes are
        # a whole page-locked array; raise `Error`.
        self.copy_in = driver.memcpy_htod_async
        self.copy_out = driver.memcpy_dtoh_async
        self.copy_within = driver.memcpy_dtod_async
        self._streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()

    def __enter__(self) -> Gpu:
        self._context.push()
        return self

    def __exit__(self, *error: object) -> None:
        self._pop()

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Allocate device memory, aligned to 256 bytes or more.

        Raises BackendUnavailable if it is short.
        """
        try:
            return DeviceMemory(self, self._driver.mem_alloc(max(nbytes, 1)))
        except self.Error as error:
            raise self.unavailable(error, f"{nbytes} bytes of device memory") from error

    def pin(self, nbytes: int) -> PinnedMemory:
        """Allocate page-locked host memory, which copies can be queued from and to."""
        try:
            return PinnedMemory(self, self._driver.pagelocked_empty(max(nbytes, 1), np.uint8))
        except self.Error as error:
            raise self.unavailable(error, f"{nbytes} bytes of pinned host memory") from error

    def stream(self) -> Stream:
        """Make a stream that does not wait for the default stream."""
        try:
            stream = Stream(self._driver.Stream(_NON_BLOCKING), self._driver.Event(_DISABLE_TIMING))
        except self.Error as error:
            raise self.unavailable(error, "a stream") from error
        self._streams[stream.handle] = stream
        return stream

    def marker(self, stream: Stream) -> Marker:
        """Mark the end of what is queued on a stream now, inside `with gpu`."""
        try:
            event = self._driver.Event(_DISABLE_TIMING)
        except self.Error as error:
            raise self.unavailable(error, "an event") from error
        marker = Marker(self, event)
        event.record(stream.raw)
        return marker

    def find_stream(self, handle: int) -> Stream | None:
        """Return the open stream of this backend that has the handle; None for any other."""
        stream = self._streams.get(handle)
        return stream if stream is not None and stream.raw is not None else None

    def order(self, earlier: int, later: Stream) -> None:
        """Make what is queued on `later` from now on wait for what is queued on `earlier` now.

        pycuda has no way to name a stream that somebody else made: for such a one, and for one
        that is closed, the calling thread waits for the whole device instead. `later` may be a
        stream of another device.
        """
        if earlier == later.handle:
            return
        stream = self.find_stream(earlier)
        with self:
            if stream is not None:
                later.raw.wait_for_event(stream.record())
            elif earlier == DEFAULT_STREAM:
                event = self._driver.Event(_DISABLE_TIMING)
                try:
                    event.record()
                    later.raw.wait_for_event(event)
                finally:
                    del event  # freed here, where its context is current
            else:
                self.synchronize()

    def wait(self, handle: int) -> None:
        """Wait in the calling thread for all that is queued on a stream, inside `with gpu`."""
        stream = self.find_stream(handle)
        if stream is None:
            self.synchronize()
        elif not stream.is_done:
            stream.synchronize()

    def synchronize(self) -> None:
        """Wait for all that is queued on the device, inside `with gpu`."""
        self._driver.Context.synchronize()

    def copy_across(self, target: int, source: int, nbytes: int, origin: Gpu, on: Stream) -> None:
        """Queue a copy from device `origin` to this one on a stream of this one."""
        self._driver.memcpy_peer_async(
            target, source, nbytes, self._context, origin._context, on.raw
        )

    def export(self, pointer: int) -> bytes:
        """Return a handle by which other processes open an allocation, inside `with gpu`.

        It is good as long as the allocation. Raises `Error`.
        """
        return bytes(self._driver.mem_get_ipc_handle(pointer))

    def import_memory(self, handle: bytes) -> ImportedMemory:
        """Open another process's allocation, inside `with gpu`. Raises `Error`."""
        return ImportedMemory(self, self._driver.IPCMemoryHandle(bytearray(handle)))

    def memory(self) -> tuple[int, int]:
        """Return free and total device memory, in bytes."""
        free, total = self._driver.mem_get_info()
        return int(free), int(total)

    def unavailable(self, error: Exception, wanted: str) -> BackendUnavailable:
        """Build the user's error where CUDA refused `wanted`: short of memory, or a lost device."""
        if isinstance(error, self._driver.MemoryError):
            return BackendUnavailable(
                f"{self.name}: out of memory: {self.shortage(wanted)}", "gpu_trt"
            )
        return BackendUnavailable(
            f"{self.name}: CUDA failed for {wanted}: {error}; if it goes on, restart the process "
            "and run: engine plugins",
            "gpu_trt",
        )

    def shortage(self, wanted: str) -> str:
        """Say what was wanted and what there is, for an error about memory."""
        try:
            free, total = self.memory()
        except self.Error:
            return f"wanted {wanted}"
        return f"wanted {wanted}, {free} of {total} bytes are free"


class DeviceMemory:
    """Memory on the device, freed by `close()` or when nothing refers to it any more.

    The latter may come in any thread, and while work on it is still queued: it is waited for.
    pointer: its address; 0 once closed.
    """

    def __init__(self, gpu: Gpu, allocation: Any) -> None:
        self.pointer = int(allocation)
        self._allocation = [allocation]  # shared with the finalizer, emptied by whoever frees
        weakref.finalize(self, _free_late, gpu, self._allocation)

    def close(self) -> None:
        """Free it, inside `with gpu` and with nothing queued on it; twice does nothing."""
        self.pointer = 0
        _free(self._allocation)


class ImportedMemory:
    """Memory of another process, open here until `close()`, or nothing refers to it any more.

    Closing it frees nothing of the other's, and does not touch what it holds.
    """

    def __init__(self, gpu: Gpu, opened: Any) -> None:
        self.pointer = int(opened)
        self._opened = [opened]
        weakref.finalize(self, _close_late, gpu, self._opened)

    def close(self) -> None:
        """Close it, inside `with gpu` and with nothing queued on it; twice does nothing."""
        self.pointer = 0
        while self._opened:
            self._opened.pop().close()


def _close_late(gpu: Gpu, opened: list[Any]) -> None:
    if not opened:
        return
    with gpu, suppress(gpu.Error):  # a lost device: nobody is there to be told
        gpu.synchronize()
        opened.pop().close()


class PinnedMemory:
    """Page-locked host memory as `array` of uint8, freed as DeviceMemory is.

    The array must not be used once closed.
    """

    def __init__(self, gpu: Gpu, array: Bytes) -> None:
        self.array = array
        # An array of this object keeps it alive, and with it the memory.
        self.__array_interface__ = array.__array_interface__
        self._allocation = [array.base]  # pycuda's PagelockedHostAllocation
        weakref.finalize(self, _free_late, gpu, self._allocation)

    def close(self) -> None:
        """Free it, inside `with gpu` and with nothing queued on it; twice does nothing."""
        self.array = _NO_BYTES
        _free(self._allocation)


def is_pinned(array: npt.NDArray[Any]) -> bool:
    """Tell whether an array lies in page-locked memory of this backend."""
    base = array.base
    return isinstance(base, np.ndarray) and isinstance(base.base, PinnedMemory)


def as_bytes(array: npt.NDArray[Any]) -> Bytes:
    """View a C-contiguous array as bytes, whatever its type: pycuda knows only numpy's own."""
    return array.reshape(-1).view(np.uint8)


def _free(allocation: list[Any]) -> None:
    if allocation:
        allocation.pop().free()


def _free_late(gpu: Gpu, allocation: list[Any]) -> None:
    if not allocation:
        return
    with gpu:
        with suppress(gpu.Error):  # a lost device: nobody is there to be told
            gpu.synchronize()
        with suppress(gpu.Error):
            _free(allocation)


class Stream:
    """A queue of work on the device. `raw` is what pycuda takes, `handle` what TensorRT takes."""

    def __init__(self, raw: Any, event: Any) -> None:
        self.raw = raw
        self.handle = int(raw.handle)
        self._event = event

    def record(self) -> Any:
        """Return an event after all that is queued now.

        It is one event for all callers: a later one moves it on, so that an earlier one may wait
        for more than it has to, never for less.
        """
        self._event.record(self.raw)
        return self._event

    @property
    def is_done(self) -> bool:
        """Nothing is queued any more."""
        return bool(self.raw.is_done())

    def synchronize(self) -> None:
        """Wait for all that is queued; lets other Python threads run meanwhile."""
        self.raw.synchronize()

    def close(self) -> None:
        """Destroy it, inside `with gpu`; twice does nothing."""
        self.raw = self._event = None


class Marker:
    """A place in a stream: reached once all that was queued before it is done."""

    def __init__(self, gpu: Gpu, event: Any) -> None:
        self._event = [event]
        self._free = weakref.finalize(self, _forget_late, gpu, self._event)

    @property
    def is_reached(self) -> bool:
        """All that was queued before it is done."""
        return bool(self._event[0].query())

    def close(self) -> None:
        """Destroy it, inside `with gpu`; twice does nothing."""
        self._event.clear()


def _forget_late(gpu: Gpu, event: list[Any]) -> None:
    with gpu:
        event.clear()


def open_gpu(id: int) -> Gpu:
    """Open device `id`, its context retained.

    Raises BackendUnavailable with the reason and the fix.
    """
    global _owner_pid
    opened = _gpus.get(id)
    if opened is not None and _owner_pid == os.getpid():
        return opened
    try:
        driver = vendor.cuda_driver()
        count = vendor.device_count(driver)
    except vendor.Missing as error:
        raise BackendUnavailable(
            f"backend 'gpu_trt' has no device: {error}; {error.fix}", "gpu_trt"
        ) from error
    if not 0 <= id < count:
        raise BackendUnavailable(
            f"device 'gpu:{id}' is not there: the driver shows {count} "
            f"(gpu:0 to gpu:{count - 1}); set device_id to one of them",
            "gpu_trt",
        )
    with _retaining:
        if _gpus and _owner_pid != os.getpid():
            raise BackendUnavailable(
                "CUDA was used before this process was forked, and does not survive that; start "
                "processes with 'spawn'",
                "gpu_trt",
            )
        _owner_pid = os.getpid()
        if id not in _gpus:
            try:
                _gpus[id] = Gpu(driver, id)
            except driver.Error as error:
                raise BackendUnavailable(
                    f"device 'gpu:{id}' cannot be used: {error}; run: engine plugins",
                    "gpu_trt",
                ) from error
        return _gpus[id]


DEFAULT_STREAM = 0
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING; pycuda has no name for it
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING: cheaper to record
_NO_BYTES: Bytes = np.empty(0, np.uint8)
