"""Predicts that run at once, and work that wants the engine for itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """A lock that many predicts share, and that one update at a time has alone.

    An update that waits comes before predicts that come later, or a busy model were never updated.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._running = 0
        self._waiting = 0
        self._alone = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Run beside others of the kind."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._alone or self._waiting))
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run when nothing else does."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not (self._alone or self._running))
                self._alone = True
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()
