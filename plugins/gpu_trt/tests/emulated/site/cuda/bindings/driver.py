"""Emulated cuda.bindings.driver: what CUDA's driver does, on the emulated machine.

Names and parameters are those of cuda-bindings 13.5 (`cuda_bindings.json`). Calls give their result
and their values as a tuple. Nothing is freed by itself: what is not destroyed is left, which the
tests see.
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
from emulated_gpu.machine import (
    MACHINE,
    POISON_FREED,
    POISON_PENDING,
    Crash,
    OutOfMemory,
    Queue,
    queue_copy,
    queue_copy_out,
)
from emulated_gpu.machine import Device as _Hardware

CUDA_VERSION = 13050


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_LAUNCH_FAILED = 719
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901


_TEXTS = {
    CUresult.CUDA_ERROR_INVALID_VALUE: "invalid argument",
    CUresult.CUDA_ERROR_OUT_OF_MEMORY: "out of memory",
    CUresult.CUDA_ERROR_NOT_INITIALIZED: "initialization error",
    CUresult.CUDA_ERROR_NO_DEVICE: "no CUDA-capable device is detected",
    CUresult.CUDA_ERROR_INVALID_DEVICE: "invalid device ordinal",
    CUresult.CUDA_ERROR_INVALID_CONTEXT: "invalid device context",
    CUresult.CUDA_ERROR_INVALID_HANDLE: "invalid resource handle",
    CUresult.CUDA_ERROR_LAUNCH_FAILED: "unspecified launch failure",
}


class CUstreamCaptureMode(IntEnum):
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1
    CU_STREAM_CAPTURE_MODE_RELAXED = 2


class CUdevice_attribute(IntEnum):
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76


class CUipcMem_flags(IntEnum):
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1


class _Handle:
    def __init__(self, init_value: int = 0) -> None:
        self._value = int(init_value)

    def __int__(self) -> int:
        return self._value

    def __bool__(self) -> bool:
        return self._value != 0


class CUstream(_Handle):
    """A stream."""


class CUevent(_Handle):
    """A place in a stream."""


class CUcontext(_Handle):
    """A context; `device` is the emulated one's."""

    device: _Hardware


class CUdevice(_Handle):
    """A device."""


class CUdeviceptr(_Handle):
    """An address on a device."""


class CUgraph(_Handle):
    """A captured sequence of work."""


class CUgraphExec(_Handle):
    """A graph that can be launched."""


class CUipcMemHandle:
    """64 bytes, which Python sees only by their address."""

    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(64)

    def getPtr(self) -> int:
        return ctypes.addressof(self._bytes)


Work = list[Callable[[], None]]
_numbers = itertools.count(0x6A000000, 0x20)
_graphs: dict[int, Work] = {}
_launchable: dict[int, Work] = {}
_events: dict[int, tuple[_Hardware, Queue | None, int]] = {}
_contexts: dict[int, CUcontext] = {}
_pinned: dict[int, np.ndarray[Any, Any]] = {}
OK = CUresult.CUDA_SUCCESS
NO_MEMORY = CUresult.CUDA_ERROR_OUT_OF_MEMORY
INVALID = CUresult.CUDA_ERROR_INVALID_VALUE


def cuInit(Flags: int) -> tuple[CUresult]:
    if MACHINE.driver == "none":  # cuda.pathfinder's DynamicLibNotFoundError
        raise RuntimeError('"cuda" is an NVIDIA driver library and can only be found via system '
                           "search. Ensure the NVIDIA display driver is installed.")  # fmt: skip
    if MACHINE.driver != "on":
        return (CUresult.CUDA_ERROR_NO_DEVICE,)
    MACHINE.initialised = True
    return (OK,)


def cuGetErrorName(error: CUresult) -> tuple[CUresult, bytes]:
    return OK, error.name.encode()


def cuGetErrorString(error: CUresult) -> tuple[CUresult, bytes]:
    return OK, _TEXTS.get(error, error.name).encode()


def cuDriverGetVersion() -> tuple[CUresult, int]:
    return OK, 13000


def cuDeviceGetCount() -> tuple[CUresult, int]:
    if MACHINE.driver != "on" or not MACHINE.initialised:
        return CUresult.CUDA_ERROR_NOT_INITIALIZED, 0
    return OK, len(MACHINE.devices)


