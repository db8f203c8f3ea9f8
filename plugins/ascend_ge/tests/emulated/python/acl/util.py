"""The emulated module `acl.util`."""

from __future__ import annotations

import ctypes

from emulated_ascend.machine import api


@api("util.bytes_to_ptr", "value")
def bytes_to_ptr(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
