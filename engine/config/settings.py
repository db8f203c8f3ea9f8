"""Descriptor by which the classes of Context declare their settings: one method each.

    class CpuSettings(Settings):
        @setting(0)
        def thread_num(self, value: int) -> int:
            '''Threads inside one operator.'''
            return require_count("cpu_thread_num", value)

The method checks what is assigned and returns what is kept. Its docstring is the setting's, and
its types are what type checkers hold a script against: `value`'s is what may be assigned, the
result's is what the setting reads. `settings.thread_num` reads 0 until something is assigned.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any, Generic, Self, TypeVar, cast, overload

from engine.config.text import did_you_mean

T = TypeVar("T")  # what a setting reads
S = TypeVar("S")  # what may be assigned to it

_FIXED = frozenset({str, int})  # of most values: nobody changes them in place


class Setting(Generic[T, S]):
    """One setting, as an attribute of its class. An object keeps in its __dict__ what was set."""

    def __init__(self, check: Callable[[Any, S], T], default: Any) -> None:
        self.name = check.__name__
        self.default: T = default
        self.__doc__ = check.__doc__
        self._check = check

    @overload
    def __get__(self, settings: None, owner: type) -> Setting[T, S]: ...
    @overload
    def __get__(self, settings: object, owner: type) -> T: ...
    def __get__(self, settings: object | None, owner: type) -> T | Setting[T, S]:
        if settings is None:
            return self
        kept: Any = settings.__dict__.get(self.name, self.default)
        if type(kept) in _FIXED:
            return kept  # type: ignore[no-any-return]
        if callable(kept):  # a default that depends on where the process runs
            kept = kept()
        # A copy: what is changed in place would pass unchecked. Elements of lists never change.
        kept = [*kept] if isinstance(kept, list) else kept
        return cast("T", deepcopy(kept) if isinstance(kept, dict) else kept)

    def __set__(self, settings: object, value: S) -> None:
        settings.__dict__[self.name] = self._check(settings, value)


def setting(default: object = None) -> Callable[[Callable[[Any, S], T]], Setting[T, S]]:
    """Make a Setting of the method that checks it. Without a default, __init__ must assign it.

    default: a value, or a function that gives it whenever it is read.
    """
    return lambda check: Setting(check, default)


class Settings:
    """Settings that belong together.

    Another attribute is kept, as MindSpore Lite keeps it, but with a warning: nothing reads it.
    Not locked: threads that change the same settings coordinate among themselves.
    """

    _called = "settings"  # what a user writes to get at them

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and not hasattr(type(self), name):
            _warn_of_unknown(self, name)
        super().__setattr__(name, value)

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        for name, value in vars(self).items():
            if type(value) not in _FIXED:
                value = copy(value) if isinstance(value, Settings) else deepcopy(value)
            vars(copied)[name] = value
        return copied

    def __repr__(self) -> str:
        changed = [
            f"{name}={value!r}"
            for name, value in vars(self).items()
            if not isinstance(value, Settings) or vars(value)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"


def _warn_of_unknown(settings: Settings, name: str) -> None:
    import warnings

    known = [name for name in dir(type(settings)) if not name.startswith("_")]
    hint = did_you_mean(name, known) or f"it has: {', '.join(known)}"
    warnings.warn(
        f"{settings._called} has no setting {name!r}, so nothing reads it; {hint}", stacklevel=3
    )
