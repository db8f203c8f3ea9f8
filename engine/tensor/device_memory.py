"""A backend's memory on a device: allocated and copied by its hooks."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from engine.backends import Backend
from engine.backends.attribution import attribute_errors_to
from engine.errors import InputError
from engine.types import Capability, Device, DeviceBuffer, DType

Array: TypeAlias = "np.ndarray[Any, Any]"

REPEATED = "the buffer lie on each other in memory, so that it cannot be filled; make it contiguous"


def may_overlap(one: object, other: object) -> bool:
    """Return whether two tensors may have memory in common; False for what is no tensor."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.may_share_memory(one, other)
    if isinstance(one, DeviceBuffer) and isinstance(other, DeviceBuffer):
        (_, end), (begin, _) = sorted(map(_extent, (one, other)))
        return one.device == other.device and end > begin and min(one.nbytes, other.nbytes) > 0
    return False


def repeats(buffer: DeviceBuffer) -> bool:
    """Return whether several elements of a buffer may be one place in memory, as for a stride of 0.

    Such a buffer can be read, but not filled.
    """
    dims = zip(buffer.shape, buffer.strides or ())
    extent = 0  # from the first element to the last, along the axes so far
    for step, dim in sorted((abs(step), dim) for dim, step in dims if dim > 1):
        if step <= extent:
            return 0 not in buffer.shape
        extent += (dim - 1) * step
    return False


def _extent(buffer: DeviceBuffer) -> tuple[int, int]:
    """Return where a buffer's first byte is, and the one after its last."""
    begin = buffer.pointer + buffer.offset_bytes
    if buffer.strides is None:
        return begin, begin + buffer.nbytes
    size = (buffer.dtype.bits + 7) // 8
    steps = [(dim - 1) * step * size for dim, step in zip(buffer.shape, buffer.strides)]
    below, above = (sum(step for step in steps if (step < 0) == is_below) for is_below in (1, 0))
    return begin + below, begin + above + size


class Memory:
    """A backend's memory on one device. Any thread may call any method."""

    def __init__(self, backend: Backend, device: Device) -> None:
        self.backend = backend
        self.device = device
        self._allocate = backend.bind("engine_buffer")
        self._copy = backend.bind("engine_copy")

    def allocate(self, dtype: DType, shape: tuple[int, ...]) -> DeviceBuffer:
        """Return new memory, whose contents are undefined."""
        if dtype is DType.STRING:
            raise InputError(f"strings cannot be put on {self.device}; leave them on the host")
        with attribute_errors_to(self.backend, "engine_buffer"):
            buffer = self._allocate(self.device, dtype, shape, False)
            if not isinstance(buffer, DeviceBuffer):
                raise TypeError(f"it returned {type(buffer)}, expected a DeviceBuffer")
        return buffer

    def copy(self, source: Array | DeviceBuffer, target: Array | DeviceBuffer) -> None:
        """Copy a tensor to where another of its dtype and shape is; complete on return."""
        for tensor in (source, target):
            if type(tensor) is DeviceBuffer and not tensor.is_packed:
                self._require_strides()
                if tensor is target and repeats(tensor):
                    raise InputError(f"elements of {REPEATED}")
        with attribute_errors_to(self.backend, "engine_copy"):
            done = self._copy(source, target, None)
            if done is not True:
                raise TypeError(f"it returned {done!r}, expected True")

    def _require_strides(self) -> None:
        if self.backend.lacks(Capability.STRIDED_BUFFERS, self.device):
            raise InputError(
                f"a tensor on {self.device} is not C-contiguous, and backend {self.backend.name!r} "
                "copies no such; make it so with its contiguous()"
            )

    def to_host(self, buffer: DeviceBuffer) -> Array:
        """Return a new array with what a buffer holds."""
        array: Array = np.empty(buffer.shape, buffer.dtype.numpy)
        self.copy(buffer, array)
        return array

    def to_device(self, value: Array | DeviceBuffer) -> DeviceBuffer:
        """Return a new buffer with what a tensor on the host or of this backend holds."""
        dtype = value.dtype if isinstance(value, DeviceBuffer) else DType.from_numpy(value.dtype)
        buffer = self.allocate(dtype, value.shape)
        self.copy(value, buffer)
        return buffer
