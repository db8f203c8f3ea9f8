"""CancelToken: how one thread asks another's long work to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.errors import Cancelled

__all__ = ["CancelToken"]


class CancelToken:
    """Asks long work to stop. One thread calls `cancel()`, the worker looks at `cancelled`.

    Any thread may call any method. A token serves once: it stays cancelled.
    """

    __slots__ = ("_callbacks", "cancelled")

    def __init__(self) -> None:
        self.cancelled = False
        self._callbacks: list[Callable[[], None]] = []

    def cancel(self) -> None:
        """Ask; the work ends with Cancelled as soon as it can."""
        self.cancelled = True
        for callback in list(self._callbacks):
            callback()

    def check(self) -> None:
        """Raise Cancelled if `cancel()` was called."""
        if self.cancelled:
            raise Cancelled("cancelled by its owner")

    @contextmanager
    def watch(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` when the token is cancelled inside the block, or has been before.

        It runs in the thread that cancels, perhaps twice, and perhaps just after the block has
        ended; it must return quickly and not raise.
        """
        # Noted before the flag is read: a cancel between the two calls twice rather than never.
        self._callbacks.append(callback)
        try:
            if self.cancelled:
                callback()
            yield
        finally:
            self._callbacks.remove(callback)
