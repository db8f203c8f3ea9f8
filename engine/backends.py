"""Entry points -> one opened backend.

One resolver finds what a name stands for and puts it into one of six states; `engine plugins` and
the exception at use time show the same record. Each backend is imported late,
by name, into a plugin manager of its own: one that fails cannot touch another.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from inspect import signature
from typing import TYPE_CHECKING, Any

import pluggy
from importlib_metadata import EntryPoint, distributions

from engine import hookspecs
from engine.errors import BackendIncompatible, BackendNotInstalled, BackendUnavailable, one_line
from engine.options import nearest
from engine.types import (
    BackendInfo,
    Check,
    CompileOptions,
    Devices,
    Executable,
    LoadedModel,
    ModelSource,
)

if TYPE_CHECKING:
    from engine.types import Values

GROUP = "engine.backends.v1"
_ANY_VERSION = "engine.backends.v"

# The extra that installs the backend of each device type the API names.
_EXTRAS = {"cpu": "cpu", "gpu": "gpu-trt", "ascend": "ascend-ge"}
OFFICIAL = {"cpu": "cpu", "gpu": "gpu_trt", "ascend": "ascend_ge"}
"""This project's own backends, by the device type that each serves."""


class BackendState(StrEnum):
    """What has become of a backend on this machine."""

    NOT_INSTALLED = "not_installed"
    DISABLED = "disabled"
    INCOMPATIBLE = "incompatible"
    BROKEN = "broken"
    NO_DEVICE = "no_device"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
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


class Backend:
    """An opened backend: its hooks as plain functions, bound once.

    A hook call through pluggy costs about 1 us, a bound function a twentieth of that.
    """

    def __init__(self, name: str, plugin: object, warnings: list[str]) -> None:
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        manager.register(plugin, name)
        warnings += _unknown_hooks(manager)
        missing = [
            hook for hook in hookspecs.REQUIRED if not getattr(manager.hook, hook).get_hookimpls()
        ]
        if missing:
            raise TypeError(f"it does not implement {', '.join(missing)}")
        self.name = name
        self.hook = manager.hook
        self.warnings = tuple(warnings)
        self.info: BackendInfo = self.bind("engine_backend")()
        if not isinstance(self.info, BackendInfo):
            raise TypeError(f"engine_backend returned {self.info!r}, expected a BackendInfo")
        _check_info(self.info)
        self.devices: Callable[[], Devices] = self.bind("engine_devices")
        self.load: Callable[[ModelSource, CompileOptions], LoadedModel] = self.bind("engine_load")
        self.compile: Callable[[LoadedModel, CompileOptions], Executable] = self.bind(
            "engine_compile"
        )
        self.predict: Callable[[Any, Values, Values | None, float | None], Values] = self.bind(
            "engine_predict"
        )

    def diagnose(self) -> Sequence[Check]:
        """The backend's own checks of this machine; none if it has none."""
        if not self.hook.engine_diagnose.get_hookimpls():
            return ()
        checks: Sequence[Check] = self.bind("engine_diagnose")()
        return checks

    def can(self, capability: str) -> bool:
        """Whether the backend announces a capability."""
        return capability in self.info.capabilities

    def bind(self, hook: str) -> Callable[..., Any]:
        """The implementation of `hook` as a function of the spec's arguments, in their order."""
        caller = getattr(self.hook, hook)
        implementations = caller.get_hookimpls()
        if not implementations:
            raise BackendUnavailable(
                f"backend {self.name!r} does not implement {hook}; it announces: "
                f"{', '.join(sorted(self.info.capabilities)) or 'nothing'}",
                self.name,
            )
        function: Callable[..., Any] = implementations[0].function
        given = tuple(signature(getattr(hookspecs, hook)).parameters)
        # Arguments with defaults count too: so a plugin may span versions of the contract.
        named = (*implementations[0].argnames, *implementations[0].kwargnames)
        taken = tuple(name for name in named if name in given)
        if taken == given:
            return function
        places = tuple(given.index(name) for name in taken)
        return lambda *arguments: function(*[arguments[place] for place in places])


