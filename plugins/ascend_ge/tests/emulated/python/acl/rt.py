"""The emulated module `acl.rt`: devices, contexts, streams, memory."""

from __future__ import annotations

import ctypes
import json
import os
import uuid
from pathlib import Path

import numpy as np
from emulated_ascend.device import Event, Stream
from emulated_ascend.machine import OK, Context, api, errors, machine

_PAGE = 4096
_ALIGNMENT = 64  # of addresses in asynchronous copies, which older versions ask for
_HOST_TO_HOST, _HOST_TO_DEVICE, _DEVICE_TO_HOST, _DEVICE_TO_DEVICE = range(4)


def _context() -> Context | None:
    """Return the calling thread's context."""
    handle = machine.current
    return machine.get(handle, Context) if handle else None


def _no_context() -> int:
    machine.say("EE1001: the argument is invalid. Reason: the current context is null")
    return errors.RT_CONTEXT_NULL


get_device_count = api("rt.get_device_count")(lambda: (machine.devices, OK))


@api("rt.set_device")
def set_device(device: int) -> int:
    code = _check_device(device)
    if code == OK:
        machine.open_devices[device] += 1
        machine.current = machine.default_context(device)
    return code


@api("rt.get_device")
def get_device() -> tuple[int, int]:
    context = _context()
    return (context.device, OK) if context else (0, _no_context())


@api("rt.reset_device")
def reset_device(device: int) -> int:
    if machine.open_devices[device] == 0:
        return errors.RT_INVALID_DEVICEID
    machine.open_devices[device] -= 1
    if machine.open_devices[device] == 0:
        contexts = [thing for thing in machine.objects.values() if isinstance(thing, Context)]
        left = [each for each in contexts if each.device == device and not each.is_default]
        memory = machine.memory.used_bytes(device)
        if left or memory:
            raise machine.fault(
                f"device {device} reset with {len(left)} contexts and {memory} bytes alive"
            )
        machine.drop_default_context(device)
    return OK


def _check_device(device: int) -> int:
    if not machine.is_initialized:
        return errors.UNINITIALIZE
    if not 0 <= device < machine.devices:
        machine.say(f"EE1001: device {device} is not in [0, {machine.devices})")
        return errors.RT_INVALID_DEVICEID
    return OK


@api("rt.create_context")
def create_context(device: int) -> tuple[int, int]:
    code = _check_device(device)
    if code != OK:
        return 0, code
    machine.current = machine.new(Context(device))
    return machine.current, OK


@api("rt.set_context")
def set_context(context: int) -> int:
    if context == 0:
        return errors.INVALID_PARAM
    machine.get(context, Context)
    machine.current = context
    return OK


@api("rt.get_context")
def get_context() -> tuple[int, int]:
    return (machine.current, OK) if machine.current else (0, _no_context())


@api("rt.destroy_context")
def destroy_context(context: int) -> int:
    if context == 0:
        return errors.INVALID_PARAM
    thing = machine.get(context, Context)
    if thing.is_default:
        return errors.RT_PARAM_INVALID
    if thing.streams or thing.models:
        raise machine.fault(
            f"context destroyed with {len(thing.streams)} streams and {len(thing.models)} models"
        )
    machine.drop(context, Context)
    return OK


@api("rt.create_stream", waits=True)
def create_stream() -> tuple[int, int]:
    if not machine.current:
        return 0, _no_context()
    stream = Stream(machine.current)
    with machine.lock:
        handle = machine.new(stream)
        machine.get(machine.current, Context).streams.add(handle)
    return handle, OK


@api("rt.destroy_stream")
def destroy_stream(stream: int) -> int:
    code = _check_stream(stream)
    if code != OK:
        return code
    queue = machine.get(stream, Stream)
    if queue.tasks:
        raise machine.fault("a stream is destroyed with work that nobody waited for")
    machine.drop(stream, Stream)
    machine.get(queue.context, Context).streams.discard(stream)
    queue.close()
    return OK


synchronize_stream = api("rt.synchronize_stream", waits=True)(lambda at: _synchronize(at, -1))
synchronize_stream_with_timeout = api("rt.synchronize_stream_with_timeout", waits=True)(
    lambda stream, timeout_ms: _synchronize(stream, timeout_ms)
)


@api("rt.stream_abort")
def stream_abort(stream: int) -> int:
    code = _check_stream(stream)
    if code == OK:
        machine.get(stream, Stream).abort()
    return code


def _synchronize(stream: int, timeout_ms: int) -> int:
    with machine.lock:
        code = _check_stream(stream)
        if code != OK:
            return code
        queue: Stream = machine.get(stream, Stream)
    return queue.wait(None if timeout_ms == -1 else timeout_ms / 1000)


