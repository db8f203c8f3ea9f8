"""One model on several backends: what one cannot run goes to the next that can.

The backends are asked, part by part, until each part is with one that takes all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.errors import BackendError, ModelError
from engine.formats.collectives import is_collective
from engine.formats.opened import state_of, variables_of
from engine.plan import segments
from engine.plan.compile import (
    Candidate,
    Plan,
    attribute_errors_to,
    compile_loaded,
    compile_whole,
    load,
)
from engine.plan.contexts import ContextPool, close
from engine.plan.options import part_options, plan_name
from engine.plan.partition import Segment, partition
from engine.plan.transfer import takes_buffers
from engine.types import (
    Capability,
    CompileOptions,
    Executable,
    LoadedModel,
    ModelSource,
    Placement,
    Progress,
    TensorSpec,
    ValueKind,
)

if TYPE_CHECKING:
    from onnx import TypeProto


def compile_mixed(
    first: Candidate,
    source: ModelSource,
    unsupported: Mapping[int, str],
    further: Iterator[Candidate | BackendError],
) -> Plan:
    """Compile a model of which `first` has reported nodes that it cannot run.

    further: see `compile_plan`. Raises ModelError where nobody runs a node, or where a backend
    refuses a part of which it has reported nothing.
    """
    partitioning = Partitioning(first, source, further)
    keeps_it_whole = first.backend.lacks(Capability.MIXED_PLACEMENT, first.options.device)
    if not partitioning.nodes or keeps_it_whole:
        raise partitioning.unplaceable(0, unsupported)
    every = range(len(partitioning.nodes))
    partitioning.refuse(0, every, unsupported)
    if set(partitioning.levels) == {1}:
        second = partitioning.candidates[1]
        plan, unsupported = compile_whole(second, source)
        if plan is not None:
            partitioning.warn(every)
            return replace(plan, fallback_reasons=partitioning.fallback_reasons)
        partitioning.refuse(1, every, unsupported)
    executable = compile_parts(partitioning)
    try:
        return _plan(partitioning, executable)
    except BaseException:
        close(executable)
        raise


def _plan(partitioning: Partitioning, executable: segments.SegmentedExecutable) -> Plan:
    first = partitioning.candidates[0]
    placed = {index for segment in executable.segments for index in segment.nodes}
    partitioning.warn(placed)
    used = dict.fromkeys((segment.backend, segment.device) for segment in executable.segments)
    return Plan(
        first.backend,
        replace(partitioning.source, data=None, files={}),
        executable,
        segments.predict,
        ContextPool(executable),
        first.options.device,
        parts=tuple(used),
        devices=tuple(executable.transfer.devices),
        fallback_reasons={
            index: why for index, why in partitioning.fallback_reasons.items() if index in placed
        },
    )


def compile_parts(partitioning: Partitioning) -> segments.SegmentedExecutable:
    """Compile a model as its nodes are divided; nodes that a backend refuses move on.

    Raises ModelError where nobody runs a node, or where a backend refuses a part.
    """
    with ExitStack() as on_failure:
        with ExitStack() as closing:
            executable = _compile(partitioning, _settle(partitioning, closing))
            on_failure.callback(close, executable)
        on_failure.pop_all()
    return executable


class Partitioning:
    """Which candidate gets which node, as far as they have been asked.

    candidates: the first, and those that were asked; the index in this list is the level.
    levels: of each node. fallback_reasons: why a node is not on level 0. copied: constant nodes,
    which stand in every part that reads them.
    """

    def __init__(
        self,
        first: Candidate,
        source: ModelSource,
        further: Iterator[Candidate | BackendError],
    ) -> None:
        self.source = source
        self.candidates = [first]
        self.nodes = source.graph.nodes if source.graph is not None else ()
        self.levels = [0] * len(self.nodes)
        self.fallback_reasons: dict[int, str] = {}
        self.copied = {
            node.index
            for node in self.nodes
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx")
        }
        self._further = further
        self._missing: list[str] = []

    @property
    def names(self) -> list[str]:
        """Return the candidates, as messages call them."""
        return [f"backend {candidate.backend.name!r}" for candidate in self.candidates]

    def reaches(self, level: int) -> bool:
        """Return whether there is a candidate of that level; opens it where it is the next."""
        while len(self.candidates) <= level:
            candidate = next(self._further, None)
            if candidate is None:
                return False
            if isinstance(candidate, Candidate):
                self.candidates.append(candidate)
            else:
                self._missing.append(str(candidate))
        return True

    def refuse(self, level: int, nodes: Sequence[int], refused: Mapping[int, str]) -> None:
        """Move nodes to the next level, for the reasons that the backend of this one gave.

        refused: by index in `nodes`. ModelError where there is no further level.
        """
        by_index = {nodes[number]: reason for number, reason in refused.items()}
        self.copied -= by_index.keys()
        # A copy of a constant is on another level: the backend of that makes it for this one.
        falling = {i: reason for i, reason in by_index.items() if self.levels[i] == level}
        if falling and not self.reaches(level + 1):
            raise self.unplaceable(level, falling)
        for index, reason in falling.items():
            self.levels[index] = level + 1
            earlier = f"{self.fallback_reasons[index]}; " if index in self.fallback_reasons else ""
            self.fallback_reasons[index] = f"{earlier}{self.names[level]} cannot run it: {reason}"

    def unplaceable(self, level: int, refused: Mapping[int, str]) -> ModelError:
        """Return the error for nodes that the backend of the last level refuses, with reasons."""
        waiting = [
            self._title(index)
            for index in refused
            if self.nodes and is_collective(self.nodes[index].op_type, self.nodes[index].domain)
        ]
        if waiting:
            return ModelError(
                f"{self.source.name}: is one rank's part of a sliced model, {waiting[0]} waits for "
                "the other ranks, and this version cannot run ranks together; run the model that "
                "was sliced",
                self.source.name,
            )
        lines = [
            f"{self._title(index)}: {reason}"
            + (f" ({self.fallback_reasons[index]})" if index in self.fallback_reasons else "")
            for index, reason in refused.items()
        ]
        more = f" and {len(lines) - 5} more" if len(lines) > 5 else ""
        names = [candidate.backend.name for candidate in self.candidates]
        missing = "".join(f"; passed over: {text}" for text in self._missing)
        step = (
            "export the model without it, or list a further target that has it"
            if "cpu" in names
            else f"list a further target that can, for example {[*names, 'cpu']}"
        )
        return ModelError(
            f"{self.source.name}: {self.names[level]} cannot run {'; '.join(lines[:5])}{more}"
            f"{missing}; {step}",
            self.source.name,
        )

    def _title(self, index: int) -> str:
        if not self.nodes:
            return f"node {index}"
        return f"{self.nodes[index].op_type} {self.nodes[index].name!r}"

    def warn(self, used: Collection[int]) -> None:
        """Log which of the nodes that run do so on a backend that the user has not listed."""
        for level, candidate in enumerate(self.candidates):
            placed = sorted(index for index in used if self.levels[index] == level)
            if candidate.is_listed or not placed:
                continue
            shown = "; ".join(
                f"{self._title(index)}: {self.fallback_reasons[index]}" for index in placed[:3]
            )
            more = f"; and {len(placed) - 3} more" if len(placed) > 3 else ""
            logging.getLogger("engine").warning(
                f"{self.source.name}: {len(placed)} of {len(self.levels)} nodes run on "
                f"{self.names[level]}: {shown}{more}"
            )


@dataclass(frozen=True, slots=True)
class _Part:
    """A segment as its backend has read it, with the options that it was read with."""

    segment: Segment
    candidate: Candidate
    options: CompileOptions
    loaded: LoadedModel


class _Reader:
    """Lets the backends read the segments of one partitioning.

    whole: the model. types: of the tensors that cross, as far as they are known.
    """

    def __init__(self, partitioning: Partitioning) -> None:
        try:
            from engine.plan.extract import Whole
            from engine.plan.ranges import PartRanges
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "onnx":
                raise
            refused = "; ".join(partitioning.fallback_reasons.values())
            raise ModelError(
                f"{partitioning.source.name}: {refused}; cutting it for several backends needs "
                "the onnx package; run: pip install onnx",
                partitioning.source.name,
            ) from error
        self.whole = Whole(partitioning.source)
        self.types: dict[str, TypeProto] = {}
        self._partitioning = partitioning
        self._ranges = PartRanges(self.whole.proto, self.types)
        self._plan = plan_name()

    def read(self, segment: Segment, resident: frozenset[str]) -> _Part | None:
        """Return a segment as its backend reads it; None where that refused some of it.

        What it refused goes to the next candidate. resident: outputs that stay on its device.
        """
        partitioning = self._partitioning
        self._infer(segment)
        candidate = partitioning.candidates[segment.level]
        source = self.whole.part(segment, self.types)
        options = part_options(
            candidate.options, self._ranges, segment.inputs, resident, self._plan
        )
        try:
            loaded, unsupported = load(candidate.backend, source, options)
        except ModelError as error:
            if not segment.level or not partitioning.reaches(segment.level + 1):
                raise _of_a_part(error, segment, candidate) from error
            own = [i for i, index in enumerate(segment.nodes) if index not in partitioning.copied]
            unsupported = dict.fromkeys(own, str(error))
        else:
            if not unsupported:
                part = _Part(segment, candidate, options, loaded)
                self._learn(part)
                return part
            close(loaded)
        partitioning.refuse(segment.level, segment.nodes, unsupported)
        return None

    def _infer(self, segment: Segment) -> None:
        """Complete `types` with those of the segment's inputs and outputs."""
        from engine.formats.onnx.infer import types_of

        names = {*segment.inputs, *segment.outputs} - self.types.keys()
        self.types.update(types_of(self.whole.proto, names, guess=True, known=self.types))
        for name in sorted(names - self.types.keys()):
            raise ModelError(
                f"{self._partitioning.source.name}: the type of {name!r}, which goes to or comes "
                f"from {self._partitioning.names[segment.level]}, is not in the file and onnx "
                "cannot infer it; add it to the graph's value_info",
                self._partitioning.source.name,
            )

    def _learn(self, part: _Part) -> None:
        """Take the shapes of a part's outputs from its backend where nobody knew them.

        It knows its own operators, and what comes later may need to know how many axes there are.
        """
        from engine.formats.onnx.infer import shaped

        with attribute_errors_to(part.candidate.backend, "engine_load"):
            specs = tuple(part.loaded.outputs)
        for name, spec in zip(part.segment.outputs, specs):
            if spec.kind is ValueKind.TENSOR and spec.shape is not None:
                self.types[name] = shaped(self.types[name], spec.shape)


