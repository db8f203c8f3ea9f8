"""Bring values to where the next reader can take them: host arrays and buffers of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.backends import Backend
from engine.errors import InputError, ModelError
from engine.plan.compile import attribute_errors_to
from engine.types import Capability, Device, DeviceBuffer, DType, TensorSpec, Value


def takes_buffers(backend: Backend, device: Device) -> bool:
    """Return whether a backend takes and gives values in the memory of `device`."""
    return not backend.lacks(Capability.DEVICE_BUFFERS, device)


@dataclass(frozen=True, slots=True)
class Memory:
    """A backend's memory on one device. copy, allocate: its engine_copy and engine_buffer."""

    backend: Backend
    copy: Callable[[Any, Any, int | None], bool]
    allocate: Callable[[Device, DType, tuple[int, ...], bool], Any]


class Transfer:
    """The memory of the devices that a plan runs on. Any thread may call any method."""

    def __init__(self, backends: Iterable[tuple[Backend, Device]]) -> None:
        self._memory: dict[Device, Memory] = {
            device: Memory(backend, backend.bind("engine_copy"), backend.bind("engine_buffer"))
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
        array = np.empty(value.shape, value.dtype.numpy)
        self._copy(value, array, self._of(value.device))
        return array

    def to_device(self, value: Value, device: Device) -> DeviceBuffer:
        """Return a new buffer on `device` with the contents of a tensor."""
        memory = self._of(device)
        if isinstance(value, DeviceBuffer) and value.device != device:
            value = self.to_host(value)
        if isinstance(value, DeviceBuffer):
            dtype = value.dtype
        elif isinstance(value, np.ndarray):
            dtype = DType.from_numpy(value.dtype)
        else:
            raise InputError(f"a value of type {type(value).__name__} cannot be put on {device}")
        with attribute_errors_to(memory.backend, "engine_buffer"):
            buffer: DeviceBuffer = memory.allocate(device, dtype, value.shape, False)
        self._copy(value, buffer, memory)
        return buffer

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
                self._copy(value, target, self._of(value.device))
            return
        if isinstance(value, DeviceBuffer) and value.device != target.device:
            value = self.to_host(value)
        self._copy(value, target, self._of(target.device))

    def _of(self, device: Device) -> Memory:
        memory = self._memory.get(device)
        if memory is None:
            raise InputError(
                f"a value is in memory of {device}, where nothing of this model runs; pass an "
                f"array, or a buffer on one of: {', '.join(map(str, self._memory)) or 'none'}"
            )
        return memory

    def _copy(self, source: Value, target: Value, memory: Memory) -> None:
        with attribute_errors_to(memory.backend, "engine_copy"):
            if memory.copy(source, target, None) is not True:
                raise ModelError(f"backend {memory.backend.name!r} did not copy a value")
