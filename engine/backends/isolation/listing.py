"""All backends that are installed or belong to this project, and the entries of all doors."""

from __future__ import annotations

from collections.abc import Iterable

from engine.backends.discovery import known, record
from engine.backends.doors import BACKENDS, installed_entries
from engine.backends.isolation.probe import TIME_LIMIT_S, probe_all, probe_doors
from engine.backends.names import OFFICIAL
from engine.backends.records import BackendRecord, BackendState, PluginRecord
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
    return _with_official(probe_all(known(), time_limit_s))


def plugins(time_limit_s: float = TIME_LIMIT_S) -> tuple[Backends, list[PluginRecord]]:
    """Return the record of each backend as `backends` does, and those of all other entries.

    The latter in the order of the doors, then by name; a group that is no door's comes last.
    """
    entries, strays = installed_entries()
    names = [name for door, name in entries if door is BACKENDS]
    others = [entry for entry in entries if entry[0] is not BACKENDS]
    found, records = probe_doors(names, others, time_limit_s)
    return _with_official(found), [*records, *strays]


def _with_official(records: Iterable[BackendRecord]) -> Backends:
    """Return the records and those of this project's backends that are not installed, in order."""
    found = {backend.name: backend for backend in records}
    for name in OFFICIAL.values():
        found.setdefault(name, record(name))
    return Backends(
        sorted(
            found.values(),
            key=lambda backend: (backend.state is BackendState.NOT_INSTALLED, backend.name),
        )
    )