def _settle(partitioning: Partitioning, closing: ExitStack) -> list[_Part]:
    """Cut, and let the backends read their parts, until they take them all.

    closing: gets what closes the loaded models. Returns the parts in running order.
    """
    reader = _Reader(partitioning)
    done: dict[tuple[Segment, frozenset[str]], _Part] = {}
    closing.callback(_close, done)
    while True:
        cut = partition(reader.whole.graph, partitioning.levels, partitioning.copied)
        wanted = [(segment, _resident(partitioning, segment, cut)) for segment in cut]
        for key in done.keys() - {*wanted}:
            close(done.pop(key).loaded)
        for key in wanted:
            if key in done:
                continue
            part = reader.read(*key)
            if part is None:
                break  # cut anew: what comes later may be read otherwise then
            done[key] = part
        else:
            return [done[key] for key in wanted]


def _close(done: Mapping[tuple[Segment, frozenset[str]], _Part]) -> None:
    for part in done.values():
        close(part.loaded)


def _resident(
    partitioning: Partitioning, segment: Segment, cut: Sequence[Segment]
) -> frozenset[str]:
    """Return the outputs of a segment that stay on its device: another segment there reads them."""
    candidate = partitioning.candidates[segment.level]
    device = candidate.options.device
    if not takes_buffers(candidate.backend, device):
        return frozenset()
    read: set[str] = set()
    for other in cut:
        reader = partitioning.candidates[other.level]
        if (reader.backend, reader.options.device) == (candidate.backend, device):
            read.update(other.inputs)
    graph = partitioning.source.graph
    results = {spec.name for spec in graph.outputs} if graph is not None else set()
    return frozenset(read.intersection(segment.outputs) - results)


