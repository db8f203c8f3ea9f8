"""Segments that run one after another, as one executable.

To the rest of the core they are a backend's: an executable, its contexts, and `predict` with the
signature of engine_predict. What a context does in a run is in `steps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

from engine.backends import Backend
from engine.plan.compile import attribute_errors_to
from engine.plan.contexts import close
from engine.plan.steps import SegmentedContext
from engine.plan.transfer import Transfer
from engine.types import Device, Executable, MemoryReport, Placement, TensorSpec, Values


@dataclass(frozen=True, slots=True)
class CompiledSegment:
    """A part of a model that one backend has compiled.

    Values of a run are numbered: the model's inputs first, then what the segments write.
    nodes: which nodes of the whole model its nodes are, in its order. device: where it runs.
    reads, writes: the numbers of its inputs and outputs. ends: the numbers of the values that
    nobody reads afterwards. resident: those of its outputs that stay on its device.
    """

    backend: Backend
    executable: Executable
    device: Device
    nodes: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    ends: tuple[int, ...]
    resident: frozenset[int] = frozenset()


class SegmentedExecutable:
    """Segments in running order.

    inputs, outputs: the whole model's. results: the numbers of the outputs among the values of a
    run. width: how many values there are. held: how many of the inputs, the last ones, the core
    holds itself (state, variable weights): contexts may keep them.
    rest: the placement of nodes that are in no segment.
    steady: for each segment, whether its outputs have the same shapes whenever its inputs do, so
    that buffers can be given for them. True until a run shows otherwise; any thread may clear it.
    """

    def __init__(
        self,
        segments: Sequence[CompiledSegment],
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        results: tuple[int, ...],
        width: int,
        rest: Sequence[Placement],
        held: int = 0,
    ) -> None:
        self.segments = tuple(segments)
        self.inputs = inputs
        self.outputs = outputs
        self.results = results
        self.width = width
        self.held = held
        self.steady = [True] * len(self.segments)
        self.transfer = Transfer((segment.backend, segment.device) for segment in self.segments)
        self._rest = tuple(rest)

    @property
    def concurrency(self) -> int:
        """Return how many predicts at once are worth having: as many as in the slowest segment."""
        counts = (getattr(segment.executable, "concurrency", 0) for segment in self.segments)
        return min(filter(None, counts), default=0)

    def allocate_from(self, index: int) -> None:
        """Note that the shapes of what this segment writes depend on the data.

        So do those of what is made of it.
        """
        changing: set[int] = set()
        for later in range(index, len(self.segments)):
            segment = self.segments[later]
            if later == index or not changing.isdisjoint(segment.reads):
                self.steady[later] = False
                changing.update(segment.writes)

    def open_context(self) -> SegmentedContext:
        """Open a context of every segment."""
        return SegmentedContext(self)

    def placement(self) -> list[Placement]:
        """Return one entry for each node of the whole model; of copies, that of the first."""
        by_index = {placement.index: placement for placement in self._rest}
        for segment in self.segments:
            with attribute_errors_to(segment.backend, "placement"):
                placed = segment.executable.placement()
                for index, placement in zip(segment.nodes, placed, strict=True):
                    into = placement.fused_into
                    if into is not None:
                        into = segment.nodes[into]
                    by_index.setdefault(index, replace(placement, index=index, fused_into=into))
        return [by_index[index] for index in sorted(by_index)]

    def memory(self) -> MemoryReport:
        """Return the sum over the segments."""
        reports = (astuple(segment.executable.memory()) for segment in self.segments)
        return MemoryReport(*map(sum, zip(*reports, strict=True)))

    def close(self) -> None:
        """Close every segment's executable."""
        for segment in self.segments:
            close(segment.executable)


def predict(
    context: SegmentedContext, inputs: Values, outputs: Values | None, deadline_s: float | None
) -> Values:
    """Run every segment once; engine_predict of a model that is partitioned."""
    return context.run(inputs, outputs, deadline_s)
