"""The emulated module `acl.rt`: devices, contexts, streams, memory."""

from __future__ import annotations

import ctypes

from emulated_ascend.device import Stream
from emulated_ascend.machine import (
    CONTEXT_NULL,
    DEVICE_OOM,
    INVALID_DEVICE,
    INVALID_PARAM,
    OK,
    RT_PARAM_INVALID,
    STREAM_CONTEXT,
    UNINITIALIZED,
    Context,
    api,
    machine,
)

_HOST_TO_HOST, _HOST_TO_DEVICE, _DEVICE_TO_HOST, _DEVICE_TO_DEVICE = range(4)


def _context() -> Context | None:
    """The calling thread's context."""
    handle = machine.current
    return machine.get(handle, Context) if handle else None


def _no_context() -> int:
    machine.say("EE1001: the argument is invalid. Reason: the current context is null")
    return CONTEXT_NULL


# ------------------------------------------------------------------------------------- devices


@api("rt.get_device_count", "value, ret")
def get_device_count() -> tuple[int, int]:
    return machine.devices, OK


@api("rt.set_device", "ret")
def set_device(device: int) -> int:
    code = _check_device(device)
    if code == OK:
        machine.open_devices[device] += 1
        machine.current = machine.default_context(device)
    return code


@api("rt.get_device", "value, ret")
def get_device() -> tuple[int, int]:
    context = _context()
    return (context.device, OK) if context else (0, _no_context())


@api("rt.reset_device", "ret")
def reset_device(device: int) -> int:
    if machine.open_devices[device] == 0:
        return INVALID_DEVICE
    machine.open_devices[device] -= 1
    if machine.open_devices[device] == 0:
        left = [
            each
            for each in machine.objects.values()
            if isinstance(each, Context) and each.device == device and not each.is_default
        ]
        memory = machine.memory.used_bytes(device)
        if left or memory:
            raise machine.fault(
                f"device {device} reset with {len(left)} contexts and {memory} bytes alive"
            )
        machine.drop_default_context(device)
    return OK


def _check_device(device: int) -> int:
    if not machine.is_initialized:
        return UNINITIALIZED
    if not 0 <= device < machine.devices:
        machine.say(f"EE1001: device {device} is not in [0, {machine.devices})")
        return INVALID_DEVICE
    return OK


# ------------------------------------------------------------------------------------ contexts


@api("rt.create_context", "value, ret")
def create_context(device: int) -> tuple[int, int]:
    code = _check_device(device)
    if code != OK:
        return 0, code
    machine.current = machine.new(Context(device))
    return machine.current, OK


@api("rt.set_context", "ret")
def set_context(context: int) -> int:
    if context == 0:
        return INVALID_PARAM
    machine.get(context, Context)
    machine.current = context
    return OK


@api("rt.get_context", "value, ret")
def get_context() -> tuple[int, int]:
    return (machine.current, OK) if machine.current else (0, _no_context())


@api("rt.destroy_context", "ret")
def destroy_context(context: int) -> int:
    if context == 0:
        return INVALID_PARAM
    found = machine.get(context, Context)
    if found.is_default:
        return RT_PARAM_INVALID
    if found.streams or found.models:
        raise machine.fault(
            f"context destroyed with {len(found.streams)} streams and {len(found.models)} models"
        )
    machine.drop(context, Context)
    return OK


# ------------------------------------------------------------------------------------- streams


@api("rt.create_stream", "value, ret")
def create_stream() -> tuple[int, int]:
    context = _context()
    if context is None:
        return 0, _no_context()
    handle = machine.new(Stream(machine.current))
    context.streams.add(handle)
    return handle, OK


@api("rt.destroy_stream", "ret")
def destroy_stream(stream: int) -> int:
    code = _check_stream(stream)
    if code != OK:
        return code
    found = machine.get(stream, Stream)
    if found.tasks:
        raise machine.fault("a stream is destroyed with work that nobody waited for")
    machine.drop(stream, Stream)
    machine.get(found.context, Context).streams.discard(stream)
    found.close()
    return OK


@api("rt.synchronize_stream", "ret", waits=True)
def synchronize_stream(stream: int) -> int:
    return _synchronize(stream, None)


@api("rt.synchronize_stream_with_timeout", "ret", waits=True)
def synchronize_stream_with_timeout(stream: int, timeout_ms: int) -> int:
    return _synchronize(stream, None if timeout_ms == -1 else timeout_ms / 1000)


def _synchronize(stream: int, timeout_s: float | None) -> int:
    with machine.lock:
        code = _check_stream(stream)
        if code != OK:
            return code
        found: Stream = machine.get(stream, Stream)
    return found.wait(timeout_s)


def _check_stream(stream: int) -> int:
    found = machine.get(stream, Stream)
    if not machine.current:
        return _no_context()
    if found.context != machine.current:
        machine.say("EE1001: the stream is not in the current context")
        return STREAM_CONTEXT
    return OK


# -------------------------------------------------------------------------------------- memory


@api("rt.malloc", "value, ret")
def malloc(size: int, policy: int) -> tuple[int, int]:
    context = _context()
    if context is None:
        return 0, _no_context()
    if size <= 0 or policy not in (0, 1, 2):
        return 0, INVALID_PARAM
    if machine.memory.used_bytes(context.device) + size > machine.memory_bytes:
        machine.say(f"EL0004: failed to allocate {size} bytes of device memory")
        return 0, DEVICE_OOM
    return machine.memory.allocate(context.device, size), OK


@api("rt.free", "ret")
def free(pointer: int) -> int:
    if _context() is None:
        return _no_context()
    if pointer == 0:
        return INVALID_PARAM
    machine.memory.free(pointer)
    return OK


@api("rt.get_mem_info", "value, value, ret")
def get_mem_info(attribute: int) -> tuple[int, int, int]:
    context = _context()
    if context is None:
        return 0, 0, _no_context()
    free_bytes = machine.memory_bytes - machine.memory.used_bytes(context.device)
    return free_bytes, machine.memory_bytes, OK


@api("rt.memcpy", "ret")
def memcpy(target: int, target_size: int, source: int, size: int, kind: int) -> int:
    if _context() is None:
        return _no_context()
    if size == 0:
        return OK
    if target == 0 or source == 0 or kind not in range(4):
        return INVALID_PARAM
    if size > target_size:
        machine.say(f"EE1001: {size} bytes do not fit into {target_size}")
        return RT_PARAM_INVALID
    to_device = kind in (_HOST_TO_DEVICE, _DEVICE_TO_DEVICE)
    from_device = kind in (_DEVICE_TO_HOST, _DEVICE_TO_DEVICE)
    for what, address, is_device in (
        ("target", target, to_device),
        ("source", source, from_device),
    ):
        if machine.memory.is_device(address) != is_device:
            raise machine.fault(
                f"memcpy of kind {kind}: its {what} {address:#x} is "
                f"{'host' if is_device else 'device'} memory"
            )
    if from_device:
        data = machine.memory.at(source, size).tobytes()
    else:
        data = ctypes.string_at(source, size)
    if to_device:
        machine.memory.at(target, target_size)
        view = machine.memory.at(target, size)
        ctypes.memmove(view.ctypes.data, data, size)
    else:
        ctypes.memmove(target, data, size)
    return OK
