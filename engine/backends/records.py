"""The six states of an entry of a door, and its record, which every command and error shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine.types import BackendInfo, Device, DeviceMemory, Devices


class BackendState(StrEnum):
    """The state of a backend, or of an entry of another door, on this machine."""

    NOT_INSTALLED = "not_installed"
    DISABLED = "disabled"
    INCOMPATIBLE = "incompatible"
    BROKEN = "broken"
    NO_DEVICE = "no_device"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRecord:
    """All that is known of one entry of a door: its state, and what to do when it is not READY.

    kind: the door's, as "format".
    """

    kind: str
    name: str
    state: BackendState
    distribution: str = ""
    version: str = ""
    reason: str = ""
    fix: str = ""
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        verb = "has" if self.state is BackendState.NO_DEVICE else "is"
        text = f"{self.kind} {self.name!r} {verb} {self.state.replace('_', ' ')}"
        if self.reason:
            text += f": {self.reason}"
        return f"{text}; {self.fix}" if self.fix else text

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.state.replace('_', ' ')}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRecord(PluginRecord):
    """The record of a backend, with its manifest and its devices.

    memory: of those devices whose memory the backend tells, when they were looked at; of devices
    that were found in this process, none.
    """

    kind: str = "backend"
    info: BackendInfo | None = None
    devices: Devices | None = None
    memory: Mapping[Device, DeviceMemory] = field(default_factory=dict)

    __repr__ = PluginRecord.__repr__
