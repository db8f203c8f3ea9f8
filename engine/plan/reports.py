"""Reports of what the parts of a plan take: memory, and the times of their kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from engine.backends.attribution import attribute_errors_to
from engine.types import Capability, Device, DeviceBuffer, KernelTime, MemoryReport, Value

if TYPE_CHECKING:
    from engine.backends import Backend

PartReports: TypeAlias = list[tuple[str, Device, MemoryReport]]
"""See Plan.memory."""


KernelTimes: TypeAlias = list[tuple[str, Device, KernelTime]]
"""See Plan.profile."""


@runtime_checkable
class InParts(Protocol):
    """An executable of plan/, which knows what its parts take."""

    def memory_by_part(self) -> PartReports:
        """See Plan.memory."""

    def profile_by_part(self) -> KernelTimes:
        """See Plan.profile."""


def part_memory(backend: Backend, executable: Any, device: Device) -> PartReports:
    """Return what one executable takes, by device where it can tell."""
    with attribute_errors_to(backend, "memory"):
        if backend.can(Capability.SEVERAL_DEVICES) and hasattr(executable, "memory_by_device"):
            return [(backend.name, *found) for found in executable.memory_by_device().items()]
        return [(backend.name, device, executable.memory())]


def part_profile(backend: Backend, executable: Any, device: Device) -> KernelTimes:
    """Return the times of one executable's kernels; none of a backend that cannot tell."""
    if backend.lacks(Capability.PROFILE, device):
        return []
    with attribute_errors_to(backend, "profile"):
        return [(backend.name, device, time) for time in executable.profile()]


def total(reports: Iterable[MemoryReport]) -> MemoryReport:
    """Return the sum of reports."""
    return MemoryReport(*map(sum, zip(*map(astuple, (MemoryReport(), *reports)), strict=True)))


def held_by_core(values: Iterable[Value]) -> PartReports:
    """Return what values take that the core holds, as Plan.memory does: by device."""
    sizes: dict[Device, int] = {}
    for value in values:
        device = value.device if isinstance(value, DeviceBuffer) else Device("cpu")
        sizes[device] = sizes.get(device, 0) + getattr(value, "nbytes", 0)
    return [("", device, MemoryReport(weights_bytes=size)) for device, size in sizes.items()]
