"""Compile the parts of a model, each by its backend, and make one executable of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from engine.errors import ModelError
from engine.formats.opened import state_of, variables_of
from engine.plan.compile import NOWHERE
from engine.plan.contexts import close
from engine.plan.dataflow import CompiledSegment
from engine.plan.mixed.partitioning import RESULTS, Partitioning
from engine.plan.partition import Segment
from engine.plan.plan import Candidate
from engine.plan.segments import SegmentedExecutable
from engine.types import (
    CompileOptions,
    Executable,
    LoadedModel,
    ModelSource,
    Placement,
    Progress,
    TensorSpec,
)


@dataclass(frozen=True, slots=True)
class Part:
    """A segment and its model, with the options for its backend.

    loaded: as the backend has read it; None where it was not asked yet.
    """

    segment: Segment
    candidate: Candidate
    source: ModelSource
    options: CompileOptions
    loaded: LoadedModel | None = None


class Refused(Exception):
    """A backend has refused nodes of a part that was thought to be one that it takes."""


def of_a_part(error: ModelError, segment: Segment, candidate: Candidate) -> ModelError:
    """Return the error of a backend that was given a part of the model, saying so."""
    nodes = segment.nodes
    return ModelError(
        f"{error} (in a part of the model, {len(nodes)} nodes from {nodes[0]} to {nodes[-1]}, that "
        f"was cut out for backend {candidate.backend.name!r})",
        error.path,
    )


def compile_segments(partitioning: Partitioning, parts: Sequence[Part]) -> SegmentedExecutable:
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
    compiled: list[CompiledSegment] = []
    with ExitStack() as on_failure:
        for count, part in enumerate(parts, 1):
            executable = _compile_part(part, f"segment {count} of {len(parts)}")
            on_failure.callback(close, executable)
            segment = part.segment
            compiled.append(
                CompiledSegment(
                    backend=part.candidate.backend,
                    executable=executable,
                    device=part.options.device,
                    nodes=segment.nodes,
                    reads=tuple(numbers[name] for name in segment.inputs),
                    writes=tuple(numbers[name] for name in segment.outputs),
                    ends=tuple(numbers[name] for name in last if last[name] is segment),
                    resident=frozenset(numbers[name] for name in part.options.resident),
                    is_shared=segment.level < 0,
                    is_afterwards=segment.level == RESULTS,
                    devices=part.options.devices,
                )
            )
        graph_inputs = enumerate(graph.inputs)
        placed = {index for part in parts for index in part.segment.nodes}
        source = partitioning.source
        held = (*state_of(source), *variables_of(source))
        executable = SegmentedExecutable(
            tuple(compiled),
            inputs=tuple(_bounded(spec, number, compiled) for number, spec in graph_inputs),
            outputs=graph.outputs,
            results=tuple(numbers[spec.name] for spec in graph.outputs),
            width=len(numbers),
            rest=[_unread(partitioning, index) for index in {*range(len(graph.nodes))} - placed],
            held=len(held),
        )
        on_failure.pop_all()
    return executable


def _compile_part(part: Part, title: str) -> Executable:
    options = part.options
    if options.cancel is not None:
        options.cancel.check()
    if options.progress is not None:
        options = replace(options, progress=_titled(options.progress, title))
    forms = part.candidate.forms or NOWHERE
    try:
        executable, unsupported = forms.compiled(
            part.candidate.backend, part.source, options, part.loaded
        )
    except ModelError as error:
        raise of_a_part(error, part.segment, part.candidate) from error
    if executable is None:
        raise Refused(next(iter(unsupported.values())))
    return executable


def _titled(progress: Progress, title: str) -> Progress:
    """Return a progress callback for one part: its phases are phases of their own."""
    return lambda phase, done, total: progress(f"{title}: {phase}", done, total)


def _bounded(spec: TensorSpec, number: int, compiled: Sequence[CompiledSegment]) -> TensorSpec:
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
