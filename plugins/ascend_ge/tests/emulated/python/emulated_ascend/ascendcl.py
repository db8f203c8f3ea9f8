"""The emulated libascendcl.so: the calls that pyACL does not have."""

from __future__ import annotations

from ctypes import c_char_p, c_size_t, c_void_p

from emulated_ascend.device import LoadConfig
from emulated_ascend.libraries import Library, libraries
from emulated_ascend.machine import OK, errors, machine

_library = libraries["libascendcl.so"] = Library()


@_library.function(c_void_p, c_char_p, c_void_p, c_size_t)
def aclmdlSetExternalWeightAddress(handle: int, name: bytes, pointer: int, size: int) -> int:
    with machine.lock:
        config = machine.get(handle, LoadConfig)
        if not name or not pointer or size % 32:
            return errors.INVALID_PARAM
        machine.memory.find(pointer, size)
        config.external[name.decode()] = pointer, size
    return OK
