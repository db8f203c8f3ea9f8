"""Devices of this machine, as the backends find them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.config.text import aligned, size

__all__ = ["FoundDevice", "FoundDevices", "devices"]


@dataclass(frozen=True)
class FoundDevice:
    """A device that a backend can use now.

    device: as a target and number, "gpu:0". memory_bytes: None where unknown. lacks: what the
    backend cannot do on it of what it announces, and why. free_bytes: memory that was free when the
    device was looked at, None where the backend does not tell. dtypes: the element types that it
    computes with; () where the backend does not say.
    """

    device: str
    backend: str
    name: str
    memory_bytes: int | None = None
    lacks: Mapping[str, str] = field(default_factory=dict)
    free_bytes: int | None = None
    dtypes: tuple[str, ...] = ()


class FoundDevices(tuple[FoundDevice, ...]):
    """Devices; prints as a table: device, backend, name, memory."""

    __slots__ = ()

    def __repr__(self) -> str:
        return (
            "\n".join(
                aligned(
                    [
                        found.device,
                        found.backend,
                        found.name,
                        "" if found.memory_bytes is None else size(found.memory_bytes),
                        "" if found.free_bytes is None else f"{size(found.free_bytes)} free",
                    ]
                    for found in self
                )
            )
            or "no devices; engine.backends() says why"
        )


def devices() -> FoundDevices:
    """Return the devices that models can run on here, by backend.

    Why one is missing is in `engine.backends()`, and in `engine.doctor()` what would help.
    """
    from engine.backends.isolation.listing import backends

    return FoundDevices(
        FoundDevice(
            str(found.device),
            backend.name,
            found.name,
            found.memory_bytes,
            {str(flag): why for flag, why in found.lacks.items()},
            memory.free_bytes if (memory := backend.memory.get(found.device)) else None,
            tuple(sorted(map(str, found.dtypes))),
        )
        for backend in backends()
        for found in (backend.devices.found if backend.devices else ())
    )
