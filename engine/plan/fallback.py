"""One model on several backends: what one cannot run goes to the next that can.

The backends are asked, part by part, until each part is with one that takes all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from engine.errors import BackendError, ModelError
from engine.formats.collectives import is_collective
from engine.formats.micro_batches import AFTERWARDS
from engine.formats.opened import digest_of
from engine.host.interrupts import raised_by_handler
from engine.plan import segments
from engine.plan.compile import (
    NOWHERE,
    Candidate,
    CompiledForms,
    Plan,
    attribute_errors_to,
    compile_whole,
    load,
)
from engine.plan.contexts import ContextPool, close
from engine.plan.options import part_options, plan_name
from engine.plan.partition import Segment, partition
from engine.plan.partition_cache import read, write
from engine.plan.parts import COLLECTIVES, RESULTS, Part, Refused, compile_segments, of_a_part
from engine.plan.transfer import takes_buffers
from engine.types import (
    Capability,
    ModelSource,
    NodeInfo,
    ValueKind,
)

if TYPE_CHECKING:
    from onnx import TypeProto


def compile_with_fallback(
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
    forms = first.forms or NOWHERE
    keeps_it_whole = first.backend.lacks(Capability.MIXED_PLACEMENT, first.options.device)
    if not partitioning.nodes or keeps_it_whole:
        raise partitioning.unplaceable(0, unsupported)
    every = range(len(partitioning.nodes))
    partitioning.refuse(0, every, unsupported)
    if set(partitioning.levels) == {1}:
        second = partitioning.candidates[1]
        plan, unsupported = compile_whole(second, source)
        if plan is not None:
            if digest_of(source):
                forms.keep(source, first.key(), partial(write, partitioning, ()))
            return _whole_plan(partitioning, plan)
        partitioning.refuse(1, every, unsupported)
    executable = compile_parts(partitioning, forms)
    try:
        return plan_of(partitioning, executable)
    except BaseException:
        close(executable)
        raise


def compile_cached_partition(
    first: Candidate, source: ModelSource, further: Iterator[Candidate | BackendError]
) -> tuple[Plan | None, Iterator[Candidate | BackendError]]:
    """Compile a model as it was partitioned before, without asking or cutting anything.

    None where there is no such partition, or it is of no use any more; the candidates are then to
    be asked from the start.
    """
    asked: list[Candidate | BackendError] = []
    partitioning = Partitioning(first, source, remembered(further, asked))
    forms = first.forms or NOWHERE
    try:
        parts = forms.find(source, first.key(), partial(read, partitioning))
        if parts is None:
            return None, chain(asked, further)
        if not parts:
            plan, _ = compile_whole(partitioning.candidates[1], source)
            if plan is None:
                return None, chain(asked, further)
            return _whole_plan(partitioning, plan), further
        executable = compile_segments(partitioning, parts)
    except Refused:
        return None, chain(asked, further)
    try:
        return plan_of(partitioning, executable), further
    except BaseException:
        close(executable)
        raise


def remembered(
    further: Iterator[Candidate | BackendError], asked: list[Candidate | BackendError]
) -> Iterator[Candidate | BackendError]:
    """Yield candidates, adding them to a list of those to be asked again."""
    for candidate in further:
        asked.append(candidate)
        yield candidate


def _whole_plan(partitioning: Partitioning, plan: Plan) -> Plan:
    """Return the plan of a model that the second candidate runs whole."""
    partitioning.warn(range(len(partitioning.nodes)))
    return replace(plan, fallback_reasons=partitioning.fallback_reasons)


def plan_of(partitioning: Partitioning, executable: segments.SegmentedExecutable) -> Plan:
    """Return the plan of what the parts of a model were compiled to."""
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


def compile_parts(
    partitioning: Partitioning,
    forms: CompiledForms = NOWHERE,
    more: Mapping[str, str] | None = None,
) -> segments.SegmentedExecutable:
    """Compile a model as its nodes are divided; nodes that a backend refuses move on.

    forms: where the partition is kept, by the first candidate's key and `more`. Raises ModelError
    where nobody runs a node, or where a backend refuses a part.
    """
    with ExitStack() as on_failure:
        with ExitStack() as closing:
            parts = _settle(partitioning, closing)
            executable = compile_segments(partitioning, parts)
            on_failure.callback(close, executable)
            source, first = partitioning.source, partitioning.candidates[0]
            if digest_of(source):
                key = {**first.key(), **(more or {})}
                forms.keep(source, key, partial(write, partitioning, parts))
        on_failure.pop_all()
    return executable


class Partitioning:
    """The candidate of each node, as far as they have been asked.

    candidates: the first, and those that were asked; the index in this list is the level.
    levels: of each node. fallback_reasons: why a node is not on level 0. copied: constant nodes,
    which stand in every part that reads them.
    collectives: the candidate for these; None leaves them to the others.
    """

    def __init__(
        self,
        first: Candidate,
        source: ModelSource,
        further: Iterator[Candidate | BackendError],
        collectives: Candidate | None = None,
    ) -> None:
        self.source = source
        self.candidates = [first]
        self.nodes = source.graph.nodes if source.graph is not None else ()
        self.levels = [_level(node) if collectives else 0 for node in self.nodes]
        self._collectives = collectives
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

    def candidate(self, level: int) -> Candidate:
        """Return the candidate of a level."""
        if level < 0:
            assert self._collectives is not None, "no node is on this level otherwise"
            return self._collectives
        return self.candidates[level]

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
        titles: dict[str, list[str]] = {}
        for index, reason in refused.items():
            earlier = self.fallback_reasons.get(index)
            titles.setdefault(f"{reason} ({earlier})" if earlier else reason, []).append(
                self._title(index)
            )
        lines = [f"{_listed(nodes)}: {reason}" for reason, nodes in titles.items()]
        more = f" and {len(lines) - 5} more reasons" if len(lines) > 5 else ""
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
        node = self.nodes[index]
        return f"{node.op_type} {node.name!r}" if node.name else f"{node.op_type}_{index}"

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


def _listed(titles: Sequence[str]) -> str:
    more = f" and {len(titles) - 3} more nodes" if len(titles) > 3 else ""
    return f"{', '.join(titles[:3])}{more}"


def _level(node: NodeInfo) -> int:
    if not is_collective(node.op_type, node.domain):
        return 0
    return RESULTS if node.attributes.get(AFTERWARDS) else COLLECTIVES


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

    def read(self, segment: Segment, resident: frozenset[str]) -> Part | None:
        """Return a segment as its backend reads it; None where that refused some of it.

        What it refused goes to the next candidate. resident: outputs that stay on its device.
        """
        partitioning = self._partitioning
        self._infer(segment)
        candidate = partitioning.candidate(segment.level)
        source = self.whole.part(segment, self.types)
        options = part_options(
            candidate.options, self._ranges, segment.inputs, resident, self._plan
        )
        try:
            loaded, unsupported = load(candidate.backend, source, options)
        except ModelError as error:
            if raised_by_handler(error):
                raise
            if segment.level < 1 or not partitioning.reaches(segment.level + 1):
                raise of_a_part(error, segment, candidate) from error
            own = [i for i, index in enumerate(segment.nodes) if index not in partitioning.copied]
            unsupported = dict.fromkeys(own, str(error))
        else:
            if not unsupported:
                part = Part(segment, candidate, source, options, loaded)
                self._learn(part)
                return self._released(part)
            close(loaded)
        partitioning.refuse(segment.level, segment.nodes, unsupported)
        return None

    def _released(self, part: Part) -> Part:
        """Return a part without its loaded model, where a compiled form takes a load of its own.

        Else all parts would be in memory at once until the last of them has been asked.
        """
        candidate = part.candidate
        lacks = candidate.backend.lacks(Capability.COMPILE_CACHE, candidate.options.device)
        if candidate.forms is None or lacks or not digest_of(self._partitioning.source):
            return part
        assert part.loaded is not None, "it has just been read"
        close(part.loaded)
        return replace(part, loaded=None)

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

    def _learn(self, part: Part) -> None:
        """Take the shapes of a part's outputs from its backend where nobody knew them.

        It knows its own operators, and what comes later may need to know how many axes there are.
        """
        from engine.formats.onnx.infer import shaped

        assert part.loaded is not None, "it has just been read"
        with attribute_errors_to(part.candidate.backend, "engine_load"):
            specs = tuple(part.loaded.outputs)
        for name, spec in zip(part.segment.outputs, specs):
            if spec.kind is ValueKind.TENSOR and spec.shape is not None:
                self.types[name] = shaped(self.types[name], spec.shape)


def _settle(partitioning: Partitioning, closing: ExitStack) -> list[Part]:
    """Cut, and let the backends read their parts, until they take them all.

    closing: gets what closes the loaded models. Returns the parts in running order.
    """
    reader = _Reader(partitioning)
    done: dict[tuple[Segment, frozenset[str]], Part] = {}
    closing.callback(_close, done)
    while True:
        cut = partition(reader.whole.graph, partitioning.levels, partitioning.copied)
        wanted = [(segment, _resident(partitioning, segment, cut)) for segment in cut]
        for key in done.keys() - {*wanted}:
            _close({key: done.pop(key)})
        for key in wanted:
            if key in done:
                continue
            part = reader.read(*key)
            if part is None:
                break  # cut anew: what comes later may be read otherwise then
            done[key] = part
        else:
            return [done[key] for key in wanted]


def _close(done: Mapping[tuple[Segment, frozenset[str]], Part]) -> None:
    for part in done.values():
        if part.loaded is not None:
            close(part.loaded)


def _resident(
    partitioning: Partitioning, segment: Segment, cut: Sequence[Segment]
) -> frozenset[str]:
    """Return the outputs of a segment that stay on its device: another segment there reads them."""
    candidate = partitioning.candidate(segment.level)
    device = candidate.options.device
    if not takes_buffers(candidate.backend, device):
        return frozenset()
    read: set[str] = set()
    for other in cut:
        reader = partitioning.candidate(other.level)
        is_own = reader.backend == candidate.backend
        # Collectives on a device are run by its own backend, in the core's name.
        is_own |= COLLECTIVES in (segment.level, other.level) and takes_buffers(
            reader.backend, device
        )
        if is_own and reader.options.device == device:
            read.update(other.inputs)
    graph = partitioning.source.graph
    results = {spec.name for spec in graph.outputs} if graph is not None else set()
    return frozenset(read.intersection(segment.outputs) - results)
