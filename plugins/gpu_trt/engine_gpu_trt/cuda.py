"""The CUDA driver, as far as this backend needs it: a thin layer over pycuda.driver.

A `Gpu` is a device's *primary* context (the one that TensorRT and NCCL use too), retained once
and for the life of the process. It is pushed around each use, so any thread may come:

    with gpu:
        memory = gpu.allocate(1024)

pycuda frees an object only in a thread in which the object's context is current, and otherwise
leaks it with a warning. So the wrappers here hold the only reference to theirs and have a
`close()`, which is called inside `with gpu`. Nothing else in this package imports pycuda: a
second provider (cuda.bindings) is a second module with the same names.
"""

from __future__ import annotations

import os
import threading
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
        self._context = driver.Device(id).retain_primary_context()
        self._pop = driver.Context.pop
        # Bound once for the hot path. copy_in(pointer, bytes, stream), copy_out(bytes, pointer,
        # stream): queue a copy of whole arrays of pinned bytes; raise `Error`.
        self.copy_in = driver.memcpy_htod_async
        self.copy_out = driver.memcpy_dtoh_async

    def __enter__(self) -> Gpu:
        self._context.push()
        return self

    def __exit__(self, *error: object) -> None:
        self._pop()

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Device memory, aligned to 256 bytes or more. Raises BackendUnavailable if it is short."""
        try:
            return DeviceMemory(self._driver.mem_alloc(max(nbytes, 1)))
        except self.Error as error:
            raise self.unavailable(error, f"{nbytes} bytes of device memory") from error

    def pin(self, nbytes: int) -> PinnedMemory:
        """Page-locked host memory, which copies can be queued from and to."""
        try:
            return PinnedMemory(self._driver.pagelocked_empty(max(nbytes, 1), np.uint8))
        except self.Error as error:
            raise self.unavailable(error, f"{nbytes} bytes of pinned host memory") from error

    def stream(self) -> Stream:
        """A new stream that does not wait for the default stream."""
        try:
            return Stream(self._driver.Stream(_NON_BLOCKING))
        except self.Error as error:
            raise self.unavailable(error, "a stream") from error

    def memory(self) -> tuple[int, int]:
        """Free and total device memory, in bytes."""
        free, total = self._driver.mem_get_info()
        return int(free), int(total)

    def unavailable(self, error: Exception, wanted: str) -> BackendUnavailable:
        """What a user sees when CUDA refused `wanted`: short of memory, or a lost device."""
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
        """What was wanted and what there is, for an error about memory."""
        try:
            free, total = self.memory()
        except self.Error:
            return f"wanted {wanted}"
        return f"wanted {wanted}, {free} of {total} bytes are free"


class DeviceMemory:
    """Memory on the device. `pointer` is its address; 0 once closed."""

    def __init__(self, allocation: Any) -> None:
        self.pointer = int(allocation)
        self._allocation = allocation

    def close(self) -> None:
        """Free it, inside `with gpu`; twice does nothing."""
        allocation, self._allocation, self.pointer = self._allocation, None, 0
        if allocation is not None:
            allocation.free()


class PinnedMemory:
    """Page-locked host memory as `array` of uint8; the array must not be used once closed."""

    def __init__(self, array: Bytes) -> None:
        self.array = array

    def close(self) -> None:
        """Free it, inside `with gpu`; twice does nothing."""
        allocation, self.array = self.array.base, _NO_BYTES
        if allocation is not None:
            allocation.free()  # type: ignore[attr-defined]  # pycuda's PagelockedHostAllocation


class Stream:
    """A queue of work on the device. `raw` is what pycuda takes, `handle` what TensorRT takes."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.handle = int(raw.handle)

    def synchronize(self) -> None:
        """Wait for all that is queued; lets other Python threads run meanwhile."""
        self.raw.synchronize()

    def close(self) -> None:
        """Destroy it, inside `with gpu`; twice does nothing."""
        self.raw = None


def open_gpu(id: int) -> Gpu:
    """Device `id`, its context retained. Raises BackendUnavailable with the reason and the fix."""
    global _owner_pid
    try:
        driver = vendor.pycuda_driver()
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


_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING; pycuda has no name for it
_NO_BYTES: Bytes = np.empty(0, np.uint8)
