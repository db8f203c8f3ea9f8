"""Bring values to where the next reader can take them: host arrays and buffers of devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from engine.backends import Backend
from engine.errors import InputError
from engine.tensor.device_memory import Memory
from engine.types import Capability, Device, DeviceBuffer, TensorSpec, Value


def takes_buffers(backend: Backend, device: Device) -> bool:
    """Return whether a backend takes and gives values in the memory of `device`."""
    return not backend.lacks(Capability.DEVICE_BUFFERS, device)


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

    def packed(self, buffer: DeviceBuffer) -> DeviceBuffer:
        """Return a buffer itself, or a packed copy: another backend may read it."""
        return buffer if buffer.is_packed else self._of(buffer.device).to_device(buffer)

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
