"""Emulated pycuda.driver: the part that this backend uses, with pycuda's own conditions.

Names, argument names and error texts are those of pycuda 2026.1's sources.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from cuda.bindings import driver as cu
from emulated_gpu.machine import MACHINE, Crash, Queue
from emulated_gpu.machine import Device as _Hardware

if MACHINE.driver == "none":
    raise ImportError("libcuda.so.1: cannot open shared object file: No such file or directory")


_Function = TypeVar("_Function", bound=Callable[..., Any])


class Error(Exception):
    """The base of CUDA's errors."""


class MemoryError(Error):
    """Out of memory."""


class LogicError(Error):
    """A call that does not fit the state."""


class LaunchError(Error):
    """The device failed."""


class RuntimeError(Error):
    """No device, among others."""


_ERRORS = {
    cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY: MemoryError,
    cu.CUresult.CUDA_ERROR_LAUNCH_FAILED: LaunchError,
}
_HANDLE_BYTES = 64


def _like_c(function: _Function) -> _Function:
    """Wrap as a C function, which has no frame: its errors keep no argument alive."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Error as error:
            failed = error.with_traceback(None)
        del arguments, named
        raise failed

    return cast("_Function", call)


def init(flags: int = 0) -> None:
    if MACHINE.driver != "on":
        raise RuntimeError("cuInit failed: no CUDA-capable device is detected")
    MACHINE.initialised = True


def get_version() -> tuple[int, int, int]:
    return (13, 0, 0)


def get_driver_version() -> int:
    return 13000


def _hardware(call: str) -> _Hardware:
    """Return the device of the current context; pycuda's error where there is none."""
    _initialised(call)
    device = MACHINE.current
    if device is None:
        raise LogicError(f"{call} failed: invalid device context")
    return device


def _call(name: str, *given: Any) -> Any:
    """Call CUDA, as the emulated cuda.bindings has it; return what it gives beside its result."""
    _hardware(name)
    result, *values = getattr(cu, name)(*given)
    if result != cu.OK:
        _, text = cu.cuGetErrorString(result)
        raise _ERRORS.get(result, LogicError)(f"{name} failed: {text.decode()}")
    return values[0] if values else None


def _initialised(call: str) -> None:
    if MACHINE.driver != "on" or not MACHINE.initialised:
        raise LogicError(f"{call} failed: initialization error")


class Device:
    def __init__(self, ordinal: int) -> None:
        _initialised("cuDeviceGet")
        if not 0 <= ordinal < len(MACHINE.devices):
            raise LogicError("cuDeviceGet failed: invalid device ordinal")
        self._hardware = MACHINE.devices[ordinal]

    @staticmethod
    def count() -> int:
        _initialised("cuDeviceGetCount")
        return len(MACHINE.devices)

    def name(self) -> str:
        return self._hardware.name

    def total_memory(self) -> int:
        return self._hardware.total

    def compute_capability(self) -> tuple[int, int]:
        return (9, 0)

    def retain_primary_context(self) -> Context:
        return Context._retain(self._hardware)


class Context:
    """A context. Primary ones only: this backend makes no other."""

    def __init__(self) -> None:
        raise TypeError("This class cannot be instantiated from Python")

    @classmethod
    def _retain(cls, hardware: _Hardware) -> Context:
        context = cls.__new__(cls)
        context.device = hardware
        _, context._raw = cu.cuDevicePrimaryCtxRetain(cu.CUdevice(hardware.id))
        context._thread = threading.get_ident()
        context._valid = True
        return context

    def push(self) -> None:
        if not self._valid:
            raise LogicError("cuCtxPushCurrent failed: invalid device context")
        MACHINE.stack.contexts.append(self)

    @staticmethod
    def pop() -> None:
        if not MACHINE.stack.contexts:
            raise LogicError(
                "context::pop failed: invalid device context - cannot pop non-current context"
            )
        MACHINE.stack.contexts.pop()

    @staticmethod
    def get_current() -> Context | None:
        contexts = MACHINE.stack.contexts
        return contexts[-1] if contexts else None

    @staticmethod
    def synchronize() -> None:
        _call("cuCtxSynchronize")

    def detach(self) -> None:
        if not self._valid:
            raise LogicError("context::detach failed: invalid device context - cannot detach from "
                             "invalid context")  # fmt: skip
        if Context.get_current() is self or self._thread == threading.get_ident():
            self.device.retained -= 1
        self._valid = False


class _Owned:
    """An object of the context that was current when it was made; freed in that only."""

    def _own(self, kind: str) -> None:
        context = Context.get_current()
        if context is None:
            raise LogicError("explicit_context_dependent failed: invalid device context - no "
                             "currently active context?")  # fmt: skip
        self._context: Context | None = context
        self._kind = kind

    def _free_with(self, free: Callable[[], object]) -> None:
        """Free by pycuda's rule: where the context is not current, only in the maker's thread."""
        context, self._context = self._context, None
        if context is None or not context._valid:
            return
        if Context.get_current() is context or context._thread == threading.get_ident():
            if Context.get_current() is not context:
                # pycuda switches to it here, in this one thread. No thread is the maker's for
                # certain, so the tests count this as wrong.
                MACHINE.violation(f"a {self._kind} was freed while its context was not current")
            context.push()
            free()
            Context.pop()
            return
        text = f"{self._kind} in out-of-thread context could not be cleaned up"
        MACHINE.violation(text)
        warnings.warn(text, UserWarning, stacklevel=2)


