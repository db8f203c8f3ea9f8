"""Entry points -> opened backends.

A name becomes one of six states; `engine plugins` and the exception at use time show the same
record. Each backend is imported late, by name, into a plugin manager of its own: one that fails
cannot touch another.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from engine.backends import doors
from engine.backends.backend import Backend
from engine.backends.doors import BACKENDS
from engine.backends.entry_points import EntryPoint
from engine.backends.records import BackendRecord, BackendState, PluginRecord
from engine.errors import BackendIncompatible, BackendNotInstalled, BackendUnavailable, one_line
from engine.hookspecs import LEVEL
from engine.host.interrupts import pass_interrupt

GROUP = BACKENDS.group

open_backends: dict[str, Backend] = {}


def open_backend(name: str, points: Sequence[EntryPoint] | None = None) -> Backend:
    """Import backend `name`, unless that is done already, and return it with its devices proven.

    points: those that have just been found of this contract; None to look for them.
    Raises BackendNotInstalled, BackendIncompatible or BackendUnavailable with the reason and the
    step that helps.
    """
    opened = open_backends.get(name)
    if opened is not None and not _is_disabled(name):
        return opened
    found, backend = resolve(name, points=points)
    if backend is None or found.state is not BackendState.READY:
        raise error_of(found)
    return open_backends.setdefault(name, backend)


def record(name: str) -> BackendRecord:
    """Return the record of backend `name`, found out in this process; never raises.

    A plugin or driver that crashes or hangs takes the process with it: see `probe`.
    """
    return resolve(name)[0]


def known() -> list[str]:
    """Return the names of the installed backends, of this contract version or another."""
    return doors.known(BACKENDS)


def installed() -> tuple[str, ...]:
    """Return the names of the backends installed for this contract, without importing any."""
    return doors.names(BACKENDS)


def installed_points() -> tuple[EntryPoint, ...]:
    """Return the entry points of the backends installed for this contract."""
    return doors.points(BACKENDS)


def forget(name: str) -> None:
    """Drop an opened backend, so that the next open looks again. Models keep what they have.

    For tests and for plugins installed while the process runs.
    """
    open_backends.pop(name, None)


# ------------------------------------------------------------------------------------ resolving


def resolve(
    name: str, look_for_devices: bool = True, points: Sequence[EntryPoint] | None = None
) -> tuple[BackendRecord, Backend | None]:
    """Decide a backend's state, and give the backend itself where it can be opened.

    points: see open_backend.
    """
    points = doors.points_of(name, installed_points() if points is None else points)
    if not points:
        from engine.backends.advice import absent_record  # rare

        return absent_record(name), None
    facts: dict[str, Any] = {"name": name, **points[0].owner()}
    if _is_disabled(name):
        return BackendRecord(
            state=BackendState.DISABLED,
            reason="ENGINE_DISABLED_BACKENDS names it",
            fix=f"remove {name!r} from ENGINE_DISABLED_BACKENDS",
            **facts,
        ), None
    backend = open_backends.get(name) if len(points) == 1 else None
    if backend is None:
        found, plugin = doors.resolve(BACKENDS, name, points)
        if found.state is not BackendState.READY:
            return _of_backend(found), None
        try:
            backend = Backend(name, plugin, [])
        except BaseException as error:
            pass_interrupt(error)
            if newer := doors.newer_contract(BACKENDS, points[0], _first_of(plugin, error)):
                return _of_backend(newer), None
            return _broken(points[0], f"{points[0].value!r} is not a backend of this contract: "
                                      f"{one_line(error)}"), None  # fmt: skip
    facts |= {"info": backend.info, "warnings": backend.warnings}
    if not look_for_devices:
        return BackendRecord(state=BackendState.READY, **facts), backend
    try:
        devices = backend.devices()
        is_there = bool(tuple(devices.found))
    except BaseException as error:
        pass_interrupt(error)
        return _broken(points[0], f"engine_devices raised {one_line(error)}", **facts), None
    facts["devices"] = devices
    if not is_there:
        return BackendRecord(
            state=BackendState.NO_DEVICE, reason=devices.reason, fix=devices.fix, **facts
        ), None
    return BackendRecord(state=BackendState.READY, **facts), backend


def _first_of(plugin: object, error: BaseException) -> BaseException:
    """Return NewerContract where a plugin's manifest says so, or else the error itself.

    A hook of which this core does not know an argument fails before the manifest is asked for.
    """
    from engine.backends.level import NewerContract  # rare

    try:
        level = plugin.engine_backend().level  # type: ignore[attr-defined]
        return NewerContract(level) if level > LEVEL else error
    except BaseException as second:  # also SystemExit; the first error says what is wrong
        pass_interrupt(second)
        return error


def _is_disabled(name: str) -> bool:
    text = os.environ.get("ENGINE_DISABLED_BACKENDS", "")
    if not text:
        return False
    from engine.backends.advice import disabled  # rare

    return name in disabled(text)


def crashed(name: str, reason: str) -> BackendRecord:
    """Return the record of a backend whose probe, in a process of its own, did not come back."""
    return _of_backend(doors.crashed(BACKENDS, name, reason))


def _broken(point: EntryPoint, reason: str, **facts: Any) -> BackendRecord:
    return _of_backend(doors.broken(BACKENDS, point.name, reason, point=point), **facts)


def _of_backend(found: PluginRecord, **facts: Any) -> BackendRecord:
    values = {field.name: getattr(found, field.name) for field in fields(found)}
    return BackendRecord(**{**values, **facts})


def error_of(found: BackendRecord) -> Exception:
    """Return the exception that says why a backend cannot be used."""
    if found.state is BackendState.NOT_INSTALLED:
        return BackendNotInstalled(str(found), found.name, installed())
    if found.state is BackendState.INCOMPATIBLE:
        return BackendIncompatible(str(found), found.name)
    return BackendUnavailable(str(found), found.name)