def _check_info(info: BackendInfo) -> None:
    for field in ("name", "version"):
        if not isinstance(getattr(info, field), str):
            raise TypeError(f"BackendInfo.{field} is {getattr(info, field)!r}, expected a str")
    for field in ("device_types", "providers", "formats", "completed_by"):
        values = getattr(info, field)
        if not isinstance(values, tuple) or not all(isinstance(value, str) for value in values):
            raise TypeError(f"BackendInfo.{field} is {values!r}, expected a tuple of str")
    for field in ("suffixes", "options"):
        values = getattr(info, field)
        if not isinstance(values, Mapping) or not all(
            isinstance(text, str) for item in values.items() for text in item
        ):
            raise TypeError(f"BackendInfo.{field} is {values!r}, expected a dict of str to str")
    if not info.device_types:
        raise TypeError("BackendInfo.device_types is empty, expected what it serves")
    if not isinstance(info.capabilities, frozenset | set):
        raise TypeError(f"BackendInfo.capabilities is {info.capabilities!r}, expected a frozenset")


_opened: dict[str, Backend] = {}


def open_backend(name: str) -> Backend:
    """Import backend `name`, unless that is done already, and return it with its devices proven.

    Raises BackendNotInstalled, BackendIncompatible or BackendUnavailable with the reason and the
    step that helps.
    """
    opened = _opened.get(name)
    if opened is not None and not _is_disabled(name):
        return opened
    found, backend = resolve(name)
    if backend is None or found.state is not BackendState.READY:
        raise _error(found)
    return _opened.setdefault(name, backend)


def record(name: str) -> BackendRecord:
    """What is known of backend `name`, found out in this process; never raises.

    A plugin or driver that crashes or hangs takes the process with it: see `engine.probe`.
    """
    return resolve(name)[0]


def known() -> list[str]:
    """The names of the installed backends, of this contract version or another."""
    return sorted({point.name for point in _found(_ANY_VERSION)})


def installed() -> tuple[str, ...]:
    """The names of the backends that are installed for this contract, without importing any."""
    return tuple(sorted({point.name for point in _found(GROUP)}))


def forget(name: str) -> None:
    """Close the door on an opened backend: the next open looks again. Models keep what they have.

    For tests and for plugins installed while the process runs.
    """
    _opened.pop(name, None)


# ------------------------------------------------------------------------------------- targets


@dataclass(frozen=True, slots=True)
class Target:
    """What one element of `context.target` means: a backend, the device type and its provider."""

    backend: str
    device_type: str
    provider: str = ""


def is_target(text: str) -> bool:
    """Whether `text` may stand in `context.target`: a device type of the API or a backend here."""
    name = text.lower().partition(":")[0]
    return name in _EXTRAS or name in {point.name.lower() for point in _found(GROUP)}


def find_target(text: str) -> Target:
    """The backend that serves a target: a backend's name, a device type, or "type:provider".

    A backend's own name goes first, then this project's own backend of a device type; neither
    imports any other. Only where these do not serve it is every installed backend asked what it
    serves, other people's in processes of their own, because nobody named them and one may crash;
    several that serve it are an error that lists them. A provider may also be the backend's name.
    Raises BackendError.
    """
    kind, _, provider = text.lower().partition(":")
    opened = _opened.get(kind)
    if opened is not None and not provider:  # a scan of what is installed costs milliseconds
        return Target(kind, opened.info.device_types[0])
    names = {name.lower(): name for name in installed()}
    if kind in names and not provider:
        return Target(names[kind], open_backend(names[kind]).info.device_types[0])
    asked: dict[str, BackendRecord] = {}
    for name in (kind, OFFICIAL.get(kind, ""), provider):
        if name in names:
            found = asked[names[name]] = resolve(names[name], look_for_devices=False)[0]
            if _serves(found, kind, provider):
                return _target(found, kind, provider)
    asked |= _ask([name for name in names.values() if name not in asked])
    serving = [found for _, found in sorted(asked.items()) if _serves(found, kind, "")]
    fitting = [found for found in serving if _serves(found, kind, provider)]
    if len(fitting) == 1:
        return _target(fitting[0], kind, provider)
    if not serving:
        raise _unserved(text, kind, asked)
    choices = ", ".join(
        f"{kind}:{choice}"
        for found in serving
        for choice in ((found.info and found.info.providers) or (found.name,))
    )
    problem = (
        f"is served by several backends ({', '.join(found.name for found in fitting)})"
        if fitting
        else f"names a provider {provider!r} that is not there"
    )
    raise BackendUnavailable(f"target {text!r} {problem}; choose one of: {choices}", text)


def _ask(names: Sequence[str]) -> dict[str, BackendRecord]:
    here = [name for name in names if name in _opened or name in OFFICIAL.values()]
    elsewhere = [name for name in names if name not in here]
    found = [resolve(name, look_for_devices=False)[0] for name in here]
    if elsewhere:
        from engine.probe import probe_all  # rare

        found += probe_all(elsewhere)
    return {each.name: each for each in found}


