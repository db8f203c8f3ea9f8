"""The six states of a backend, and its record, which every command and error shows."""

from __future__ import annotations

from enum import StrEnum

from engine.types import BackendInfo, Devices
from engine.value import value


class BackendState(StrEnum):
    """The state of a backend on this machine."""

    NOT_INSTALLED = "not_installed"
    DISABLED = "disabled"
    INCOMPATIBLE = "incompatible"
    BROKEN = "broken"
    NO_DEVICE = "no_device"
    READY = "ready"


@value(kw_only=True)
class BackendRecord:
    """All that is known of one backend: its state, and what to do when that is not READY."""

    name: str
    state: BackendState
    distribution: str = ""
    version: str = ""
    info: BackendInfo | None = None
    devices: Devices | None = None
    reason: str = ""
    fix: str = ""
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        verb = "has" if self.state is BackendState.NO_DEVICE else "is"
        text = f"backend {self.name!r} {verb} {self.state.replace('_', ' ')}"
        if self.reason:
            text += f": {self.reason}"
        return f"{text}; {self.fix}" if self.fix else text

    def __repr__(self) -> str:
        return f"<BackendRecord {self.name!r}: {self.state.replace('_', ' ')}>"
