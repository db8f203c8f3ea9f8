"""CancelToken: how one thread asks another's long work to stop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from engine.errors import Cancelled

__all__ = ["CancelToken"]


class CancelToken:
    """Asks long work to stop. One thread calls `cancel()`, the worker looks at `cancelled`.

    Any thread may call any method. A token serves once: it stays cancelled.
    """

    __slots__ = ("_callbacks", "cancelled")

    def __init__(self) -> None:
        self.cancelled = False
        self._callbacks: dict[object, Callable[[], None]] = {}

    def cancel(self) -> None:
        """Ask; the work ends with Cancelled as soon as it can."""
        self.cancelled = True
        for callback in list(self._callbacks.values()):
            callback()

    def check(self) -> None:
        """Raise Cancelled if `cancel()` was called."""
        if self.cancelled:
            raise Cancelled("cancelled by its owner")

    def watch(self, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `callback` when the token is cancelled inside the block, or has been before.

        It runs in the thread that cancels, perhaps twice, and perhaps just after the block has
        ended; it must return quickly and not raise.
        """
        return _Watch(self, callback)


class _Watch:
    """The block of `CancelToken.watch`: no generator, which an exception could leave half-way."""

    __slots__ = ("_callback", "_token")

    def __init__(self, token: CancelToken, callback: Callable[[], None]) -> None:
        self._token = token
        self._callback = callback

    def __enter__(self) -> None:
        # Noted before the flag is read: a cancel between the two calls twice rather than never.
        self._token._callbacks[self] = self._callback
        try:
            if self._token.cancelled:
                self._callback()
        except BaseException:
            self._token._callbacks.pop(self, None)
            raise

    def __exit__(self, *raised: object) -> None:
        self._token._callbacks.pop(self, None)