def cuDeviceGet(ordinal: int) -> tuple[CUresult, CUdevice]:
    if not MACHINE.initialised:
        return CUresult.CUDA_ERROR_NOT_INITIALIZED, CUdevice(0)
    if not 0 <= ordinal < len(MACHINE.devices):
        return CUresult.CUDA_ERROR_INVALID_DEVICE, CUdevice(0)
    return OK, CUdevice(ordinal)


def cuDeviceGetName(length: int, dev: CUdevice) -> tuple[CUresult, bytes]:
    return OK, MACHINE.devices[int(dev)].name.encode().ljust(length, b"\0")


def cuDeviceTotalMem(dev: CUdevice) -> tuple[CUresult, int]:
    return OK, MACHINE.devices[int(dev)].total


def cuDeviceGetAttribute(attrib: CUdevice_attribute, dev: CUdevice) -> tuple[CUresult, int]:
    values = {75: 9, 76: 0}
    return OK, values[CUdevice_attribute(attrib)]


def cuDevicePrimaryCtxRetain(dev: CUdevice) -> tuple[CUresult, CUcontext]:
    hardware = MACHINE.devices[int(dev)]
    hardware.retained += 1
    context = CUcontext(next(_numbers))
    context.device = hardware
    _contexts[int(context)] = context
    return OK, context


def cuCtxPushCurrent(ctx: CUcontext) -> tuple[CUresult]:
    if int(ctx) not in _contexts:
        return (CUresult.CUDA_ERROR_INVALID_CONTEXT,)
    MACHINE.stack.contexts.append(_contexts[int(ctx)])
    return (OK,)


def cuCtxPopCurrent() -> tuple[CUresult, CUcontext]:
    if not MACHINE.stack.contexts:
        return CUresult.CUDA_ERROR_INVALID_CONTEXT, CUcontext(0)
    popped: Any = MACHINE.stack.contexts.pop()
    return OK, popped


def cuCtxGetCurrent() -> tuple[CUresult, CUcontext]:
    current: Any = MACHINE.stack.contexts[-1] if MACHINE.stack.contexts else CUcontext(0)
    return OK, current


def cuCtxSynchronize() -> tuple[CUresult]:
    hardware = MACHINE.current
    if hardware is None:
        return (CUresult.CUDA_ERROR_INVALID_CONTEXT,)
    MACHINE.counted["synchronisations"] += 1
    for queue in MACHINE.queues(hardware):
        queue.run()
    return (OK,)


def cuMemAlloc(bytesize: int) -> tuple[CUresult, CUdeviceptr]:
    hardware = MACHINE.current
    if hardware is None:
        return CUresult.CUDA_ERROR_INVALID_CONTEXT, CUdeviceptr(0)
    if bytesize <= 0:
        return INVALID, CUdeviceptr(0)
    try:
        if MACHINE.faulty("mem_alloc"):
            raise OutOfMemory
        return OK, CUdeviceptr(hardware.allocate(int(bytesize)))
    except OutOfMemory:
        return NO_MEMORY, CUdeviceptr(0)


def cuMemFree(dptr: CUdeviceptr) -> tuple[CUresult]:
    _current("cuMemFree").free(int(dptr))
    return (OK,)


def cuMemGetInfo() -> tuple[CUresult, int, int]:
    hardware = _current("cuMemGetInfo")
    return OK, hardware.total - hardware.used, hardware.total


def cuMemHostAlloc(bytesize: int, Flags: int) -> tuple[CUresult, int]:
    _current("cuMemHostAlloc")
    if MACHINE.faulty("pagelocked_empty"):
        return NO_MEMORY, 0
    if bytesize <= 0:
        return INVALID, 0
    memory = np.full(bytesize, POISON_PENDING, np.uint8)
    _pinned[memory.ctypes.data] = memory
    MACHINE.pinned[memory.ctypes.data] = bytesize
    return OK, memory.ctypes.data


def cuMemFreeHost(p: int) -> tuple[CUresult]:
    _current("cuMemFreeHost")
    del MACHINE.pinned[p]
    _pinned[p][:] = POISON_FREED
    _freed.append(_pinned.pop(p))  # a stale view is a wrong number, not a crash of the tests
    del _freed[:-8]
    return (OK,)


_freed: list[np.ndarray[Any, Any]] = []


