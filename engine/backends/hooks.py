"""A plugin's hooks as plain functions, read and validated by pluggy."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, TypeAlias

import pluggy

from engine import hookspecs
from engine.options import nearest

Hooks: TypeAlias = dict[str, Callable[..., Any]]


def hooks_of(name: str, plugin: object, warnings: list[str]) -> tuple[Hooks, Hooks]:
    """Return what a plugin implements, by hook: functions of the arguments without defaults.

    And those that take arguments with defaults, as functions of these too. warnings: what the core
    ignores of it is added. Raises TypeError for a wrapper and for a parameter that is not optional
    and should be, and pluggy's PluginValidationError for any other implementation that does not fit
    its specification.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)  # its own: this plugin alone answers
    manager.add_hookspecs(hookspecs)
    _check_optional(manager, plugin)
    manager.register(plugin, name)
    known = [hook for hook in vars(hookspecs) if hook.startswith("engine_")]
    found: Hooks = {}
    with_optional: Hooks = {}
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
                    with_optional.setdefault(hook, _bound(implementation, needed + optional))
        if hook not in known:
            near = nearest(hook, known)
            hint = f"; did you mean {near}?" if near else ""
            warnings.append(f"unknown hook {hook!r} is ignored{hint}")
    return found, with_optional


def _check_optional(manager: pluggy.PluginManager, plugin: object) -> None:
    """Raise TypeError where a parameter that the specification makes optional is not."""
    for name in dir(plugin):
        marks = manager.parse_hookimpl_opts(plugin, name)
        hook = (marks and marks.get("specname")) or name
        caller = getattr(manager.hook, hook, None)
        if marks is None or caller is None or not caller.spec.kwargnames:
            continue
        parameters = signature(getattr(plugin, name)).parameters
        for optional in caller.spec.kwargnames:
            parameter = parameters.get(optional)
            if parameter is None:
                continue
            if parameter.kind is Parameter.KEYWORD_ONLY:
                wrong = "only by keyword; move it before the *"
            elif parameter.default is Parameter.empty:
                wrong = f"without a default; write {optional}=None"
            else:
                continue
            raise TypeError(
                f"its {hook} takes {optional!r} {wrong} (a parameter with a default is optional; "
                "give it the same default)"
            )


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
