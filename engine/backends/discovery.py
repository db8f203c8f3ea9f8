"""Entry points -> opened backends.

One resolver finds what a name stands for and puts it into one of six states; `engine plugins` and
the exception at use time show the same record. Each backend is imported late,
by name, into a plugin manager of its own: one that fails cannot touch another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from engine.backends.backend import Backend
from engine.backends.entry_points import EntryPoint, entry_points
from engine.backends.records import BackendRecord, BackendState
from engine.errors import (
    BackendIncompatible,
    BackendNotInstalled,
    BackendUnavailable,
    one_line,
    shortened,
)
from engine.host.interrupts import raised_by_handler

GROUP = "engine.backends.v1"
ANY_VERSION = "engine.backends.v"

# The extra that installs the backend of each device type the API names.
EXTRAS = {"cpu": "cpu", "gpu": "gpu-trt", "ascend": "ascend-ge"}
OFFICIAL = {"cpu": "cpu", "gpu": "gpu_trt", "ascend": "ascend_ge"}
"""This project's own backends, by the device type that each serves."""
OWN = frozenset((*OFFICIAL.values(), "reference"))

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
    return sorted({point.name for point in _found(ANY_VERSION)})


def installed() -> tuple[str, ...]:
    """Return the names of the backends installed for this contract, without importing any."""
    return tuple(sorted({point.name for point in installed_points()}))


def installed_points() -> tuple[EntryPoint, ...]:
    """Return the entry points of the backends installed for this contract."""
    return tuple(_found(GROUP))


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
    points = points_of(GROUP, name, points)
    if not points:
        from engine.backends.advice import absent_record  # rare

        return absent_record(name), None
    facts: dict[str, Any] = {"name": name, **points[0].owner()}

    def broken(reason: str, fix: str = "") -> tuple[BackendRecord, None]:
        return _broken(facts, reason, fix), None

    if _is_disabled(name):
        return BackendRecord(
            state=BackendState.DISABLED,
            reason="ENGINE_DISABLED_BACKENDS names it",
            fix=f"remove {name!r} from ENGINE_DISABLED_BACKENDS",
            **facts,
        ), None
    if len(points) > 1:
        owners = ", ".join(sorted(point.owner().get("distribution", "?") for point in points))
        return broken(f"several distributions offer it: {owners}", "uninstall all but one")
    warnings: list[str] = []
    backend = open_backends.get(name)
    if backend is None:
        try:
            plugin = points[0].load()
        except BaseException as error:  # SystemExit, or a panic of a compiled extension
            if raised_by_handler(error):
                raise
            return broken(f"importing {points[0].value!r} failed: {one_line(error)}")
        try:
            backend = Backend(name, plugin, warnings)
        except BaseException as error:
            if raised_by_handler(error):
                raise
            return broken(f"{points[0].value!r} is not a backend of this contract: "
                          f"{one_line(error)}")  # fmt: skip
    facts["info"] = backend.info
    facts["warnings"] = backend.warnings
    if not look_for_devices:
        return BackendRecord(state=BackendState.READY, **facts), backend
    try:
        devices = backend.devices()
        found = tuple(devices.found)
    except BaseException as error:
        if raised_by_handler(error):
            raise
        return broken(f"engine_devices raised {one_line(error)}")
    facts["devices"] = devices
    if not found:
        return BackendRecord(
            state=BackendState.NO_DEVICE, reason=devices.reason, fix=devices.fix, **facts
        ), None
    return BackendRecord(state=BackendState.READY, **facts), backend


def _is_disabled(name: str) -> bool:
    text = os.environ.get("ENGINE_DISABLED_BACKENDS", "")
    if not text:
        return False
    from engine.backends.advice import disabled  # rare

    return name in disabled(text)


def crashed(name: str, reason: str) -> BackendRecord:
    """Return the record of a backend whose probe, in a process of its own, did not come back."""
    points = points_of(GROUP, name)
    return _broken({"name": name, **(points[0].owner() if points else {})}, reason)


def _broken(facts: dict[str, Any], reason: str, fix: str = "") -> BackendRecord:
    fix = fix or f"run: engine doctor {facts['name']}"
    return BackendRecord(state=BackendState.BROKEN, reason=reason, fix=fix, **facts)


def _found(group: str) -> Iterator[EntryPoint]:
    """Yield the entry points of `group`, or of every version's with ANY_VERSION."""
    # Somebody's damaged metadata must not hide the others.
    for point in entry_points(ANY_VERSION, warn_once):
        if group in (point.group, ANY_VERSION):
            yield point


def points_of(group: str, name: str, found: Iterable[EntryPoint] | None = None) -> list[EntryPoint]:
    """Return those of that name; of a distribution that is found twice, the first on the path."""
    points: dict[tuple[str, str], EntryPoint] = {}
    for point in _found(group) if found is None else found:
        if point.name == name:
            points.setdefault((point.group, point.owner().get("distribution", "")), point)
    return list(points.values())


def error_of(found: BackendRecord) -> Exception:
    """Return the exception that says why a backend cannot be used."""
    if found.state is BackendState.NOT_INSTALLED:
        return BackendNotInstalled(str(found), found.name, installed())
    if found.state is BackendState.INCOMPATIBLE:
        return BackendIncompatible(str(found), found.name)
    return BackendUnavailable(str(found), found.name)


_warned: set[str] = set()


def warn_once(text: str) -> None:
    """Log a warning, unless this process has logged the same one before."""
    if text not in _warned:
        _warned.add(text)
        import logging  # rare

        logging.getLogger("engine").warning("%s", shortened(text))