def _copying(copy: Callable[..., None]) -> Callable[..., tuple[CUresult]]:
    """Make a copy's function of one that is also given its queue."""

    def call(*arguments: Any) -> tuple[CUresult]:
        queue = _queue(arguments[-1])
        if MACHINE.faulty(copy.__name__):
            return (CUresult.CUDA_ERROR_LAUNCH_FAILED,)
        copy(queue, *arguments)
        return (OK,)

    parameters = [*inspect.signature(copy).parameters.values()][1:]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


@_copying
def cuMemcpyHtoDAsync(
    queue: Queue, dstDevice: Any, srcHost: int, ByteCount: int, hStream: CUstream
) -> None:
    source = _host(srcHost, ByteCount)
    target = queue.device.at(int(dstDevice), ByteCount)
    queue_copy(queue, "host to device", target, lambda: source)


@_copying
def cuMemcpyDtoHAsync(
    queue: Queue, dstHost: int, srcDevice: Any, ByteCount: int, hStream: CUstream
) -> None:
    source = queue.device.at(int(srcDevice), ByteCount)
    queue_copy_out(queue, _host(dstHost, ByteCount), source)


@_copying
def cuMemcpyDtoDAsync(
    queue: Queue, dstDevice: Any, srcDevice: Any, ByteCount: int, hStream: CUstream
) -> None:
    target, source = (queue.device.at(int(end), ByteCount) for end in (dstDevice, srcDevice))
    queue_copy(queue, "device to device", target, source)


@_copying
def cuMemcpyPeerAsync(
    queue: Queue, dstDevice: Any, dstContext: CUcontext, srcDevice: Any, srcContext: CUcontext,
    ByteCount: int, hStream: CUstream,
) -> None:  # fmt: skip
    target = _contexts[int(dstContext)].device.at(int(dstDevice), ByteCount)
    source = _contexts[int(srcContext)].device.at(int(srcDevice), ByteCount)
    queue_copy(queue, "between devices", target, source)


def cuIpcGetMemHandle(dptr: Any) -> tuple[CUresult, CUipcMemHandle]:
    handle = CUipcMemHandle()
    try:
        if MACHINE.faulty("mem_get_ipc_handle"):
            raise LookupError
        data = _current("cuIpcGetMemHandle").export(int(dptr))
    except LookupError:
        return INVALID, handle
    ctypes.memmove(handle.getPtr(), data, len(data))
    return OK, handle


def cuIpcOpenMemHandle(handle: CUipcMemHandle, Flags: int) -> tuple[CUresult, CUdeviceptr]:
    try:
        address = _current("cuIpcOpenMemHandle").open(ctypes.string_at(handle.getPtr(), 64))
    except LookupError:
        return INVALID, CUdeviceptr(0)
    return OK, CUdeviceptr(address)


def cuIpcCloseMemHandle(dptr: CUdeviceptr) -> tuple[CUresult]:
    _current("cuIpcCloseMemHandle").close(int(dptr))
    return (OK,)


def _current(call: str) -> _Hardware:
    device = MACHINE.current
    if device is None:
        raise Crash(f"{call} without a current CUDA context")
    return device


def _host(address: int, nbytes: int) -> np.ndarray[Any, Any]:
    if nbytes and not MACHINE.is_pinned(address, nbytes):
        raise Crash("the host memory of a copy is not page-locked")
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


def cuStreamCreate(Flags: int) -> tuple[CUresult, CUstream]:
    hardware = _current("cuStreamCreate")
    if MACHINE.faulty("Stream"):
        return NO_MEMORY, CUstream(0)
    queue = Queue(hardware)
    MACHINE.streams[queue.handle] = queue
    return OK, CUstream(queue.handle)


def cuStreamDestroy(hStream: CUstream) -> tuple[CUresult]:
    _queue(hStream).run()
    del MACHINE.streams[int(hStream)]
    return (OK,)


def cuStreamSynchronize(hStream: CUstream) -> tuple[CUresult]:
    queue = _queue(hStream)
    MACHINE.counted["synchronisations"] += 1
    queue.run()
    if MACHINE.faulty("synchronize"):
        return (CUresult.CUDA_ERROR_LAUNCH_FAILED,)
    return (OK,)


def cuStreamQuery(hStream: CUstream) -> tuple[CUresult]:
    return (OK if _queue(hStream).is_done else CUresult.CUDA_ERROR_NOT_READY,)


