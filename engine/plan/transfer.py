"""Bring values to where the next reader can take them: host arrays and buffers of devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from engine.backends import Backend
from engine.errors import InputError
from engine.plan.attribution import attribute_errors_to
from engine.types import Capability, Device, DeviceBuffer, DType, TensorSpec, Value

Array: TypeAlias = "np.ndarray[Any, Any]"


def takes_buffers(backend: Backend, device: Device) -> bool:
    """Return whether a backend takes and gives values in the memory of `device`."""
    return not backend.lacks(Capability.DEVICE_BUFFERS, device)


def may_overlap(one: object, other: object) -> bool:
    """Return whether two tensors may have memory in common; False for what is no tensor."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.may_share_memory(one, other)
    if isinstance(one, DeviceBuffer) and isinstance(other, DeviceBuffer):
        first, second = sorted((one, other), key=lambda buffer: buffer.pointer)
        is_beside = first.pointer + first.nbytes <= second.pointer
        return one.device == other.device and not is_beside and second.nbytes > 0
    return False


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
        with attribute_errors_to(self.backend, "engine_copy"):
            done = self._copy(source, target, None)
            if done is not True:
                raise TypeError(f"it returned {done!r}, expected True")

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


class Transfer:
    """The memory of the devices that a plan runs on. Any thread may call any method."""

    def __init__(self, backends: Iterable[tuple[Backend, Device]]) -> None:
        self._memory: dict[Device, Memory] = {
            device: Memory(backend, device)
            for backend, device in backends
            if takes_buffers(backend, device)
        }

    @property
    def devices(self) -> Mapping[Device, Memory]:
        """Return the devices whose memory values can be in."""
        return self._memory

    def to_host(self, value: Value) -> Value:
        """Return a DeviceBuffer's contents as a new array, anything else as it is."""
        if not isinstance(value, DeviceBuffer):
            return value
        return self._of(value.device).to_host(value)

    def to_device(self, value: Value, device: Device, name: str) -> DeviceBuffer:
        """Return a new buffer on `device` with the contents of a tensor.

        name: how an InputError calls the value, which can be on no device.
        """
        memory = self._of(device)
        if isinstance(value, DeviceBuffer) and value.device != device:
            value = self.to_host(value)
        is_array = isinstance(value, np.ndarray) and not value.dtype.hasobject
        if not is_array and not isinstance(value, DeviceBuffer):
            kind = "text" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
            raise InputError(
                f"{name!r} is {kind}, which cannot be put on {device}; leave it on the host", name
            )
        assert isinstance(value, np.ndarray | DeviceBuffer)
        return memory.to_device(value)

    def fill(self, target: Value, value: Value, spec: TensorSpec) -> None:
        """Copy `value` into the caller's buffer for output `spec`; InputError unless it fits."""
        assert isinstance(target, np.ndarray | DeviceBuffer)
        if not isinstance(value, np.ndarray | DeviceBuffer) or target.shape != value.shape:
            shape = list(getattr(value, "shape", ()))
            raise InputError(
                f"output {spec.name!r}: the result has shape {shape}, but the buffer "
                f"given for it {list(target.shape)}",
                spec.name,
            )
        if isinstance(target, np.ndarray):
            if isinstance(value, np.ndarray):
                target[...] = value
            else:
                self._of(value.device).copy(value, target)
            return
        if isinstance(value, DeviceBuffer) and value.device != target.device:
            value = self._of(value.device).to_host(value)
        self._of(target.device).copy(value, target)

    def _of(self, device: Device) -> Memory:
        memory = self._memory.get(device)
        if memory is None:
            raise InputError(
                f"a value is in memory of {device}, where nothing of this model runs; pass an "
                f"array, or a buffer on one of: {', '.join(map(str, self._memory)) or 'none'}"
            )
        return memory
