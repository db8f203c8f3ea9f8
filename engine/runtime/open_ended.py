"""The state of a thread for a model whose outputs have shapes that only a run tells."""

from __future__ import annotations

from typing import Any, NoReturn

from engine.runtime.thread_state import ThreadState
from engine.tensor.values import tensors_of


class OpenEndedState(ThreadState):
    """seen: the outputs' shapes in the last run, in a tuple of one; () where that failed."""

    __slots__ = ("seen",)
    seen: tuple[list[Any], ...]

    def bind(self, inputs: Any, outputs: Any) -> tuple[list[Any], list[Any]]:
        """See ThreadState. Results that are in these buffers do not come to `give`."""
        values, buffers = super().bind(inputs, outputs)
        self.seen = ([getattr(buffer, "shape", None) for buffer in buffers],)
        return values, buffers

    def give(self, results: Any, outputs: Any) -> list[Any]:
        """Return the results as tensors; the caller's where there are such."""
        self.seen = ([result.shape for result in results],)
        if outputs is None:
            return tensors_of(results, self.descriptions)
        return super().give(results, outputs)

    def fail(self, *arguments: Any) -> NoReturn:
        """See ThreadState."""
        self.seen = ()
        super().fail(*arguments)
