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
from engine.plan.partition import Segment, partition
from engine.types import (
    Capability,
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

    from engine.plan.extract import Whole


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
    if not partitioning.nodes or not first.backend.can(Capability.MIXED_PLACEMENT):
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
    with ExitStack() as on_failure:
        with ExitStack() as closing:
            parts = _settle(partitioning, closing)
            executable = _compile(partitioning, parts)
            on_failure.callback(close, executable)
        on_failure.pop_all()
    placed = {index for part in parts for index in part.segment.nodes}
    partitioning.warn(placed)
    used = {part.candidate.backend.name: part.candidate.backend for part in parts}
    used.pop(first.backend.name, None)
    return Plan(
        first.backend,
        replace(source, data=None, files={}),
        executable,
        segments.predict,
        ContextPool(executable),
        others=tuple(used.values()),
        fallback_reasons={
            index: why for index, why in partitioning.fallback_reasons.items() if index in placed
        },
    )


class Partitioning:
    """Which candidate gets which node, as far as they have been asked.

    candidates: the first, and those that were asked; the place in this list is the level.
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
        """The candidates, as messages call them."""
        return [f"backend {each.backend.name!r}" for each in self.candidates]

    def reaches(self, level: int) -> bool:
        """Whether there is a candidate of that level."""
        while len(self.candidates) <= level:
            found = next(self._further, None)
            if found is None:
                return False
            if isinstance(found, Candidate):
                self.candidates.append(found)
            else:
                self._missing.append(str(found))
        return True

    def refuse(self, level: int, nodes: Sequence[int], refused: Mapping[int, str]) -> None:
        """Move nodes to the next level, for the reasons that the backend of this one gave.

        refused: by place in `nodes`. ModelError where there is no further level.
        """
        by_index = {nodes[each]: reason for each, reason in refused.items()}
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
        """The error for nodes that the backend of the last level refuses, each with its reason."""
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
        names = [each.backend.name for each in self.candidates]
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
        """Say which of the nodes that run do so on a backend that the user has not listed."""
        for level, candidate in enumerate(self.candidates):
            found = sorted(index for index in used if self.levels[index] == level)
            if candidate.is_listed or not found:
                continue
            shown = "; ".join(
                f"{self._title(index)}: {self.fallback_reasons[index]}" for index in found[:3]
            )
            more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
            logging.getLogger("engine").warning(
                f"{self.source.name}: {len(found)} of {len(self.levels)} nodes run on "
                f"{self.names[level]}: {shown}{more}"
            )


@dataclass(frozen=True, slots=True)
class _Part:
    """A segment as its backend has read it."""

    segment: Segment
    candidate: Candidate
    loaded: LoadedModel


def _settle(partitioning: Partitioning, closing: ExitStack) -> list[_Part]:
    """Cut, and let the backends read their parts, until they take them all.

    closing: gets what closes the loaded models. Returns the parts in running order.
    """
    try:
        from engine.plan.extract import Whole
    except ImportError as error:
        refused = "; ".join(partitioning.fallback_reasons.values())
        raise ModelError(
            f"{partitioning.source.name}: {refused}; cutting it for several backends needs "
            "the onnx package; run: pip install onnx",
            partitioning.source.name,
        ) from error
    whole = Whole(partitioning.source)
    types: dict[str, TypeProto] = {}
    done: dict[Segment, _Part] = {}
    closing.callback(_close, done)
    while True:
        segments_now = partition(whole.graph, partitioning.levels, partitioning.copied)
        for segment in done.keys() - {*segments_now}:
            close(done.pop(segment).loaded)
        for segment in segments_now:
            if segment in done:
                continue
            part = _read(partitioning, whole, segment, types)
            if part is None:
                break  # cut anew: what comes later may be read otherwise then
            done[segment] = part
            _learn(part, types)
        else:
            return [done[segment] for segment in segments_now]


def _close(done: Mapping[Segment, _Part]) -> None:
    for part in done.values():
        close(part.loaded)


def _read(
    partitioning: Partitioning, whole: Whole, segment: Segment, types: dict[str, TypeProto]
) -> _Part | None:
    """A part as its backend reads it; None where that refused some of it, which is noted."""
    _infer(partitioning, whole, segment, types)
    candidate = partitioning.candidates[segment.level]
    source = whole.part(segment, types)
    try:
        loaded, unsupported = load(candidate.backend, source, candidate.options)
    except ModelError as error:
        if not segment.level or not partitioning.reaches(segment.level + 1):
            raise _of_a_part(error, segment, candidate) from error
        own = [i for i, index in enumerate(segment.nodes) if index not in partitioning.copied]
        unsupported = dict.fromkeys(own, str(error))
    else:
        if not unsupported:
            return _Part(segment, candidate, loaded)
        close(loaded)
    partitioning.refuse(segment.level, segment.nodes, unsupported)
    return None


def _infer(
    partitioning: Partitioning, whole: Whole, segment: Segment, types: dict[str, TypeProto]
) -> None:
    """Complete `types` with those of the segment's inputs and outputs."""
    from engine.formats.onnx.infer import types_of

    names = {*segment.inputs, *segment.outputs} - types.keys()
    types.update(types_of(whole.proto, names, guess=True, known=types))
    for name in sorted(names - types.keys()):
        raise ModelError(
            f"{partitioning.source.name}: the type of {name!r}, which goes to or comes from "
            f"{partitioning.names[segment.level]}, is not in the file and onnx cannot infer it; "
            "add it to the graph's value_info",
            partitioning.source.name,
        )


def _learn(part: _Part, types: dict[str, TypeProto]) -> None:
    """Take the shapes of a part's outputs from its backend where nobody knew them.

    It knows its own operators, and what comes later may need to know how many axes there are.
    """
    from engine.formats.onnx.infer import shaped

    with attribute_errors_to(part.candidate.backend, "engine_load"):
        specs = tuple(part.loaded.outputs)
    for name, spec in zip(part.segment.outputs, specs):
        if spec.kind is ValueKind.TENSOR and spec.shape is not None:
            types[name] = shaped(types[name], spec.shape)


def _of_a_part(error: ModelError, segment: Segment, candidate: Candidate) -> ModelError:
    """The error of a backend that was given a part of the model, saying so."""
    nodes = segment.nodes
    return ModelError(
        f"{error} (in a part of the model, {len(nodes)} nodes from {nodes[0]} to {nodes[-1]}, that "
        f"was cut out for backend {candidate.backend.name!r})",
        error.path,
    )


def _compile(partitioning: Partitioning, parts: Sequence[_Part]) -> segments.SegmentedExecutable:
    """Compile the parts and tie their values together."""
    graph = partitioning.source.graph
    assert graph is not None
    places = {spec.name: place for place, spec in enumerate(graph.inputs)}
    last: dict[str, Segment] = {}
    for part in parts:
        for name in part.segment.outputs:
            places[name] = len(places)
        last.update(dict.fromkeys((*part.segment.inputs, *part.segment.outputs), part.segment))
    for spec in graph.outputs:
        last.pop(spec.name, None)
    compiled: list[segments.Segment] = []
    with ExitStack() as on_failure:
        for number, part in enumerate(parts, 1):
            executable = _compile_part(part, f"segment {number} of {len(parts)}")
            on_failure.callback(close, executable)
            segment = part.segment
            compiled.append(
                segments.Segment(
                    backend=part.candidate.backend,
                    executable=executable,
                    nodes=segment.nodes,
                    reads=tuple(places[name] for name in segment.inputs),
                    writes=tuple(places[name] for name in segment.outputs),
                    ends=tuple(places[name] for name in last if last[name] is segment),
                )
            )
        on_failure.pop_all()
    placed = {index for part in parts for index in part.segment.nodes}
    return segments.SegmentedExecutable(
        compiled,
        inputs=tuple(_bounded(spec, place, compiled) for place, spec in enumerate(graph.inputs)),
        outputs=graph.outputs,
        places=tuple(places[spec.name] for spec in graph.outputs),
        width=len(places),
        rest=[_unread(partitioning, index) for index in {*range(len(graph.nodes))} - placed],
    )


def _compile_part(part: _Part, title: str) -> Executable:
    options = part.candidate.options
    if options.cancel is not None:
        options.cancel.check()
    if options.progress is not None:
        options = replace(options, progress=_titled(options.progress, title))
    try:
        return compile_loaded(part.candidate.backend, part.loaded, options)
    except ModelError as error:
        raise _of_a_part(error, part.segment, part.candidate) from error


def _titled(progress: Progress, title: str) -> Progress:
    """A progress callback for one part: every part's phases are phases of their own."""
    return lambda phase, done, total: progress(f"{title}: {phase}", done, total)


def _bounded(spec: TensorSpec, place: int, compiled: Sequence[segments.Segment]) -> TensorSpec:
    """A model's input, in the tightest bounds that the segments which read it were compiled for."""
    readers = [
        segment.executable.inputs[segment.reads.index(place)]
        for segment in compiled
        if place in segment.reads
    ]
    axes = zip(*(reader.bounds for reader in readers if reader.bounds), strict=True)
    known = [[bound for bound in axis if bound is not None] for axis in axes]
    bounds = tuple(
        (max(low for low, _ in axis), min(high for _, high in axis)) if axis else None
        for axis in known
    )
    return replace(spec, bounds=bounds)


def _unread(partitioning: Partitioning, index: int) -> Placement:
    """The placement of a node that is in no segment."""
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
