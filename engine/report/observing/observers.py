"""The observers that are switched on for a model: made once a process, told of events.

What an observer raises is logged, once for each of its methods, and changes nothing for those who
build, ask or close.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError, SettingError, one_line
from engine.host.interrupts import raised_by_handler
from engine.runtime.wrapping import failed, loaded

if TYPE_CHECKING:
    from engine.types import ModelDescription

_made: dict[tuple[int, object, tuple[tuple[str, str], ...]], Observer] = {}
_lock = threading.RLock()  # reentrant: an observer may build models


class Observer:
    """One observer, which may lack any method of `engine.types.Observer`."""

    def __init__(self, name: str, own: Any) -> None:
        self.name = name
        self.wants_values = bool(getattr(own, "wants_values", False))
        self._own = own
        self._failed: set[str] = set()

    def tell(self, method: str, event: object) -> Any:
        """Call a method where it is there; return what it returns, None where it fails."""
        call = getattr(self._own, method, None)
        if call is None:
            return None
        try:
            return call(event)
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

    Raises ExtensionError for a name that nobody offers and for one that cannot be made,
    SettingError for an option that one refuses.
    """
    makers = loaded(chosen, observes=True)
    with _lock:
        return [_observer(name, make, chosen[name]) for name, make in makers.items()]


def _observer(name: str, make: Any, options: Mapping[str, str]) -> Observer:
    # A forked child makes its own: sockets and threads of the parent's are not its.
    key = os.getpid(), make, tuple(sorted(options.items()))
    if key not in _made:
        try:
            own = make(dict(options))
        except BaseException as error:
            if isinstance(error, EngineError) or raised_by_handler(error):
                raise
            if isinstance(error, ValueError):
                raise SettingError(f"extension {name!r}: {error}") from error
            raise failed(name, f"making the observer raised {one_line(error)}") from error
        _made[key] = Observer(name, own)
    return _made[key]


def begin(watching: Sequence[Observer], model: ModelDescription) -> list[object]:
    """Tell that a request has come; return what each observer says to it."""
    return [observer.tell("on_begin", model) for observer in watching]