def _of_a_part(error: ModelError, segment: Segment, candidate: Candidate) -> ModelError:
    """Return the error of a backend that was given a part of the model, saying so."""
    nodes = segment.nodes
    return ModelError(
        f"{error} (in a part of the model, {len(nodes)} nodes from {nodes[0]} to {nodes[-1]}, that "
        f"was cut out for backend {candidate.backend.name!r})",
        error.path,
    )


def _compile(partitioning: Partitioning, parts: Sequence[_Part]) -> segments.SegmentedExecutable:
    """Compile the parts and number the values that go in, between them and out."""
    graph = partitioning.source.graph
    assert graph is not None
    numbers = {spec.name: number for number, spec in enumerate(graph.inputs)}
    last: dict[str, Segment] = {}
    for part in parts:
        for name in part.segment.outputs:
            numbers[name] = len(numbers)
        last.update(dict.fromkeys((*part.segment.inputs, *part.segment.outputs), part.segment))
    for spec in graph.outputs:
        last.pop(spec.name, None)
    compiled: list[segments.CompiledSegment] = []
    with ExitStack() as on_failure:
        for count, part in enumerate(parts, 1):
            executable = _compile_part(part, f"segment {count} of {len(parts)}")
            on_failure.callback(close, executable)
            segment = part.segment
            compiled.append(
                segments.CompiledSegment(
                    backend=part.candidate.backend,
                    executable=executable,
                    device=part.options.device,
                    nodes=segment.nodes,
                    reads=tuple(numbers[name] for name in segment.inputs),
                    writes=tuple(numbers[name] for name in segment.outputs),
                    ends=tuple(numbers[name] for name in last if last[name] is segment),
                    resident=frozenset(numbers[name] for name in part.options.resident),
                )
            )
        graph_inputs = enumerate(graph.inputs)
        placed = {index for part in parts for index in part.segment.nodes}
        source = partitioning.source
        held = (*state_of(source), *variables_of(source))
        executable = segments.SegmentedExecutable(
            compiled,
            inputs=tuple(_bounded(spec, number, compiled) for number, spec in graph_inputs),
            outputs=graph.outputs,
            results=tuple(numbers[spec.name] for spec in graph.outputs),
            width=len(numbers),
            rest=[_unread(partitioning, index) for index in {*range(len(graph.nodes))} - placed],
            held=len(held),
        )
        on_failure.pop_all()
    return executable


