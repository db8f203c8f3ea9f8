"""NVIDIA's cuda.bindings under the names of pycuda.driver, as far as `cuda.py` uses these.

The second provider: pip has it as a wheel, where pycuda has to be compiled. Objects are freed in
the context that they were made in, whatever is current, by `free()`, `close()` or with the last
reference to them.
"""

from __future__ import annotations

import ctypes
import importlib
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    cu: Any = importlib.import_module("cuda.bindings.driver")
except RuntimeError as error:  # a release that looks for the driver's library at import
    raise ImportError(f"libcuda.so.1: {error}") from error

_HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE


class Error(Exception):
    """A call of CUDA's that failed."""


class MemoryError(Error):
    """It failed for want of memory."""


def _made(call: str, *arguments: Any) -> Any:
    """Call a function; return what it gives beside its result. Raises Error."""
    try:
        result, *values = getattr(cu, call)(*arguments)
    except RuntimeError as error:  # no library of the driver's, or none of its functions
        raise Error(f"{call} failed: {error}") from error
    if int(result):
        _, text = cu.cuGetErrorString(result)
        is_memory = result == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        said = text.decode(errors="replace") if isinstance(text, bytes) else repr(result)
        raise (MemoryError if is_memory else Error)(f"{call} failed: {said}")
    return values[0] if values else None


def init() -> None:
    """Start the driver. Raises ImportError where its library is not there."""
    try:
        _made("cuInit", 0)
    except Error as error:
        if isinstance(error.__cause__, RuntimeError):
            raise ImportError(f"libcuda.so.1: {error.__cause__}") from error  # noqa: TRY004
        raise


def get_version() -> tuple[int, ...]:
    """Return the version of CUDA that the package was made for."""
    return int(cu.CUDA_VERSION) // 1000, int(cu.CUDA_VERSION) % 1000 // 10


def get_driver_version() -> int:
    """Return the newest CUDA that the driver runs: 13000 is 13.0."""
    return int(_made("cuDriverGetVersion"))


class Device:
    """A device by its number."""

    def __init__(self, ordinal: int) -> None:
        self._device = _made("cuDeviceGet", ordinal)

    @staticmethod
    def count() -> int:
        """Return how many there are."""
        return int(_made("cuDeviceGetCount"))

    def name(self) -> str:
        """Return what NVIDIA calls it."""
        return bytes(_made("cuDeviceGetName", 256, self._device)).rstrip(b"\0").decode()

    def total_memory(self) -> int:
        """Return its memory in bytes."""
        return int(_made("cuDeviceTotalMem", self._device))

    def compute_capability(self) -> tuple[int, int]:
        """Return its generation: (9, 0)."""
        named = cu.CUdevice_attribute
        major = named.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        minor = named.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
        return tuple(int(_made("cuDeviceGetAttribute", each, self._device))
                     for each in (major, minor))  # type: ignore[return-value]  # fmt: skip

    def retain_primary_context(self) -> Context:
        """Return its primary context, which is not current yet."""
        return Context(_made("cuDevicePrimaryCtxRetain", self._device))


class Context:
    """A primary context, for the life of the process."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def push(self) -> None:
        """Make it current in this thread."""
        _made("cuCtxPushCurrent", self.handle)

    @staticmethod
    def pop() -> None:
        """Make the one before it current."""
        _made("cuCtxPopCurrent")

    @staticmethod
    def synchronize() -> None:
        """Wait for all that is queued on the device."""
        _made("cuCtxSynchronize")


class _Owned:
    """An object of CUDA's, freed in the context that was current when it was made."""

    def __init__(self, free: Callable[[], object]) -> None:
        context = _made("cuCtxGetCurrent")
        self._free = weakref.finalize(self, _freed_in, context, free)
        self._free.atexit = False  # the driver may be gone by then

    def free(self) -> None:
        """Free it; twice does nothing."""
        self._free()


def _freed_in(context: Any, free: Callable[[], object]) -> None:
    _made("cuCtxPushCurrent", context)
    try:
        free()
    finally:
        _made("cuCtxPopCurrent")


class Stream(_Owned):
    """A queue of work."""

    def __init__(self, flags: int = 0) -> None:
        self.raw = raw = _made("cuStreamCreate", flags)
        self.handle = int(raw)
        super().__init__(lambda: _made("cuStreamDestroy", raw))

    def synchronize(self) -> None:
        """Wait for all that is queued; lets other Python threads run meanwhile."""
        _made("cuStreamSynchronize", self.raw)

    def is_done(self) -> bool:
        """Return whether nothing is queued."""
        return _is_done("cuStreamQuery", self.raw)

    def wait_for_event(self, evt: Event) -> None:
        """Make what is queued from now on wait for an event."""
        _made("cuStreamWaitEvent", self.raw, evt.raw, 0)


