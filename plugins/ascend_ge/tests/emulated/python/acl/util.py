"""The emulated module `acl.util`."""

from __future__ import annotations

import ctypes

from emulated_ascend.machine import api, machine


@api("util.bytes_to_ptr", "value")
def bytes_to_ptr(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


@api("util.ptr_to_bytes", "value")
def ptr_to_bytes(pointer: int, size: int) -> bytes:
    if machine.memory.is_device(pointer):
        raise machine.fault(f"ptr_to_bytes reads device address {pointer:#x} on the host")
    return ctypes.string_at(pointer, size)