def _compile_part(part: _Part, title: str) -> Executable:
    options = part.options
    if options.cancel is not None:
        options.cancel.check()
    if options.progress is not None:
        options = replace(options, progress=_titled(options.progress, title))
    try:
        return compile_loaded(part.candidate.backend, part.loaded, options)
    except ModelError as error:
        raise _of_a_part(error, part.segment, part.candidate) from error


def _titled(progress: Progress, title: str) -> Progress:
    """Return a progress callback for one part: its phases are phases of their own."""
    return lambda phase, done, total: progress(f"{title}: {phase}", done, total)


def _bounded(
    spec: TensorSpec, number: int, compiled: Sequence[segments.CompiledSegment]
) -> TensorSpec:
    """Return a model's input in the tightest bounds that its readers were compiled for."""
    readers = [
        (segment.backend.name, segment.executable.inputs[segment.reads.index(number)].bounds)
        for segment in compiled
        if number in segment.reads
    ]
    bounds: list[tuple[int, int] | None] = []
    for axis, ranges in enumerate(zip(*(ranges for _, ranges in readers if ranges), strict=True)):
        known = [bound for bound in ranges if bound is not None]
        if not known:
            bounds.append(None)
            continue
        lowest, highest = max(low for low, _ in known), min(high for _, high in known)
        bounds.append((lowest, highest))
        if lowest > highest:
            asked = (f"{name!r} {ranges[axis]}" for name, ranges in readers if ranges)
            raise ModelError(
                f"input {spec.name!r}: dim {axis} has no size for which all backends that read it "
                f"were compiled: {', '.join(asked)}; compile the model for one range"
            )
    return replace(spec, bounds=tuple(bounds))


def _unread(partitioning: Partitioning, index: int) -> Placement:
    """Return the placement of a node that is in no segment."""
    first, node = partitioning.candidates[0], partitioning.nodes[index]
    providers = (first.options.provider, *first.backend.info.providers, "")
    return Placement(
        index=index,
        node=node.name,
        op_type=node.op_type,
        backend=first.backend.name,
        device=str(first.options.device),
        provider=next(filter(None, providers), ""),
        reason="it is not run, because no output depends on it",
    )