class Event(_Owned):
    """A place in a stream."""

    def __init__(self, flags: int = 0) -> None:
        self.raw = raw = _made("cuEventCreate", flags)
        super().__init__(lambda: _made("cuEventDestroy", raw))

    def record(self, stream: Stream | None = None) -> Event:
        """Move it to the end of what is queued now; None is the default stream."""
        _made("cuEventRecord", self.raw, cu.CUstream(0) if stream is None else stream.raw)
        return self

    def query(self) -> bool:
        """Return whether it is reached."""
        return _is_done("cuEventQuery", self.raw)


def _is_done(call: str, raw: Any) -> bool:
    [result] = getattr(cu, call)(raw)
    if result == cu.CUresult.CUDA_ERROR_NOT_READY:
        return False
    if int(result):
        raise Error(f"{call} failed: {result!r}")
    return True


class DeviceAllocation(_Owned):
    """Device memory."""

    def __init__(self, nbytes: int) -> None:
        pointer = _made("cuMemAlloc", nbytes)
        self._pointer = int(pointer)
        super().__init__(lambda: _made("cuMemFree", pointer))

    def __int__(self) -> int:
        return self._pointer


def mem_alloc(bytes: int) -> DeviceAllocation:
    """Allocate device memory."""
    return DeviceAllocation(bytes)


def mem_get_info() -> tuple[int, int]:
    """Return free and total device memory in bytes."""
    try:
        result, free, total = cu.cuMemGetInfo()
    except RuntimeError as error:
        raise Error(f"cuMemGetInfo failed: {error}") from error
    if int(result):
        raise Error(f"cuMemGetInfo failed: {result!r}")
    return int(free), int(total)


class PagelockedHostAllocation(_Owned):
    """Page-locked memory, which numpy views."""

    def __init__(self, nbytes: int) -> None:
        pointer = int(_made("cuMemHostAlloc", nbytes, 0))
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
        }
        super().__init__(lambda: _made("cuMemFreeHost", pointer))


def pagelocked_empty(shape: int, dtype: Any) -> npt.NDArray[np.uint8]:
    """Return page-locked memory of so many bytes."""
    return np.asarray(PagelockedHostAllocation(shape * np.dtype(dtype).itemsize))


def memcpy_htod_async(dest: int, src: npt.NDArray[Any], stream: Stream) -> None:
    """Queue a copy from page-locked memory to the device."""
    _made("cuMemcpyHtoDAsync", dest, src.ctypes.data, src.nbytes, stream.raw)


def memcpy_dtoh_async(dest: npt.NDArray[Any], src: int, stream: Stream) -> None:
    """Queue a copy from the device to page-locked memory."""
    _made("cuMemcpyDtoHAsync", dest.ctypes.data, src, dest.nbytes, stream.raw)


def memcpy_dtod_async(dest: int, src: int, size: int, stream: Stream) -> None:
    """Queue a copy on the device."""
    _made("cuMemcpyDtoDAsync", dest, src, size, stream.raw)


def memcpy_peer_async(
    dest: int, src: int, size: int, dest_context: Context, src_context: Context, stream: Stream
) -> None:
    """Queue a copy from another device."""
    _made("cuMemcpyPeerAsync", dest, dest_context.handle, src, src_context.handle, size, stream.raw)


def mem_get_ipc_handle(devptr: int) -> bytearray:
    """Return a handle by which other processes open an allocation."""
    handle = _made("cuIpcGetMemHandle", devptr)
    return bytearray(ctypes.string_at(handle.getPtr(), _HANDLE_BYTES))


class IPCMemoryHandle(_Owned):
    """Another process's allocation, opened."""

    def __init__(self, obj: bytearray) -> None:
        handle = cu.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), bytes(obj), _HANDLE_BYTES)
        flags = int(cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        pointer = _made("cuIpcOpenMemHandle", handle, flags)
        self._pointer = int(pointer)
        super().__init__(lambda: _made("cuIpcCloseMemHandle", pointer))

    def __int__(self) -> int:
        return self._pointer

    def close(self) -> None:
        """Close it; twice does nothing."""
        self.free()