class Stream(_Owned):
    def __init__(self, flags: int = 0) -> None:
        self._own("stream")
        self._raw = _call("cuStreamCreate", flags)

    @property
    def handle(self) -> int:
        return int(self._raw)

    @property
    def _queue(self) -> Queue:
        return MACHINE.streams[self.handle]

    @_like_c
    def synchronize(self) -> None:
        _call("cuStreamSynchronize", self._raw)

    def is_done(self) -> bool:
        return self._queue.is_done

    @_like_c
    def wait_for_event(self, evt: Event) -> None:
        _call("cuStreamWaitEvent", self._raw, evt._raw, 0)

    def __del__(self) -> None:
        if hasattr(self, "_raw"):
            self._free_with(lambda: cu.cuStreamDestroy(self._raw))


class Event(_Owned):
    def __init__(self, flags: int = 0) -> None:
        self._own("event")
        self._raw = _call("cuEventCreate", flags)

    @_like_c
    def record(self, stream: Stream | None = None) -> Event:
        _call("cuEventRecord", self._raw, cu.CUstream(0) if stream is None else stream._raw)
        return self

    def query(self) -> bool:
        return cu.cuEventQuery(self._raw) == (cu.OK,)

    def __del__(self) -> None:
        if hasattr(self, "_raw"):
            self._free_with(lambda: cu.cuEventDestroy(self._raw))


class _Memory(_Owned):
    """Memory at an address, given back by one of CUDA's calls."""

    def _hold(self, kind: str, pointer: Any, free: Callable[[Any], object]) -> None:
        self._own(kind)
        self._pointer = pointer
        self._give_back = free

    def __int__(self) -> int:
        return int(self._pointer)

    __index__ = __int__

    def _free(self, call: str = "free") -> None:
        if self._context is None:
            raise LogicError(f"{self._kind}::{call} failed: invalid resource handle")
        self._free_with(lambda: self._give_back(self._pointer))

    def __del__(self) -> None:
        if getattr(self, "_context", None) is not None:
            self._free()


class DeviceAllocation(_Memory):
    def __init__(self, nbytes: int) -> None:
        self._hold("device_allocation", _call("cuMemAlloc", nbytes), cu.cuMemFree)

    def free(self) -> None:
        self._free()


def mem_alloc(bytes: int) -> DeviceAllocation:
    return DeviceAllocation(bytes)


def mem_get_ipc_handle(devptr: Any) -> bytearray:
    handle = _call("cuIpcGetMemHandle", int(devptr))
    return bytearray(ctypes.string_at(handle.getPtr(), _HANDLE_BYTES))


class IPCMemoryHandle(_Memory):
    def __init__(self, obj: bytearray, flags: int = 1) -> None:
        if not isinstance(obj, bytearray) or len(obj) != _HANDLE_BYTES:  # bytes are refused too
            raise LogicError(
                "event_from_ipc_handle failed: invalid argument - argument is not a bytes array"
            )
        handle = cu.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), bytes(obj), _HANDLE_BYTES)
        opened = _call("cuIpcOpenMemHandle", handle, flags)
        self._hold("ipc_mem_handle", opened, cu.cuIpcCloseMemHandle)

    def close(self) -> None:
        self._free("close")


def mem_get_info() -> tuple[int, int]:
    _hardware("cuMemGetInfo")
    _, free, total = cu.cuMemGetInfo()
    return free, total


class PagelockedHostAllocation(_Memory):
    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        pointer = _call("cuMemHostAlloc", math.prod(shape) * dtype.itemsize, 0)
        self._hold("pagelocked_host_allocation", pointer, cu.cuMemFreeHost)
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (pointer, False),
        }

    def free(self) -> None:
        self._free()


def pagelocked_empty(
    shape: Any, dtype: Any, order: str = "C", mem_flags: int = 0
) -> np.ndarray[Any, Any]:
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return np.asarray(PagelockedHostAllocation(shape, np.dtype(dtype)))


@_like_c
def memcpy_htod_async(dest: Any, src: Any, stream: Stream | None = None) -> None:
    source = _host_bytes(src)
    _copy("cuMemcpyHtoDAsync", stream, int(dest), source.ctypes.data, source.nbytes)


@_like_c
def memcpy_dtoh_async(dest: Any, src: Any, stream: Stream | None = None) -> None:
    target = _host_bytes(dest)
    _copy("cuMemcpyDtoHAsync", stream, target.ctypes.data, int(src), target.nbytes)


@_like_c
def memcpy_dtod_async(dest: Any, src: Any, size: int, stream: Stream | None = None) -> None:
    _copy("cuMemcpyDtoDAsync", stream, int(dest), int(src), size)


@_like_c
def memcpy_peer_async(
    dest: Any,
    src: Any,
    size: int,
    dest_context: Context | None = None,
    src_context: Context | None = None,
    stream: Stream | None = None,
) -> None:
    to, origin = (context or Context.get_current() for context in (dest_context, src_context))
    assert to is not None
    assert origin is not None
    _copy("cuMemcpyPeerAsync", stream, int(dest), to._raw, int(src), origin._raw, size)


def _copy(call: str, stream: Stream | None, *given: Any) -> None:
    if stream is None:
        raise Crash(f"{call} on the default stream: every other stream waits for it")
    _call(call, *given, stream._raw)


def memcpy_htod(dest: Any, src: Any) -> None:
    device = _hardware("cuMemcpyHtoD")
    source = _host_bytes(src)
    MACHINE.counted["host to device"] += source.nbytes
    device.bytes(int(dest), source.nbytes)[:] = source


def memcpy_dtoh(dest: Any, src: Any) -> None:
    device = _hardware("cuMemcpyDtoH")
    Context.synchronize()
    target = _host_bytes(dest)
    MACHINE.counted["device to host"] += target.nbytes
    target[:] = device.bytes(int(src), target.nbytes)


def _host_bytes(host: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(memoryview(host).cast("B"), np.uint8)