def _check_stream(stream: int) -> int:
    queue = machine.get(stream, Stream)
    if not machine.current:
        return _no_context()
    if queue.context != machine.current:
        machine.say("EE1001: the stream is not in the current context")
        return errors.RT_STREAM_CONTEXT
    return OK


@api("rt.malloc")
def malloc(size: int, policy: int) -> tuple[int, int]:
    context = _context()
    if context is None:
        return 0, _no_context()
    if size <= 0 or policy not in (0, 1, 2):
        return 0, errors.INVALID_PARAM
    if machine.memory.used_bytes(context.device) + size > machine.memory_bytes:
        machine.say(f"EL0004: failed to allocate {size} bytes of device memory")
        return 0, errors.RT_DEVICE_OOM
    return machine.memory.allocate(context.device, size), OK


@api("rt.get_mem_info")
def get_mem_info(attribute: int) -> tuple[int, int, int]:
    """Give the free and all memory of the device; of a kind that it does not have, no bytes."""
    context = _context()
    if context is None:
        return 0, 0, _no_context()
    if attribute not in range(6):
        return 0, 0, errors.INVALID_PARAM
    if attribute != machine.memory_kind:
        return 0, 0, OK
    used = machine.memory.used_bytes(context.device)
    return machine.memory_bytes - used, machine.memory_bytes, OK


@api("rt.free")
def free(pointer: int) -> int:
    if _context() is None:
        return _no_context()
    if pointer == 0:
        return errors.INVALID_PARAM
    machine.memory.free(pointer)
    return OK


@api("rt.malloc_host")
def malloc_host(size: int) -> tuple[int, int]:
    if _context() is None:
        return 0, _no_context()
    if size <= 0:
        return 0, errors.INVALID_PARAM
    memory = ctypes.create_string_buffer(size + _PAGE)
    pointer = (ctypes.addressof(memory) + _PAGE - 1) // _PAGE * _PAGE
    machine.host_memory[pointer] = (memory, size)
    return pointer, OK


@api("rt.free_host")
def free_host(pointer: int) -> int:
    if _context() is None:
        return _no_context()
    if pointer not in machine.host_memory:
        raise machine.fault(f"free_host of {pointer:#x}, which is not allocated now")
    del machine.host_memory[pointer]
    return OK


@api("rt.memcpy")
def memcpy(target: int, target_size: int, source: int, size: int, kind: int) -> int:
    code = _check_copy(target, target_size, source, size, kind)
    if code == OK and size:
        _copy(target, source, size, kind)
    return code


@api("rt.memcpy_async")
def memcpy_async(
    target: int, target_size: int, source: int, size: int, kind: int, stream: int
) -> int:
    code = _check_stream(stream) or _check_copy(target, target_size, source, size, kind)
    if code != OK or not size:
        return code
    if target % _ALIGNMENT or source % _ALIGNMENT:
        raise machine.fault(f"memcpy_async of addresses that are not {_ALIGNMENT}-byte aligned")
    for address in (target, source):
        if not machine.memory.is_device(address) and not _is_page_locked(address, size):
            raise machine.fault(f"memcpy_async with host memory at {address:#x}, not page-locked")
    used = [machine.memory.find(a) for a in (target, source) if machine.memory.is_device(a)]
    for allocation in used:
        allocation.pins += 1

    def finish(result: object) -> int:
        for allocation in used:
            allocation.pins -= 1
        if result is not None:
            _copy(target, source, size, kind)
        return OK

    machine.get(stream, Stream).put(lambda: True, finish)
    return OK


def _is_page_locked(address: int, size: int) -> bool:
    return any(
        pointer <= address and address + size <= pointer + nbytes
        for pointer, (_, nbytes) in machine.host_memory.items()
    )


def _check_copy(target: int, target_size: int, source: int, size: int, kind: int) -> int:
    if _context() is None:
        return _no_context()
    if size == 0:
        return OK
    if target == 0 or source == 0 or kind not in range(4):
        return errors.INVALID_PARAM
    if size > target_size:
        machine.say(f"EE1001: {size} bytes do not fit into {target_size}")
        return errors.RT_PARAM_INVALID
    for what, address, is_device, room in (
        ("target", target, kind in (_HOST_TO_DEVICE, _DEVICE_TO_DEVICE), target_size),
        ("source", source, kind in (_DEVICE_TO_HOST, _DEVICE_TO_DEVICE), size),
    ):
        if machine.memory.is_device(address) != is_device:
            raise machine.fault(
                f"memcpy of kind {kind}: its {what} {address:#x} is "
                f"{'host' if is_device else 'device'} memory"
            )
        if is_device:
            machine.memory.at(address, room)
    return OK


