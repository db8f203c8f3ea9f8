"""One model on several backends: what one cannot run goes to the next that can.

The backends are asked, part by part, until each part is with one that takes all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from engine.backends.attribution import attribute_errors_to
from engine.errors import BackendError, ModelError
from engine.formats.opened import digest_of
from engine.host.interrupts import pass_interrupt
from engine.plan.compile import NOWHERE, compile_whole, load
from engine.plan.contexts import ContextPool, close
from engine.plan.mixed.grouping import Grouping
from engine.plan.mixed.part_options import part_options, plan_name
from engine.plan.mixed.partition_cache import read, write
from engine.plan.mixed.partitioning import COLLECTIVES, Partitioning, remembered
from engine.plan.mixed.parts import Part, Refused, compile_segments, of_a_part
from engine.plan.partition import Segment, partition
from engine.plan.plan import Candidate, CompiledForms, Plan
from engine.plan.segments import SegmentedExecutable, predict
from engine.plan.transfer import takes_buffers
from engine.types import Capability, ValueKind

if TYPE_CHECKING:
    from onnx import TypeProto

    from engine.types import ModelSource


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


def _whole_plan(partitioning: Partitioning, plan: Plan) -> Plan:
    """Return the plan of a model that the second candidate runs whole."""
    partitioning.warn(range(len(partitioning.nodes)))
    return replace(plan, fallback_reasons=partitioning.fallback_reasons)


def plan_of(partitioning: Partitioning, executable: SegmentedExecutable) -> Plan:
    """Return the plan of what the parts of a model were compiled to."""
    first = partitioning.candidates[0]
    placed = {index for segment in executable.segments for index in segment.nodes}
    partitioning.warn(placed)
    used = dict.fromkeys(
        (segment.backend, device)
        for segment in executable.segments
        for device in segment.devices or (segment.device,)
    )
    return Plan(
        first.backend,
        replace(partitioning.source, data=None, files={}),
        executable,
        predict,
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
) -> SegmentedExecutable:
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

        Nodes that it refused go to the next candidate. resident: outputs that stay on its device.
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
            pass_interrupt(error)
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
    groups = Grouping(partitioning)
    done: dict[tuple[Segment, frozenset[str]], Part] = {}
    closing.callback(_close, done)
    while True:
        cut = partition(reader.whole.graph, partitioning.levels, partitioning.copied)
        if groups.move(cut):
            continue
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
