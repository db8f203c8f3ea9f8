"""The common part of the classes that hold a model: its path, and their use in a `with` block."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

FORKED = (
    "this process was forked after the model was built, and runtimes do not survive that; "
    "build the model in this process, or start processes with 'spawn'"
)


class Handle:
    """A user's hold on a model that was built: closing it frees what runs the model.

    model_path_: the file it was built from, "" for one that was in memory.
    """

    model_path_: str

    def close(self) -> None:
        """Free what runs the model; twice does nothing."""
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

    def __str__(self) -> str:
        return f"model_path: {self.model_path_}."
