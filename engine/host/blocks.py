"""Bases of what is used in a `with` block.

They are classes, and not contextlib's generators: those would add frames of their own to the
tracebacks that tell whether a signal handler has raised an exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class Closing:
    """Base of what leaving a `with` block closes."""

    __slots__ = ()

    def close(self) -> None:
        """Free what this holds; twice does nothing."""
        raise NotImplementedError

    def _leave(self, finish: bool) -> None:
        """Close at the end of a `with` block. finish: it has not ended by an exception."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(finish=error is None)


class Translating:
    """Base of what reports the errors of a `with` block as others."""

    __slots__ = ()

    def _translate(self, error: BaseException) -> None:
        """Raise another error in place of the block's; return for one that is to pass as it is."""
        raise NotImplementedError

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._translate(error)
