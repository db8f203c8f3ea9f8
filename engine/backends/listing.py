"""All backends that are installed or belong to this project, with their states."""

from __future__ import annotations

from engine.backends.discovery import OFFICIAL, known, record
from engine.backends.probe import TIME_LIMIT_S, probe_all
from engine.backends.records import BackendRecord, BackendState
from engine.config.text import aligned


class Backends(tuple[BackendRecord, ...]):
    """Records of backends; prints as a table: state, devices, or the reason and what to do."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(aligned([found.name, _state(found), _about(found)] for found in self))


def _state(record: BackendRecord) -> str:
    return record.state.replace("_", " ")


def _about(record: BackendRecord) -> str:
    if record.state is BackendState.READY and record.devices is not None:
        return ", ".join(f"{found.device} ({found.name})" for found in record.devices.found)
    return "; ".join(filter(None, (record.reason, record.fix)))


def backends(time_limit_s: float = TIME_LIMIT_S) -> Backends:
    """Return the record of each backend, those that are installed first, by name.

    Each is looked at in a process of its own, so that one that crashes takes nothing with it.
    time_limit_s: how long such a process may take.
    """
    found = {backend.name: backend for backend in probe_all(known(), time_limit_s)}
    for name in OFFICIAL.values():
        found.setdefault(name, record(name))
    return Backends(
        sorted(
            found.values(),
            key=lambda backend: (backend.state is BackendState.NOT_INSTALLED, backend.name),
        )
    )
