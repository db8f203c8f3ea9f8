"""Memory on a device and page-locked memory on the host, with one owner each."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np

from engine import types
from engine.errors import BackendUnavailable, EngineError
from engine.types import Device, DeviceBuffer, DType
from engine_ascend_ge import runtime
from engine_ascend_ge.acl_call import DDR_MEMORY, HBM_MEMORY, HUGE_FIRST, NUMBERS, done, got

SMALLEST = 64  # bytes; ACL allocates nothing for 0


class DeviceMemory:
    """Memory on one device, freed by `close` or when nothing refers to it any more."""

    __slots__ = ("__weakref__", "_acl", "_context", "nbytes", "pointer")

    def __init__(self, acl: Any, context: int, pointer: int, nbytes: int) -> None:
        """Take over memory that CANN has allocated. context: one of its device."""
        self._acl = acl
        self._context = context
        self.pointer = pointer
        self.nbytes = nbytes
        runtime.keep(self, is_memory=True)

    @classmethod
    def allocate(cls, acl: Any, context: int, nbytes: int, what: str, path: str) -> DeviceMemory:
        """Allocate; the device's context is the calling thread's current one.

        what: the use of it, for the error; path: the model's name, "" for none.
        """
        nbytes = max(nbytes, SMALLEST)
        pointer = got(
            acl.rt.malloc(nbytes, HUGE_FIRST),
            f"allocate {nbytes} bytes for {what}",
            path,
            BackendUnavailable,
        )
        return cls(acl, context, pointer, nbytes)

    def abandon(self) -> None:
        """Never free it: something that could not be stopped may still use it."""
        self.pointer = 0

    def close(self) -> None:
        """Free it, in whatever thread; twice does nothing, and so does the end of ACL."""
        pointer, self.pointer = self.pointer, 0
        if not pointer or not runtime.is_started():
            return
        with runtime.borrowed(self._acl, self._context):
            done(self._acl.rt.free(pointer), "free device memory", otherwise=BackendUnavailable)

    def __del__(self) -> None:
        if hasattr(self, "pointer"):  # not where a signal handler raised in __init__
            with contextlib.suppress(EngineError):
                self.close()


class HostMemory:
    """Page-locked memory on the host; numpy arrays made of it keep it alive."""

    __slots__ = ("__weakref__", "_acl", "_context", "nbytes", "pointer")

    def __init__(self, acl: Any, context: int, nbytes: int) -> None:
        self._acl = acl
        self._context = context
        self.nbytes = max(nbytes, SMALLEST)
        self.pointer = 0
        self.pointer = got(
            acl.rt.malloc_host(self.nbytes),
            f"allocate {self.nbytes} bytes of page-locked memory",
            otherwise=BackendUnavailable,
        )

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.pointer, False),
        }

    def __del__(self) -> None:
        # Not freed before ACL ends, because arrays on it may be read until Python does.
        pointer, self.pointer = getattr(self, "pointer", 0), 0  # an interrupted __init__ set none
        if pointer and runtime.is_started():
            with contextlib.suppress(EngineError), runtime.borrowed(self._acl, self._context):
                self._acl.rt.free_host(pointer)


def new_buffer(
    device: Device, dtype: DType, shape: tuple[int, ...], on_host: bool
) -> DeviceBuffer | np.ndarray[Any, Any]:
    """Allocate memory for one tensor; engine_buffer says how."""
    if dtype not in NUMBERS:
        raise ValueError(
            f"Ascend devices have no {dtype} tensors; they have {', '.join(sorted(NUMBERS))}"
        )
    acl, context = runtime.use_device(device.id)
    nbytes = math.prod(shape) * dtype.bits // 8
    if on_host:
        whole = np.asarray(HostMemory(acl, context, nbytes))
        return whole[:nbytes].view(dtype.numpy).reshape(shape)
    memory = DeviceMemory.allocate(acl, context, nbytes, f"a tensor on {device}", "")
    return DeviceBuffer(memory.pointer, tuple(shape), dtype, device, owner=memory)


def left(device: Device) -> types.DeviceMemory:
    """Return a device's memory now; see engine_memory. ACL does not tell what one process has.

    Devices with HBM have no DDR for models, and those with DDR say that their HBM is of 0 bytes.
    """
    acl, _ = runtime.use_device(device.id)
    for kind in (HBM_MEMORY, DDR_MEMORY):
        free, total, code = acl.rt.get_mem_info(kind)
        if code == 0 and total:
            return types.DeviceMemory(free_bytes=free, used_bytes=total - free)
    done(code, f"read the memory of {device}", otherwise=BackendUnavailable)
    return types.DeviceMemory()


def is_page_locked(array: np.ndarray[Any, Any]) -> bool:
    """Return whether an array lies in HostMemory: only from there are copies asynchronous."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, HostMemory)