def _copy(target: int, source: int, size: int, kind: int) -> None:
    if kind in (_DEVICE_TO_HOST, _DEVICE_TO_DEVICE):
        data = machine.memory.at(source, size).tobytes()
    else:
        data = ctypes.string_at(source, size)
    if kind in (_HOST_TO_DEVICE, _DEVICE_TO_DEVICE):
        ctypes.memmove(machine.memory.at(target, size).ctypes.data, data, size)
    else:
        ctypes.memmove(target, data, size)
    machine.copied[("on host", "to device", "to host", "on device")[kind]] += size


@api("rt.create_event")
def create_event() -> tuple[int, int]:
    return (machine.new(Event()), OK) if _context() is not None else (0, _no_context())


@api("rt.destroy_event")
def destroy_event(event: int) -> int:
    recorded = machine.get(event, Event)
    if recorded.waiters or (recorded.task is not None and not recorded.is_complete):
        raise machine.fault("an event is destroyed while a stream still has to come to it")
    machine.drop(event, Event)
    return OK


@api("rt.record_event")
def record_event(event: int, stream: int) -> int:
    recorded = machine.get(event, Event)
    code = _check_stream(stream)
    if code == OK:
        recorded.stream = machine.get(stream, Stream)
        recorded.task = recorded.stream.put(lambda: True, lambda _: OK)
    return code


@api("rt.stream_wait_event")
def stream_wait_event(stream: int, event: int) -> int:
    recorded = machine.get(event, Event)
    code = _check_stream(stream)
    if code != OK or recorded.task is None:
        return code  # of an event that was never recorded there is nothing to wait for
    recorded.waiters += 1

    def work() -> bool:
        recorded.stream.finish_until(recorded.task)
        return True

    def finish(_: object) -> int:
        recorded.waiters -= 1
        return OK

    machine.get(stream, Stream).put(work, finish)
    return OK


# 0: not ready, 1: complete; of a wait 0: complete, 1: not ready
query_event_status = api("rt.query_event_status")(
    lambda event: (int(machine.get(event, Event).is_complete), OK)
)
query_event_wait_status = api("rt.query_event_wait_status")(
    lambda event: (int(machine.get(event, Event).waiters > 0), OK)
)


_SHARED = Path("/dev/shm")
_NO_PERMISSION = 207006
_ANYBODY = 1  # a flag: no list of pids


@api("rt.ipc_mem_get_export_key")
def ipc_mem_get_export_key(pointer: int, size: int, length: int, flags: int) -> tuple[str, int]:
    allocation = machine.memory.find(pointer, size)
    if allocation.base != pointer or length < 65:
        return "", errors.INVALID_PARAM
    key = uuid.uuid4().hex * 2
    path = _SHARED / f"emulated-ascend-{key}"
    allocation.data.tofile(path)
    # From here on it is memory that others map: what is written shows on both sides.
    allocation.data = np.memmap(path, np.uint8, "r+")
    allocation.is_exported = True
    Path(f"{path}.pids").write_text(json.dumps(None if flags & _ANYBODY else []))
    machine.exports[key] = pointer
    return key, OK


@api("rt.ipc_mem_set_import_pid")
def ipc_mem_set_import_pid(key: str, pids: list) -> int:
    if key not in machine.exports or not all(isinstance(pid, int) for pid in pids):
        return errors.INVALID_PARAM
    (_SHARED / f"emulated-ascend-{key}.pids").write_text(json.dumps(pids))
    return OK


@api("rt.ipc_mem_import_by_key")
def ipc_mem_import_by_key(key: str, flags: int) -> tuple[int, int]:
    context = _context()
    if context is None:
        return 0, _no_context()
    path = _SHARED / f"emulated-ascend-{key}"
    if not path.is_file() or key in machine.imports:
        machine.say("EE1001: the key is not one of memory that is shared")
        return 0, errors.RT_PARAM_INVALID
    listed = json.loads(Path(f"{path}.pids").read_text())
    if listed is not None and os.getpid() not in listed:
        machine.say(f"EE1001: process {os.getpid()} is not in the list of pids")
        return 0, _NO_PERMISSION
    machine.imports[key] = machine.memory.adopt(context.device, np.memmap(path, np.uint8, "r"))
    return machine.imports[key], OK


@api("rt.ipc_mem_close")
def ipc_mem_close(key: str) -> int:
    if key in machine.imports:
        machine.memory.free(machine.imports.pop(key))
        return OK
    if key not in machine.exports:
        return errors.RT_PARAM_INVALID
    machine.memory.find(machine.exports.pop(key)).is_exported = False
    path = _SHARED / f"emulated-ascend-{key}"
    path.unlink()
    Path(f"{path}.pids").unlink()
    return OK
