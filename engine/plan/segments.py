"""Segments that run one after another, as one executable.

To the rest of the core they are a backend's: an executable, its contexts, and `predict` with the
signature of engine_predict. A context's run is in `steps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.backends.attribution import attribute_errors_to
from engine.plan.contexts import close
from engine.plan.dataflow import Dataflow
from engine.plan.reports import KernelTimes, PartReports, part_memory, part_profile, total
from engine.plan.steps import SegmentedContext
from engine.types import Device, MemoryReport, Placement, Values


@dataclass(eq=False)
class SegmentedExecutable(Dataflow):
    """Segments in running order, as an executable. rest: where nodes are that are in no segment."""

    rest: Sequence[Placement] = ()

    @property
    def concurrency(self) -> int:
        """Return how many predicts at once are worth having: as many as in the slowest segment."""
        counts = (getattr(segment.executable, "concurrency", 0) for segment in self.segments)
        return min(filter(None, counts), default=0)

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
            found = part_memory(segment.backend, segment.executable, segment.device)
            for name, device, report in found:
                parts.setdefault((name, device), []).append(report)
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


def predict(
    context: SegmentedContext, inputs: Values, outputs: Values | None, deadline_s: float | None
) -> Values:
    """Run every segment once; engine_predict of a model that is partitioned."""
    return context.run(inputs, outputs, deadline_s)
