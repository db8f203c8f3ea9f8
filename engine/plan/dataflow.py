"""The segments of a partitioned model, and the values that go from one to another."""

from __future__ import annotations

from dataclasses import dataclass

from engine.backends import Backend
from engine.plan.transfer import Transfer
from engine.types import Device, Executable, TensorSpec


@dataclass(frozen=True, slots=True)
class CompiledSegment:
    """A part of a model that one backend has compiled.

    Values of a run are numbered: the model's inputs first, then what the segments write.
    nodes: which nodes of the whole model its nodes are, in its order. device: where it runs.
    reads, writes: the numbers of its inputs and outputs. ends: the numbers of the values that
    nobody reads afterwards. resident: those of its outputs that stay on its device.
    is_shared: other ranks take part in it: it runs once in each predict, whatever becomes of that.
    is_afterwards: it exchanges results of a pipeline, when all micro-batches are through.
    devices: see CompileOptions.
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
    devices: tuple[Device, ...] = ()


@dataclass(eq=False)
class Dataflow:
    """Segments in running order, and which of a run's values each of them reads and writes.

    inputs, outputs: the whole model's. results: the numbers of the outputs among the values of a
    run. width: how many values there are. held: how many of the inputs, the last ones, the core
    holds itself (state, variable weights): contexts may keep them.
    steady: for each segment, whether its outputs have the same shapes whenever its inputs do, so
    that buffers can be given for them. True until a run shows otherwise; any thread may clear it.
    """

    segments: tuple[CompiledSegment, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    results: tuple[int, ...]
    width: int
    held: int = 0

    def __post_init__(self) -> None:
        self.steady = [True] * len(self.segments)
        self.transfer = Transfer((segment.backend, segment.device) for segment in self.segments)
        for index, segment in enumerate(self.segments):
            if segment.is_shared and getattr(segment.executable, "has_changing_shapes", False):
                self.allocate_from(index)  # a run cannot be repeated to find that out

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
