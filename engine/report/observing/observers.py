"""The observers that are switched on for a model: made once a process, told of events.

An observer's exception is logged, once for each of its methods, and changes nothing for those who
build, ask or close.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import EngineError, SettingError, one_line
from engine.host.interrupts import raised_by_handler
from engine.runtime.extensions import as_telling
from engine.runtime.wrapping import failed, loaded

_made: dict[tuple[int, object, tuple[tuple[str, str], ...]], Observer | None] = {}
"""None for one that is being made."""
_lock = threading.RLock()  # reentrant: an observer may build models as it is made


def _forget_lock() -> None:
    """In a forked child: another thread of the parent's may have held it."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


class Observer:
    """One observer, which may lack any method of `engine.types.Observer`."""

    def __init__(self, name: str, own: Any) -> None:
        self.name = name
        self.wants_values = bool(getattr(own, "wants_values", False))
        self.sees_requests = any(hasattr(own, name) for name in ("on_begin", "on_request"))
        self._own = own
        self._failed: set[str] = set()

    def tell(self, method: str, event: object) -> Any:
        """Call a method where it is there; return what it returns, None where it fails."""
        call = getattr(self._own, method, None)
        if call is None:
            return None
        try:
            return as_telling(lambda: call(event))
        except BaseException as error:  # SystemExit, or a panic of a compiled observer
            if raised_by_handler(error):
                raise
            if method not in self._failed:
                self._failed.add(method)
                logging.getLogger("engine").warning(
                    "observer %r: its %s raised %s; this changes no result, and is not logged "
                    "again",
                    self.name,
                    method,
                    one_line(error),
                    exc_info=error,
                )
            return None


def observers(chosen: Mapping[str, Mapping[str, str]]) -> Sequence[Observer]:
    """Return the observers among what is switched on, in its order.

    Models that an observer builds while it is made are not told to it.

    Raises ExtensionError for a name that nobody offers and for one that cannot be made,
    SettingError for an option that one refuses.
    """
    makers = loaded(chosen, observes=True)
    with _lock:
        found = [_observer(name, make, chosen[name]) for name, make in makers.items()]
    return [observer for observer in found if observer is not None]


def _observer(name: str, make: Any, options: Mapping[str, str]) -> Observer | None:
    # A forked child makes its own: sockets and threads of the parent's are not its.
    key = os.getpid(), make, tuple(sorted(options.items()))
    if key not in _made:
        _made[key] = None
        try:
            own = make(dict(options))
        except BaseException as error:
            del _made[key]
            if isinstance(error, EngineError) or raised_by_handler(error):
                raise
            if isinstance(error, ValueError):
                raise SettingError(f"extension {name!r}: {error}") from error
            raise failed(name, f"making the observer raised {one_line(error)}") from error
        _made[key] = Observer(name, own)
    return _made[key]
