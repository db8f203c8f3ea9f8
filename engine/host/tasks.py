"""Work that one thread has another one do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Task:
    """Work for another thread, and its result.

    has_begun: a thread has taken it up. is_over: `result` can be asked for. is_unwanted: to be set
    by who does not wait any more: work that has not begun is then left out.
    """

    __slots__ = ("_error", "_result", "_wake", "_work", "has_begun", "is_over", "is_unwanted")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.has_begun = self.is_over = self.is_unwanted = False
        self._work: Callable[[], Any] | None = work
        self._result: Any = None
        self._error: BaseException | None = None
        self._wake = threading.Lock()
        self._wake.acquire()

    def run(self) -> None:
        """Do the work, and wake the thread that waits."""
        self.attempt()
        self.end()

    def attempt(self) -> None:
        """Do the work and keep its result; `end` follows."""
        self.has_begun = True
        work, self._work = self._work, None
        try:
            if work is not None and not self.is_unwanted:
                self._result = work()
        except BaseException as error:  # for who waits
            self._error = error
        finally:
            del self, work  # the traceback of an error has this frame: no cycle

    def end(self) -> None:
        """Let the thread that waits have the result."""
        self.is_over = True
        self.wake()

    def wake(self) -> None:
        """End a `wait`, or the next one; more than once does no harm."""
        open_lock(self._wake)

    def wait(self, timeout_s: float = -1.0) -> bool:
        """Wait until `wake`, -1 for any time; return whether the work is over. For one thread."""
        self._wake.acquire(timeout=timeout_s)
        return self.is_over

    def result(self) -> Any:
        """Return what the work returned, or raise what it raised, once."""
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error, self  # the traceback of an error has this frame: no cycle


def open_lock(lock: threading.Lock) -> None:
    """Release a lock, which may be released."""
    with suppress(RuntimeError):
        lock.release()