def _unserved(text: str, kind: str, asked: Mapping[str, BackendRecord]) -> Exception:
    official = OFFICIAL.get(kind, kind)
    if official in asked:
        return _error(asked[official])
    absent = _absent(official, kind if kind in OFFICIAL else "", text)
    silent = [f"{name!r} {found.reason}" for name, found in asked.items() if found.info is None]
    if silent:
        absent = replace(absent, reason=f"{absent.reason}; not known of {'; '.join(silent)}")
    return _error(absent)


def _serves(found: BackendRecord, kind: str, provider: str) -> bool:
    if found.info is None:
        return False
    name, providers = found.name.lower(), map(str.lower, found.info.providers)
    return kind in (name, *found.info.device_types) and provider in ("", name, *providers)


def _target(found: BackendRecord, kind: str, provider: str) -> Target:
    assert found.info is not None
    types = found.info.device_types
    device_type = kind if kind in types else types[0]
    return Target(found.name, device_type, "" if provider == found.name.lower() else provider)


# ------------------------------------------------------------------------------------ resolving


def _found(prefix: str) -> Iterator[EntryPoint]:
    """The entry points of every group that is `prefix`, or begins so if it ends in "v"."""
    for dist in distributions():
        try:
            for point in dist.entry_points:
                if point.group == prefix or (prefix != GROUP and point.group.startswith(prefix)):
                    yield point
        except Exception as error:  # somebody's damaged metadata; it must not hide the others
            warn_once(f"entry points of {getattr(dist, '_path', dist)} are unreadable: "
                      f"{one_line(error)}")  # fmt: skip


def _points(prefix: str, name: str) -> list[EntryPoint]:
    """Those of that name; of one distribution that is found twice, the first on the path."""
    points: dict[tuple[str, str], EntryPoint] = {}
    for point in _found(prefix):
        if point.name == name:
            points.setdefault((point.group, _owner(point).get("distribution", "")), point)
    return list(points.values())


def resolve(name: str, look_for_devices: bool = True) -> tuple[BackendRecord, Backend | None]:
    """The one place that decides a backend's state; the backend itself where it can be opened."""
    points = _points(GROUP, name)
    if not points:
        return _absent(name), None
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
    backend = _opened.get(name)
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
    """The record of a backend whose probe, in a process of its own, did not come back."""
    points = _points(GROUP, name)
    return _broken({"name": name, **(_owner(points[0]) if points else {})}, reason)


def _broken(facts: dict[str, Any], reason: str, fix: str = "") -> BackendRecord:
    fix = fix or f"run: engine doctor {facts['name']}"
    return BackendRecord(state=BackendState.BROKEN, reason=reason, fix=fix, **facts)


def _owner(point: EntryPoint) -> dict[str, str]:
    try:
        dist = point.dist
        return {"distribution": dist.name, "version": dist.version} if dist else {}
    except Exception:  # metadata that is missing or damaged: the backend itself may be well
        return {}


_warned: set[str] = set()


def warn_once(text: str) -> None:
    """Log a warning, unless this process has logged the same one before."""
    if text not in _warned:
        _warned.add(text)
        logging.getLogger("engine").warning(text)


def _absent(name: str, device_type: str = "", target: str = "") -> BackendRecord:
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
    fix = (
        f'run: pip install "inference-engine[{_EXTRAS[kind]}]"'
        if kind
        else "install the distribution that offers it, or correct the name"
    )
    return BackendRecord(
        name=name,
        state=BackendState.NOT_INSTALLED,
        reason=f"{asked}no installed distribution offers it (installed: {here})",
        fix=fix,
    )


def _error(found: BackendRecord) -> Exception:
    if found.state is BackendState.NOT_INSTALLED:
        return BackendNotInstalled(str(found), found.name, installed())
    if found.state is BackendState.INCOMPATIBLE:
        return BackendIncompatible(str(found), found.name)
    return BackendUnavailable(str(found), found.name)


def _unknown_hooks(manager: pluggy.PluginManager) -> list[str]:
    """Hooks of a plugin that this core does not know: a newer plugin, or a misspelt name."""
    unknown = []
    known = [name for name in vars(hookspecs) if name.startswith("engine_")]
    for name, caller in vars(manager.hook).items():
        if name.startswith("_") or caller.has_spec():
            continue
        near = nearest(name, known)
        hint = f"; did you mean {near}?" if near else ""
        unknown.append(f"unknown hook {name!r} is ignored{hint}")
    return unknown
