"""Emulated pycuda.driver: the part that this backend uses, with pycuda's own conditions.

Names, argument names and error texts are those of pycuda 2026.1's sources.
"""

from __future__ import annotations

import functools
import math
import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from emulated_gpu.machine import (
    MACHINE,
    POISON_FREED,
    POISON_PENDING,
    Crash,
    OutOfMemory,
    Queue,
)
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
        context._thread = threading.get_ident()
        context._valid = True
        hardware.retained += 1
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
        hardware = _hardware("cuCtxSynchronize")
        MACHINE.counted["synchronisations"] += 1
        for queue in MACHINE.queues(hardware):
            queue.run()

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

    def _free_with(self, free: Callable[[], None]) -> None:
        """Free by pycuda's rule: where the context is not current, only in the maker's thread."""
        context, self._context = self._context, None
        if context is None or not context._valid:
            return
        if Context.get_current() is context or context._thread == threading.get_ident():
            if Context.get_current() is not context:
                # pycuda would switch to it here, in this one thread. No thread is the maker's
                # for certain, so the tests count this as wrong.
                MACHINE.violation(f"a {self._kind} was freed while its context was not current")
            free()
            return
        text = f"{self._kind} in out-of-thread context could not be cleaned up"
        MACHINE.violation(text)
        warnings.warn(text, UserWarning, stacklevel=2)


class Stream(_Owned):
    def __init__(self, flags: int = 0) -> None:
        self._own("stream")
        hardware = _hardware("cuStreamCreate")
        if MACHINE.faulty("Stream"):
            raise MemoryError("cuStreamCreate failed: out of memory")
        self._queue = Queue(hardware)
        MACHINE.streams[self.handle] = self._queue

    @property
    def handle(self) -> int:
        return self._queue.handle

    @_like_c
    def synchronize(self) -> None:
        _hardware("cuStreamSynchronize")
        MACHINE.counted["synchronisations"] += 1
        self._queue.run()
        if MACHINE.faulty("synchronize"):
            raise LaunchError("cuStreamSynchronize failed: unspecified launch failure")

    def is_done(self) -> bool:
        return self._queue.is_done

    @_like_c
    def wait_for_event(self, evt: Event) -> None:
        _hardware("cuStreamWaitEvent")
        awaited, position = evt._recorded
        if awaited is not None and awaited is not self._queue:
            self._queue.wait_for(awaited, position)

    def __del__(self) -> None:
        if hasattr(self, "_queue"):
            self._free_with(self._destroy)

    def _destroy(self) -> None:
        self._queue.run()
        del MACHINE.streams[self.handle]


class Event(_Owned):
    def __init__(self, flags: int = 0) -> None:
        self._own("event")
        _hardware("cuEventCreate")
        if MACHINE.faulty("Event"):
            raise MemoryError("cuEventCreate failed: out of memory")
        self._recorded: tuple[Queue | None, int] = (None, 0)
        MACHINE.live["events"] += 1

    @_like_c
    def record(self, stream: Stream | None = None) -> Event:
        hardware = _hardware("cuEventRecord")
        queue = stream._queue if stream is not None else MACHINE.queue(0)
        assert queue is not None
        if queue.device is not hardware or self._hardware is not hardware:
            raise LogicError("cuEventRecord failed: invalid resource handle")
        self._recorded = (queue, queue.queued)
        return self

    def query(self) -> bool:
        queue, position = self._recorded
        return queue is None or queue.done >= position

    def synchronize(self) -> Event:
        _hardware("cuEventSynchronize")
        MACHINE.counted["synchronisations"] += 1
        queue, position = self._recorded
        if queue is not None:
            queue.run(position)
        return self

    @property
    def _hardware(self) -> _Hardware:
        assert self._context is not None
        return self._context.device

    def __del__(self) -> None:
        if getattr(self, "_recorded", None) is not None:
            self._free_with(self._destroy)

    def _destroy(self) -> None:
        MACHINE.live["events"] -= 1


class DeviceAllocation(_Owned):
    def __init__(self, address: int, hardware: _Hardware) -> None:
        self._own("device_allocation")
        self._address = address
        self._hardware = hardware

    def __int__(self) -> int:
        return self._address

    __index__ = __int__

    def free(self) -> None:
        if self._context is None:
            raise LogicError("device_allocation::free failed: invalid resource handle")
        self._free_with(lambda: self._hardware.free(self._address))

    def __del__(self) -> None:
        if getattr(self, "_context", None) is not None:
            self._free_with(lambda: self._hardware.free(self._address))


def mem_alloc(bytes: int) -> DeviceAllocation:
    hardware = _hardware("cuMemAlloc")
    if bytes <= 0:
        raise LogicError("cuMemAlloc failed: invalid argument")
    try:
        if MACHINE.faulty("mem_alloc"):
            raise OutOfMemory
        address = hardware.allocate(int(bytes))
    except OutOfMemory:
        raise MemoryError("cuMemAlloc failed: out of memory") from None
    return DeviceAllocation(address, hardware)


def mem_get_ipc_handle(devptr: Any) -> bytearray:
    hardware = _hardware("cuIpcGetMemHandle")
    try:
        if MACHINE.faulty("mem_get_ipc_handle"):
            raise LookupError
        return bytearray(hardware.export(int(devptr)))
    except LookupError:
        raise LogicError("cuIpcGetMemHandle failed: invalid argument") from None


