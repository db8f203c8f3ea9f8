"""CancelToken: how one thread asks another's long work to stop."""

from __future__ import annotations

from engine.errors import Cancelled

__all__ = ["CancelToken"]


class CancelToken:
    """Asks long work to stop. One thread calls `cancel()`, the worker looks at `cancelled`."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        """Ask; the work ends with Cancelled as soon as it can."""
        self.cancelled = True

    def check(self) -> None:
        """Raise Cancelled if `cancel()` was called."""
        if self.cancelled:
            raise Cancelled("cancelled by its owner")
