"""Entry points -> opened backends.

One resolver finds what a name stands for and puts it into one of six states; `engine plugins` and
the exception at use time show the same record. Each backend is imported late,
by name, into a plugin manager of its own: one that fails cannot touch another.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

from importlib_metadata import EntryPoint, distributions

from engine.backends.backend import Backend
from engine.backends.records import BackendRecord, BackendState
from engine.errors import BackendIncompatible, BackendNotInstalled, BackendUnavailable, one_line
from engine.options import nearest

GROUP = "engine.backends.v1"
_ANY_VERSION = "engine.backends.v"

# The extra that installs the backend of each device type the API names.
EXTRAS = {"cpu": "cpu", "gpu": "gpu-trt", "ascend": "ascend-ge"}
OFFICIAL = {"cpu": "cpu", "gpu": "gpu_trt", "ascend": "ascend_ge"}
"""This project's own backends, by the device type that each serves."""

# What people write for a device that the API calls otherwise.
SYNONYMS = {
    "cpu": ("x86", "arm", "host", "onnxruntime", "ort"),
    "gpu": ("cuda", "nvidia", "tensorrt", "trt", "gpu_trt"),
    "ascend": ("npu", "cann", "acl", "ascend310", "ascend310p", "ascend910", "ascend910b", "ge"),
}

open_backends: dict[str, Backend] = {}


def open_backend(name: str) -> Backend:
    """Import backend `name`, unless that is done already, and return it with its devices proven.

    Raises BackendNotInstalled, BackendIncompatible or BackendUnavailable with the reason and the
    step that helps.
    """
    opened = open_backends.get(name)
    if opened is not None and not _is_disabled(name):
        return opened
    found, backend = resolve(name)
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
    return sorted({point.name for point in _found(_ANY_VERSION)})


def installed() -> tuple[str, ...]:
    """Return the names of the backends installed for this contract, without importing any."""
    return tuple(sorted({point.name for point in _found(GROUP)}))


def forget(name: str) -> None:
    """Drop an opened backend, so that the next open looks again. Models keep what they have.

    For tests and for plugins installed while the process runs.
    """
    open_backends.pop(name, None)


# ------------------------------------------------------------------------------------ resolving


def resolve(name: str, look_for_devices: bool = True) -> tuple[BackendRecord, Backend | None]:
    """Decide a backend's state, and give the backend itself where it can be opened."""
    points = _points(GROUP, name)
    if not points:
        return absent_record(name), None
    facts: dict[str, Any] = {"name": name, **_owner(points[0])}

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
        owners = ", ".join(sorted(_owner(point).get("distribution", "?") for point in points))
        return broken(f"several distributions offer it: {owners}", "uninstall all but one")
    warnings: list[str] = []
    backend = open_backends.get(name)
    if backend is None:
        try:
            plugin = points[0].load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, or a panic of a compiled extension
            return broken(f"importing {points[0].value!r} failed: {one_line(error)}")
        try:
            backend = Backend(name, plugin, warnings)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return broken(f"{points[0].value!r} is not a backend of this contract: "
                          f"{one_line(error)}")  # fmt: skip
    facts["info"] = backend.info
    facts["warnings"] = backend.warnings
    if not look_for_devices:
        return BackendRecord(state=BackendState.READY, **facts), backend
    try:
        devices = backend.devices()
        found = tuple(devices.found)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return broken(f"engine_devices raised {one_line(error)}")
    facts["devices"] = devices
    if not found:
        return BackendRecord(
            state=BackendState.NO_DEVICE, reason=devices.reason, fix=devices.fix, **facts
        ), None
    return BackendRecord(state=BackendState.READY, **facts), backend


def _is_disabled(name: str) -> bool:
    return name in os.environ.get("ENGINE_DISABLED_BACKENDS", "").replace(" ", "").split(",")


def crashed(name: str, reason: str) -> BackendRecord:
    """Return the record of a backend whose probe, in a process of its own, did not come back."""
    points = _points(GROUP, name)
    return _broken({"name": name, **(_owner(points[0]) if points else {})}, reason)


def _broken(facts: dict[str, Any], reason: str, fix: str = "") -> BackendRecord:
    fix = fix or f"run: engine doctor {facts['name']}"
    return BackendRecord(state=BackendState.BROKEN, reason=reason, fix=fix, **facts)


def _found(prefix: str) -> Iterator[EntryPoint]:
    """Yield the entry points of every group that is `prefix`, or begins so if it ends in "v"."""
    for dist in distributions():
        try:
            for point in dist.entry_points:
                if point.group == prefix or (prefix != GROUP and point.group.startswith(prefix)):
                    yield point
        except Exception as error:  # somebody's damaged metadata; it must not hide the others
            warn_once(f"entry points of {getattr(dist, '_path', dist)} are unreadable: "
                      f"{one_line(error)}")  # fmt: skip


def _points(prefix: str, name: str) -> list[EntryPoint]:
    """Return those of that name; of a distribution that is found twice, the first on the path."""
    points: dict[tuple[str, str], EntryPoint] = {}
    for point in _found(prefix):
        if point.name == name:
            points.setdefault((point.group, _owner(point).get("distribution", "")), point)
    return list(points.values())


def _owner(point: EntryPoint) -> dict[str, str]:
    try:
        dist = point.dist
        return {"distribution": dist.name, "version": dist.version} if dist else {}
    except Exception:  # metadata that is missing or damaged: the backend itself may be well
        return {}


def absent_record(name: str, device_type: str = "", target: str = "") -> BackendRecord:
    """Return the record of a backend that no installed distribution offers for this contract."""
    others = _points(_ANY_VERSION, name)
    if others:
        owner = _owner(others[0])
        return BackendRecord(
            name=name,
            state=BackendState.INCOMPATIBLE,
            reason=f"it speaks contract {others[0].group!r}, this core {GROUP!r}",
            fix=f"install a version of {owner.get('distribution', name)} made for this core",
            distribution=owner.get("distribution", ""),
            version=owner.get("version", ""),
        )
    kind = device_type or next((k for k, v in OFFICIAL.items() if name in (k, v)), "")
    asked = f"target {target!r}: " if target and target.lower() != name else ""
    here = ", ".join(installed()) or "none"
    near = "" if kind else nearest_target(name)
    if kind:
        fix = f'run: pip install "inference-engine[{EXTRAS[kind]}]"'
    elif near:
        fix = f"did you mean {near!r}?"
    else:
        fix = "install the distribution that offers it, or correct the name"
    return BackendRecord(
        name=name,
        state=BackendState.NOT_INSTALLED,
        reason=f"{asked}no installed distribution offers it (installed: {here})",
        fix=fix,
    )


def nearest_target(text: str) -> str:
    """Return the target that `text` was probably meant to be, "" if there is none.

    A word of the vendor's for a device type of the API, or a name that is misspelt.
    """
    name = text.lower().partition(":")[0]
    for kind, words in SYNONYMS.items():
        if name in words:
            return kind
    return nearest(name, (*EXTRAS, *installed()))


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
        logging.getLogger("engine").warning(text)
