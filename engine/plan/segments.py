"""Segments that run one after another, as one executable.

To the rest of the core they are a backend's: an executable, its contexts, and `predict` with the
signature of engine_predict. What a context does in a run is in `steps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace

from engine.backends import Backend
from engine.plan.compile import KernelTimes, PartReports, attribute_errors_to, part_profile
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
    is_shared: other ranks take part in it: it runs once in each predict, whatever becomes of that.
    is_afterwards: it exchanges results of a pipeline, when all micro-batches are through.
    """

    backend: Backend
    executable: Executable
    device: Device
    nodes: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    ends: tuple[int, ...]
    resident: frozenset[int] = frozenset()
    is_shared: bool = False
    is_afterwards: bool = False


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
        self.rest = tuple(rest)
        for index, segment in enumerate(self.segments):
            if segment.is_shared and getattr(segment.executable, "has_changing_shapes", False):
                self.allocate_from(index)  # a run cannot be repeated to find that out

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
        by_index = {placement.index: placement for placement in self.rest}
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
        return total(report for _, _, report in self.memory_by_part())

    def memory_by_part(self) -> PartReports:
        """See Plan.memory."""
        parts: dict[tuple[str, Device], list[MemoryReport]] = {}
        for segment in self.segments:
            with attribute_errors_to(segment.backend, "memory"):
                report = segment.executable.memory()
            parts.setdefault((segment.backend.name, segment.device), []).append(report)
        return [(name, device, total(reports)) for (name, device), reports in parts.items()]

    def profile_by_part(self) -> KernelTimes:
        """See Plan.profile."""
        times: KernelTimes = []
        for segment in self.segments:
            for name, device, time in part_profile(
                segment.backend, segment.executable, segment.device
            ):
                nodes = tuple(segment.nodes[index] for index in time.nodes)
                times.append((name, device, replace(time, nodes=nodes)))
        return times

    def close(self) -> None:
        """Close every segment's executable."""
        for segment in self.segments:
            close(segment.executable)


def total(reports: Iterable[MemoryReport]) -> MemoryReport:
    """Return the sum of reports."""
    return MemoryReport(*map(sum, zip(*map(astuple, (MemoryReport(), *reports)), strict=True)))


def predict(
    context: SegmentedContext, inputs: Values, outputs: Values | None, deadline_s: float | None
) -> Values:
    """Run every segment once; engine_predict of a model that is partitioned."""
    return context.run(inputs, outputs, deadline_s)
