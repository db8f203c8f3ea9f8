"""The error of a slicing that would divide nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import ModelError


class NothingDivided(ModelError):
    """Each of the ranks would run the whole model.

    model: its file. ranks: how many. nodes: the reason of each node, by name.
    """

    def __init__(self, model: str, ranks: int, nodes: Mapping[str, str]) -> None:
        reasons = [f"{name!r}: {reason}" for name, reason in nodes.items()]
        rest = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        super().__init__(
            f"{model}: nothing in it is divided among {ranks} ranks: "
            f"{reasons[0] if reasons else 'it has no nodes'}{rest}; ask for replicas (--replicas) "
            "if each rank is to run the whole model",
            model,
        )
        self.model, self.ranks, self.nodes = model, ranks, dict(nodes)

    def __reduce__(self) -> tuple[Any, ...]:
        # Else pickle makes it again of its text alone, which is none of the arguments.
        state = {**self.__dict__, "args": self.args}  # which others may have put words before
        return type(self), (self.model, self.ranks, self.nodes), state
