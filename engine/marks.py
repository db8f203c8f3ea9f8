"""The marks of hooks: as pluggy sets them, without importing it.

A process that loads a model of an ordinary backend needs no more of pluggy than this; see
`engine.backends.hooks`. pluggy's own markers for project "engine" do as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

Function = TypeVar("Function", bound=Callable[..., Any])

PROJECT = "engine"
IMPLEMENTATION = f"{PROJECT}_impl"
"""The attribute that marks an implementation; its value is the options of the mark, by name."""


def hookspec(*, firstresult: bool) -> Callable[[Function], Function]:
    """Mark a function as a hook's specification. firstresult: one answer, not a list of all."""

    def mark(function: Function) -> Function:
        options = {"firstresult": firstresult, "historic": False}
        options |= dict.fromkeys(("warn_on_impl", "warn_on_impl_args"))  # type: ignore[arg-type]
        setattr(function, f"{PROJECT}_spec", options)
        return function

    return mark


@overload
def hookimpl(function: Function, /) -> Function: ...
@overload
def hookimpl(
    *,
    wrapper: bool = False,
    hookwrapper: bool = False,
    optionalhook: bool = False,
    tryfirst: bool = False,
    trylast: bool = False,
    specname: str | None = None,
) -> Callable[[Function], Function]: ...
def hookimpl(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as the implementation of the hook of its name; options are pluggy's."""
    if function is None or options:
        from pluggy import HookimplMarker  # rare

        return HookimplMarker(PROJECT)(function, **options)
    flags = ("wrapper", "hookwrapper", "optionalhook", "tryfirst", "trylast")
    setattr(function, IMPLEMENTATION, {**dict.fromkeys(flags, False), "specname": None})
    return function