class IPCMemoryHandle(_Owned):
    def __init__(self, obj: bytearray, flags: int = 1) -> None:
        self._own("ipc_mem_handle")
        hardware = _hardware("cuIpcOpenMemHandle")
        if not isinstance(obj, bytearray) or len(obj) != 64:  # bytes are refused too
            self._context = None
            raise LogicError(
                "event_from_ipc_handle failed: invalid argument - argument is not a bytes array"
            )
        try:
            self._address = hardware.open(bytes(obj))
        except LookupError as error:
            self._context = None
            raise LogicError(f"cuIpcOpenMemHandle failed: {error}") from None
        self._hardware = hardware

    def __int__(self) -> int:
        return self._address

    __index__ = __int__

    def close(self) -> None:
        if self._context is None:
            raise LogicError("ipc_mem_handle::close failed: invalid resource handle")
        self._free_with(lambda: self._hardware.close(self._address))

    def __del__(self) -> None:
        if getattr(self, "_context", None) is not None:
            self.close()


def mem_get_info() -> tuple[int, int]:
    hardware = _hardware("cuMemGetInfo")
    return hardware.total - hardware.used, hardware.total


class PagelockedHostAllocation(_Owned):
    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._own("pagelocked_host_allocation")
        nbytes = math.prod(shape) * dtype.itemsize
        self._memory = np.full(nbytes, POISON_PENDING, np.uint8)
        self._key = self._memory.ctypes.data
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (self._key, False),
        }
        MACHINE.pinned[self._key] = nbytes

    def free(self) -> None:
        if self._context is None:
            raise LogicError("pagelocked_host_allocation::free failed: invalid resource handle")
        self._free_with(self._unpin)

    def __del__(self) -> None:
        if getattr(self, "_context", None) is not None:
            self._free_with(self._unpin)

    def _unpin(self) -> None:
        del MACHINE.pinned[self._key]
        self._memory[:] = POISON_FREED  # who still reads it is seen to


def pagelocked_empty(
    shape: Any, dtype: Any, order: str = "C", mem_flags: int = 0
) -> np.ndarray[Any, Any]:
    _hardware("cuMemHostAlloc")
    if MACHINE.faulty("pagelocked_empty"):
        raise MemoryError("cuMemHostAlloc failed: out of memory")
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if math.prod(shape) <= 0:
        raise LogicError("cuMemHostAlloc failed: invalid argument")
    return np.asarray(PagelockedHostAllocation(shape, np.dtype(dtype)))


# -------------------------------------------------------------------------------------- copies


@_like_c
def memcpy_htod_async(dest: Any, src: Any, stream: Stream | None = None) -> None:
    device, source, queue = _copy("cuMemcpyHtoDAsync", src, stream)
    address = int(dest)
    device.bytes(address, source.nbytes)  # the address is checked when it is queued

    def copy() -> None:
        _count("host to device", source.nbytes)
        device.bytes(address, source.nbytes)[:] = source

    queue.put(copy)


@_like_c
def memcpy_dtoh_async(dest: Any, src: Any, stream: Stream | None = None) -> None:
    device, target, queue = _copy("cuMemcpyDtoHAsync", dest, stream)
    address = int(src)
    device.bytes(address, target.nbytes)
    target[:] = POISON_PENDING  # what is read before the stream is waited for is garbage

    def copy() -> None:
        _count("device to host", target.nbytes)
        target[:] = device.bytes(address, target.nbytes)

    queue.put(copy)


@_like_c
def memcpy_dtod_async(dest: Any, src: Any, size: int, stream: Stream | None = None) -> None:
    device, queue = _queue("cuMemcpyDtoDAsync", stream)
    target, source = int(dest), int(src)
    device.bytes(target, size), device.bytes(source, size)

    def copy() -> None:
        _count("device to device", size)
        device.bytes(target, size)[:] = device.bytes(source, size).copy()

    queue.put(copy)


@_like_c
def memcpy_peer_async(
    dest: Any,
    src: Any,
    size: int,
    dest_context: Context | None = None,
    src_context: Context | None = None,
    stream: Stream | None = None,
) -> None:
    device, queue = _queue("cuMemcpyPeerAsync", stream)
    to = device if dest_context is None else dest_context.device
    origin = device if src_context is None else src_context.device
    target, source = int(dest), int(src)
    to.bytes(target, size), origin.bytes(source, size)

    def copy() -> None:
        _count("between devices", size)
        to.bytes(target, size)[:] = origin.bytes(source, size)

    queue.put(copy)


def memcpy_htod(dest: Any, src: Any) -> None:
    device = _hardware("cuMemcpyHtoD")
    source = _host_bytes(src)
    _count("host to device", source.nbytes)
    device.bytes(int(dest), source.nbytes)[:] = source


def memcpy_dtoh(dest: Any, src: Any) -> None:
    device = _hardware("cuMemcpyDtoH")
    Context.synchronize()
    target = _host_bytes(dest)
    _count("device to host", target.nbytes)
    target[:] = device.bytes(int(src), target.nbytes)


def _count(way: str, nbytes: int) -> None:
    MACHINE.counted[way] += nbytes


def _copy(call: str, host: Any, stream: Stream | None) -> tuple[_Hardware, np.ndarray, Queue]:
    hardware, queue = _queue(call, stream)
    array = _host_bytes(host)
    if array.nbytes and not MACHINE.is_pinned(array.ctypes.data, array.nbytes):
        raise Crash(f"{call}: the host memory is not page-locked")
    return hardware, array, queue


def _queue(call: str, stream: Stream | None) -> tuple[_Hardware, Queue]:
    hardware = _hardware(call)
    if MACHINE.faulty(call):
        raise LaunchError(f"{call} failed: unspecified launch failure")
    if stream is None:
        raise Crash(f"{call} on the default stream: every other stream waits for it")
    if stream._queue.device is not hardware:
        raise LogicError(f"{call} failed: invalid resource handle")
    return hardware, stream._queue


def _host_bytes(host: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(memoryview(host).cast("B"), np.uint8)
