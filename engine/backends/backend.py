"""One opened backend: its hooks as plain functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import pluggy

from engine import hookspecs
from engine.errors import BackendUnavailable
from engine.options import nearest
from engine.types import (
    BackendInfo,
    Check,
    CompileOptions,
    Devices,
    Executable,
    LoadedModel,
    ModelSource,
    Option,
)

if TYPE_CHECKING:
    from engine.types import Values


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
            isinstance(name, str) and isinstance(text, str | Option)
            for name, text in values.items()
        ):
            raise TypeError(f"BackendInfo.{field} is {values!r}, expected a dict of str to str")
    if not info.device_types:
        raise TypeError("BackendInfo.device_types is empty, expected what it serves")
    if not isinstance(info.capabilities, frozenset | set):
        raise TypeError(f"BackendInfo.capabilities is {info.capabilities!r}, expected a frozenset")


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
