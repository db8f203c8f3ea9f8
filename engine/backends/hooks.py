"""A plugin's hooks: which it implements, and as which functions.

What is a hook, and what is wrong with one, pluggy says. Of nearly every plugin it has only one
thing to say: a module of functions that are marked without options, are named as specifications
and take some of their arguments. Such a module is read here, because to import pluggy and to
register a plugin with it takes a tenth of the time that a process needs to load its first model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from engine import hookspecs
from engine.marks import IMPLEMENTATION
from engine.options import nearest

if TYPE_CHECKING:
    import pluggy


class Hook(NamedTuple):
    """An implementation of a hook. arguments: the names of those that it takes, in its order."""

    function: Callable[..., Any]
    arguments: tuple[str, ...]


SPECIFICATIONS: Mapping[str, FunctionType] = {
    name: function for name, function in vars(hookspecs).items() if name.startswith("engine_")
}


def hooks_of(name: str, plugin: object, warnings: list[str]) -> Mapping[str, Hook]:
    """Return what a plugin implements, by the names of the specifications.

    warnings: what the core ignores of it is added. Raises TypeError for a wrapper, and pluggy's
    PluginValidationError for an implementation that does not fit its specification.
    """
    found = read_plainly(plugin)
    return read_by_pluggy(name, plugin, warnings) if found is None else found


def read_plainly(plugin: object) -> Mapping[str, Hook] | None:
    """Return the hooks of a module that is as nearly all are; None where pluggy is to read it."""
    if not isinstance(plugin, ModuleType):
        return None
    found = {}
    for name in dir(plugin):
        function = vars(plugin).get(name)
        if isinstance(function, classmethod | staticmethod | MethodType):
            return None
        if not isinstance(function, FunctionType) or IMPLEMENTATION not in vars(function):
            continue
        options = vars(function)[IMPLEMENTATION]
        code = function.__code__
        arguments = code.co_varnames[: code.co_argcount]
        if (
            name not in SPECIFICATIONS
            or not isinstance(options, dict)
            or any(options.values())
            or code.co_kwonlyargcount
            or code.co_flags & _TAKES_REST
            or hasattr(function, "__wrapped__")
            or not {*arguments} <= {*arguments_of(name)}
        ):
            return None
        found[name] = Hook(function, arguments)
    return found


_TAKES_REST = 0x04 | 0x08
"""inspect.CO_VARARGS and CO_VARKEYWORDS: a function that takes *args or **kwargs."""


def arguments_of(hook: str) -> tuple[str, ...]:
    """Return the names of a specification's arguments, in its order."""
    code = SPECIFICATIONS[hook].__code__
    return code.co_varnames[: code.co_argcount]


def read_by_pluggy(name: str, plugin: object, warnings: list[str]) -> Mapping[str, Hook]:
    """Return the hooks that pluggy finds in a plugin, each as one function; see `hooks_of`."""
    import pluggy  # rare

    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name)
    _refuse_wrappers(manager)
    warnings += _unknown_hooks(manager)
    found = {}
    for hook in SPECIFICATIONS:
        # Arguments with defaults count too: so a plugin may span versions of the contract.
        for implementation in getattr(manager.hook, hook).get_hookimpls()[:1]:
            named = (*implementation.argnames, *implementation.kwargnames)
            known = tuple(name for name in named if name in arguments_of(hook))
            found[hook] = Hook(implementation.function, known)
    return found


def _refuse_wrappers(manager: pluggy.PluginManager) -> None:
    """Raise TypeError for a hook that is a wrapper: bound as a function it would be skipped."""
    for name, caller in vars(manager.hook).items():
        if name.startswith("_"):
            continue
        for implementation in caller.get_hookimpls():
            if implementation.wrapper or implementation.hookwrapper:
                kind = "wrapper=True" if implementation.wrapper else "hookwrapper=True"
                raise TypeError(
                    f"its {name} is a wrapper ({kind}), and a hook is a function here; to see a "
                    "model's predicts, write an extension (engine.types.Extension)"
                )


def _unknown_hooks(manager: pluggy.PluginManager) -> list[str]:
    """Describe the hooks that this core does not know: a newer plugin's, or misspelt ones."""
    unknown = []
    for name, caller in vars(manager.hook).items():
        if name.startswith("_") or caller.has_spec():
            continue
        near = nearest(name, SPECIFICATIONS)
        hint = f"; did you mean {near}?" if near else ""
        unknown.append(f"unknown hook {name!r} is ignored{hint}")
    return unknown
