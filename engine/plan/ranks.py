"""All ranks of a job, as the plan of one of them sees them.

What ranks are, and how tensors go from one to another, is in engine/distributed, above this: a
build gets it as `BuildOptions.open_ranks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from engine.backends import Backend
from engine.formats.collectives import Part
from engine.plan.collectives import Collective
from engine.types import Communicator, Device, Predict


class Ranks(Protocol):
    """All ranks of a job, as the plan of one of them sees them.

    backend: loads, compiles and runs segments of collectives, on the memory of `device`: the
    host's, or that of the other segments where their backend has collectives there.
    """

    backend: Backend
    device: Device

    def join(self, collectives: Sequence[Collective], part: Part | None = None) -> None:
        """Compare what the ranks will do, and connect them; once, when all is compiled.

        part: whose part of a sliced model this is, where its file says so. Raises
        CommunicatorError naming the ranks that do not come or do something else.
        """

    @property
    def communicators(self) -> Mapping[str, Communicator]:
        """The groups on `device`, by name, once joined; for a graph that keeps its collectives."""

    def met(self, predict: Predict, what: str) -> Predict:
        """Return `predict` such that it begins when all ranks have come to `what`.

        It always gets a deadline: that of the ranks, or an earlier one.
        """

    def guarded(self, predict: Predict) -> Predict:
        """Return `predict` such that a failure of one rank ends the predict of all."""

    def refuse(self, why: str) -> None:
        """Tell the other ranks that this one refuses a predict before it begins.

        Those that are in it fail, as if it had failed here.
        """

    def close(self) -> None:
        """Leave the other ranks; twice does nothing."""


OpenRanks: TypeAlias = Callable[[int, int, str, Backend, Device], Ranks]
"""open(rank, world_size, model, backend, device): Ranks for a plan whose other segments run there.

model: how messages call it.

Raises CommunicatorError where this process is no rank of a job.
"""