def cuStreamWaitEvent(hStream: CUstream, hEvent: CUevent, Flags: int) -> tuple[CUresult]:
    queue = MACHINE.streams[int(hStream)]
    _current("cuStreamWaitEvent")
    _, awaited, position = _events[int(hEvent)]
    if awaited is not None and awaited is not queue:
        queue.wait_for(awaited, position)
    return (OK,)


def cuEventCreate(Flags: int) -> tuple[CUresult, CUevent]:
    hardware = _current("cuEventCreate")
    if MACHINE.faulty("Event"):
        return NO_MEMORY, CUevent(0)
    event = CUevent(next(_numbers))
    _events[int(event)] = hardware, None, 0
    MACHINE.live["events"] += 1
    return OK, event


def cuEventDestroy(hEvent: CUevent) -> tuple[CUresult]:
    _current("cuEventDestroy")
    del _events[int(hEvent)]
    MACHINE.live["events"] -= 1
    return (OK,)


def cuEventRecord(hEvent: CUevent, hStream: CUstream) -> tuple[CUresult]:
    hardware = _current("cuEventRecord")
    queue = MACHINE.queue(int(hStream))
    if queue is None or queue.device is not hardware or _events[int(hEvent)][0] is not hardware:
        return (CUresult.CUDA_ERROR_INVALID_HANDLE,)
    _events[int(hEvent)] = hardware, queue, queue.queued
    return (OK,)


def cuEventQuery(hEvent: CUevent) -> tuple[CUresult]:
    _, queue, position = _events[int(hEvent)]
    is_done = queue is None or queue.done >= position
    return (OK if is_done else CUresult.CUDA_ERROR_NOT_READY,)


def _queue(hStream: CUstream) -> Queue:
    if not isinstance(hStream, CUstream):
        raise TypeError(f"hStream must be a CUstream, not {type(hStream).__name__}")
    queue = MACHINE.streams.get(int(hStream))
    if queue is None or MACHINE.current is not queue.device:
        raise Crash(f"stream {int(hStream):#x} is none of the current context")
    return queue


def cuStreamBeginCapture(hStream: CUstream, mode: CUstreamCaptureMode) -> tuple[CUresult]:
    queue = _queue(hStream)
    if MACHINE.faulty("cuStreamBeginCapture"):
        return (NO_MEMORY,)
    assert isinstance(mode, CUstreamCaptureMode)
    queue.recording = []
    return (OK,)


def cuStreamEndCapture(hStream: CUstream) -> tuple[CUresult, CUgraph]:
    queue = _queue(hStream)
    work, queue.recording = queue.recording, None
    if work is None or MACHINE.faulty("cuStreamEndCapture"):
        return CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CUgraph(0)
    graph = CUgraph(next(_numbers))
    _graphs[int(graph)] = work
    MACHINE.live["graphs"] += 1
    return OK, graph


def cuGraphInstantiate(hGraph: CUgraph, flags: int) -> tuple[CUresult, CUgraphExec]:
    if MACHINE.faulty("cuGraphInstantiate"):
        return NO_MEMORY, CUgraphExec(0)
    made = CUgraphExec(next(_numbers))
    _launchable[int(made)] = _graphs[int(hGraph)]
    MACHINE.live["executable graphs"] += 1
    return OK, made


def cuGraphLaunch(hGraphExec: CUgraphExec, hStream: CUstream) -> tuple[CUresult]:
    work = _launchable.get(int(hGraphExec))
    if work is None:
        raise Crash("a graph is launched that does not exist, or no longer")
    if MACHINE.faulty("cuGraphLaunch"):
        return (NO_MEMORY,)
    queue = _queue(hStream)
    for piece in work:
        queue.put(piece)
    MACHINE.counted["graph launches"] += 1
    return (OK,)


def cuGraphExecDestroy(hGraphExec: CUgraphExec) -> tuple[CUresult]:
    _drop(_launchable, hGraphExec, "executable graphs")
    return (OK,)


def cuGraphDestroy(hGraph: CUgraph) -> tuple[CUresult]:
    _drop(_graphs, hGraph, "graphs")
    return (OK,)


def _drop(held: dict[int, Work], handle: Any, kind: str) -> None:
    if MACHINE.current is None:
        MACHINE.violation(f"{kind} were destroyed while no CUDA context was current")
    del held[int(handle)]
    MACHINE.live[kind] -= 1
