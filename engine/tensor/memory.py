"""Memory of devices, for tensors that live there: allocated and copied by the backend that has it.

A Device stands for the memory; its backend is the one that serves the device type as a target.
"""

from __future__ import annotations

import os
from typing import Any, TypeAlias, TypeVar

import numpy.typing as npt

from engine.backends import OFFICIAL, Backend, find_target, open_backend
from engine.backends.attribution import attribute_errors_to
from engine.backends.discovery import open_backends
from engine.errors import BackendError, BackendUnavailable
from engine.tensor import device_memory
from engine.types import Capability, Device, DeviceBuffer, DType

Array: TypeAlias = "npt.NDArray[Any]"
T = TypeVar("T")


class Memory(device_memory.Memory):
    """The memory of a device, and its streams. order: the backend's engine_order."""

    def __init__(self, backend: Backend, device: Device) -> None:
        super().__init__(backend, device)
        self.order = backend.bind("engine_order")


_memories: dict[Device, Memory] = {}


def memory_of(device: Device) -> Memory:
    """Return the memory of a device. Raises BackendError where there is none for tensors."""
    memory = _memories.get(device)
    if memory is not None and open_backends.get(memory.backend.name) is memory.backend:
        return memory
    backend = open_backend(find_target(device.type).backend)
    infos = backend.present
    if device not in infos:
        why = f"has no such device; it has: {', '.join(map(str, infos)) or 'none'}"
    elif not backend.can(Capability.DEVICE_BUFFERS):
        why = "copies tensors to the device itself; leave device out"
    else:
        why = infos[device].lacks.get(Capability.DEVICE_BUFFERS, "")
        why = f"has no memory for tensors there: {why}" if why else ""
    if why:
        raise BackendUnavailable(f"device '{device}': backend {backend.name!r} {why}", backend.name)
    memory = _memories[device] = Memory(backend, device)
    return memory


def device_type(name: str) -> str:
    """Return the device type that a word stands for: the API's, or a backend's name."""
    return name if name in OFFICIAL else find_target(name).device_type


def is_overridden(device_type: str) -> bool:
    """Return whether ENGINE_TARGET runs models elsewhere, so that tensors stay on the host."""
    targets = [part.strip().lower() for part in os.environ.get("ENGINE_TARGET", "").split(",")]
    targets = [target for target in targets if target]
    names = (device_type, OFFICIAL.get(device_type, device_type))
    return bool(targets) and not any(
        target.partition(":")[0] in names or _serves(target, device_type) for target in targets
    )


def _serves(target: str, device_type: str) -> bool:
    try:
        return find_target(target).device_type == device_type
    except BackendError:
        return False


def allocate(device: Device, dtype: DType, shape: tuple[int, ...]) -> DeviceBuffer:
    """Return new memory on a device, whose contents are undefined."""
    return memory_of(device).allocate(dtype, shape)


def copy(source: Array | DeviceBuffer, target: Array | DeviceBuffer) -> None:
    """Copy a tensor to where another of its dtype and shape is; complete on return."""
    if (
        isinstance(source, DeviceBuffer)
        and isinstance(target, DeviceBuffer)
        and memory_of(source.device).backend is not memory_of(target.device).backend
    ):
        source = to_host(source)  # between two vendors' devices
    device = target.device if isinstance(target, DeviceBuffer) else None
    if device is None:
        assert isinstance(source, DeviceBuffer)
        device = source.device
    memory_of(device).copy(source, target)


def to_host(buffer: DeviceBuffer) -> Array:
    """Return a new array with what a buffer holds."""
    return memory_of(buffer.device).to_host(buffer)


def to_device(value: Array | DeviceBuffer, device: Device) -> DeviceBuffer:
    """Return a new buffer on a device with what a tensor holds."""
    memory = memory_of(device)
    if isinstance(value, DeviceBuffer) and memory_of(value.device).backend is not memory.backend:
        value = to_host(value)  # between two vendors' devices
    return memory.to_device(value)


def takes_strides(device: Device) -> bool:
    """Return whether the backend that has a device's memory copies buffers with strides."""
    try:
        return not memory_of(device).backend.lacks(Capability.STRIDED_BUFFERS, device)
    except BackendError:
        return False


def packed(value: T) -> T | DeviceBuffer:
    """Return a buffer that is not packed as a packed copy, anything else as it is."""
    if isinstance(value, DeviceBuffer) and not value.is_packed:
        return to_device(value, value.device)
    return value


def order(buffer: DeviceBuffer, later: int | None) -> None:
    """Make a stream, or the calling thread, wait for what produces a buffer's contents."""
    if buffer.stream is None or buffer.stream == later:
        return
    memory = memory_of(buffer.device)
    with attribute_errors_to(memory.backend, "engine_order"):
        memory.order(buffer.device, buffer.stream, later)
