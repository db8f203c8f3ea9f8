"""A plugin's hooks as plain functions, read and validated by pluggy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pluggy

from engine import hookspecs
from engine.options import nearest

OPTIONAL = "{} with options"
"""Name of an implementation that takes arguments with defaults, as a function of these too."""


def hooks_of(name: str, plugin: object, warnings: list[str]) -> Mapping[str, Callable[..., Any]]:
    """Return what a plugin implements, by hook: functions of the specification's arguments.

    warnings: what the core ignores of it is added. Raises TypeError for a wrapper, and pluggy's
    PluginValidationError for an implementation that does not fit its specification.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)  # its own: this plugin alone answers
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name)
    known = [hook for hook in vars(hookspecs) if hook.startswith("engine_")]
    found: dict[str, Callable[..., Any]] = {}
    for hook, caller in vars(manager.hook).items():
        if hook.startswith("_"):
            continue
        for implementation in caller.get_hookimpls():
            if implementation.wrapper or implementation.hookwrapper:
                kind = "wrapper" if implementation.wrapper else "hookwrapper"
                raise TypeError(
                    f"its {hook} is a wrapper ({kind}=True), and a hook is a function here; to see "
                    "a model's predicts, write an extension (engine.types.Extension)"
                )
            if hook in known:
                needed, optional = caller.spec.argnames, caller.spec.kwargnames
                found.setdefault(hook, _bound(implementation, needed))
                if not set(optional).isdisjoint(implementation.kwargnames):
                    whole = _bound(implementation, needed + optional)
                    found.setdefault(OPTIONAL.format(hook), whole)
        if hook not in known:
            near = nearest(hook, known)
            hint = f"; did you mean {near}?" if near else ""
            warnings.append(f"unknown hook {hook!r} is ignored{hint}")
    return found


def _bound(implementation: pluggy.HookImpl, given: tuple[str, ...]) -> Callable[..., Any]:
    """Return an implementation as a function of the arguments `given`, by place."""
    function = implementation.function
    # Arguments with defaults count too: so a plugin may span versions of the contract.
    named = (*implementation.argnames, *implementation.kwargnames)
    taken = tuple(name for name in named if name in given)
    if named[: len(given)] == given:
        return function
    indices = tuple(given.index(name) for name in taken)
    if named[: len(taken)] == taken:
        return lambda *arguments: function(*[arguments[index] for index in indices])
    # One that this core does not know stands before one that it does.
    pairs = tuple(zip(taken, indices, strict=True))
    return lambda *arguments: function(**{name: arguments[index] for name, index in pairs})
