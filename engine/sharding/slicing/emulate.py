"""Run all ranks of a sliced model in this process, one after another, and the original likewise.

The ranks' files are cut at their collectives, as a rank itself does it; what they exchange is
combined here, in the order of the ranks, by the arithmetic that ranks use. A part of a model is in
memory only while it runs: its weights stay in the file, and a large model is cut further.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from onnx import TypeProto, numpy_helper

from engine.context import Context
from engine.distributed.reduction import reduction
from engine.errors import ModelError
from engine.formats import ModelFile
from engine.formats.collectives import is_collective
from engine.formats.onnx.infer import types_of
from engine.plan import BuildOptions, Targets, build_plan
from engine.plan.contexts import close
from engine.plan.extract import Whole
from engine.plan.partition import Segment, live, partition
from engine.types import DType, ModelSource, NodeInfo, ReduceOp
from engine.weights.compile_cache import UNCACHED

Array: TypeAlias = "np.ndarray[Any, Any]"
Values: TypeAlias = "dict[str, Any]"
Run: TypeAlias = Callable[[ModelSource, Mapping[str, Any]], Values]

PART_BYTES = 192 << 20
"""Weights of a part that is run at once; one of more has a single node."""


class PendingCollective(NamedTuple):
    """A rank that waits for others: the node, and what it brings."""

    node: NodeInfo
    brings: Array | None


def run_original(path: Path, inputs: Mapping[str, Any], context: Context) -> Values:
    """Return the results of a whole model by name, at most `PART_BYTES` of weights at a time."""
    source = ModelFile(path)()
    whole = Whole(source)
    order = [index for index in live(whole.graph) if index not in constant_nodes(whole)]
    names = [value.name for value in whole.proto.graph.output]
    if _weights(whole, range(len(whole.graph.nodes))) <= PART_BYTES:
        return run_part(source, inputs, context)
    parts = cut(whole, order, set(names), [*inputs])
    return run_parts(whole, parts, inputs, names, partial(run_part, context=context))


def run_parts(
    whole: Whole,
    parts: Sequence[Segment],
    inputs: Mapping[str, Any],
    names: Collection[str],
    run: Run,
) -> Values:
    """Return what parts of a model, run one after another, make of these names."""
    types = types_between(whole, parts)
    values = dict(inputs)
    for part, following in zip(parts, needed_after(parts, names)):
        values |= run(whole.part(part, types), values)
        values = {name: value for name, value in values.items() if name in following}
    return {name: values[name] for name in names}


def run_ranks(paths: Sequence[Path], inputs: Mapping[str, Any], context: Context) -> list[Values]:
    """Return the results of each rank's model, by name.

    Raises ModelError where ranks wait for each other in vain.
    """
    world = len(paths)
    ranks = [_rank(path, inputs, context) for path in paths]
    results: list[Values | None] = [None] * world
    waiting: dict[int, PendingCollective] = {}
    answers: dict[int, Array | None] = dict.fromkeys(range(world))
    while answers:
        for rank, answer in sorted(answers.items()):
            try:
                waiting[rank] = ranks[rank].send(answer)
            except StopIteration as ended:
                results[rank] = ended.value
        answers = _met(waiting, world)
        for rank in answers:
            del waiting[rank]
    if waiting:
        rank, pending = next(iter(waiting.items()))
        raise ModelError(
            f"{paths[rank]}: {pending.node.op_type} {pending.node.name!r} waits for ranks that do "
            "something else"
        )
    return [result for result in results if result is not None]


def _rank(
    path: Path, inputs: Mapping[str, Any], context: Context
) -> Generator[PendingCollective, Array | None, Values]:
    """Run one rank's model; yields where it waits for others, and is sent what it gets."""
    source = ModelFile(path)()
    whole = Whole(source)
    graph = source.graph
    assert graph is not None
    levels = [int(node.is_collective) for node in whole.graph.nodes]
    names = [value.name for value in whole.proto.graph.output]
    segments = []
    for segment in partition(whole.graph, levels, constant_nodes(whole)):
        if segment.level or _weights(whole, segment.nodes) <= PART_BYTES:
            segments.append(segment)
        else:
            order = [index for index in segment.nodes if index not in constant_nodes(whole)]
            segments += cut(whole, order, {*segment.outputs}, [*segment.inputs])
    types = types_between(whole, segments)
    values: Values = {name: inputs[name] for name in whole.graph.inputs}
    for segment, following in zip(segments, needed_after(segments, names)):
        if segment.level:
            for index in segment.nodes:
                node = graph.nodes[index]
                if is_collective(node.op_type, node.domain):
                    brings = _brought(node.inputs[0], values, whole, path) if node.inputs else None
                    values[node.outputs[0]] = yield PendingCollective(node, brings)
        else:
            values |= run_part(whole.part(segment, types), values, context)
        values = {name: value for name, value in values.items() if name in following}
    return {name: values[name] for name in names}


def _brought(name: str, values: Mapping[str, Any], whole: Whole, path: Path) -> Any:
    """Return what a rank brings to a collective: what it has computed, or a weight."""
    if name in values:
        return values[name]
    tensor = next(tensor for tensor in whole.proto.graph.initializer if tensor.name == name)
    return numpy_helper.to_array(tensor, str(path.parent))


# --------------------------------------------------------------------------------- collectives


def _met(waiting: Mapping[int, PendingCollective], world: int) -> dict[int, Array | None]:
    """Return what those of the waiting ranks get that all have come whom they wait for."""
    found: dict[int, Array | None] = {}
    for rank, pending in waiting.items():
        if rank in found:
            continue
        node = pending.node
        if node.op_type in ("Send", "Receive"):
            peer = int(str(node.attributes["rank"]))
            other = waiting.get(peer)
            if other is None or other.node.attributes.get("rank") != rank:
                continue
            if {node.op_type, other.node.op_type} == {"Send", "Receive"}:
                sent = pending.brings if node.op_type == "Send" else other.brings
                found[rank] = found[peer] = sent
            continue
        named = node.attributes.get("group_ranks")
        members = [int(str(member)) for member in named] if isinstance(named, tuple) else None
        group = members or list(range(world))
        if all(member in waiting and _is_same(waiting[member].node, node) for member in group):
            brings = [waiting[member].brings for member in group]
            if node.op_type == "Broadcast":  # ranks may have nothing to give to it
                brings = [brings[group.index(int(str(node.attributes.get("root", 0))))]]
            given = _COLLECTIVES[node.op_type](node, group, [b for b in brings if b is not None])
            found |= dict(zip(group, given))
    return found


def _is_same(one: NodeInfo, other: NodeInfo) -> bool:
    return one.op_type == other.op_type and one.attributes == other.attributes


def _all_reduce(node: NodeInfo, group: Sequence[int], parts: list[Array]) -> list[Array]:
    text = str(node.attributes.get("reduction", "sum"))
    out = np.empty_like(parts[0])
    reduction(ReduceOp(text), DType.from_numpy(out.dtype))(*parts, out=out)
    return [out] * len(group)


def _all_gather(node: NodeInfo, group: Sequence[int], parts: list[Array]) -> list[Array]:
    return [np.concatenate(parts, int(str(node.attributes.get("axis", 0))))] * len(group)


def _reduce_scatter(node: NodeInfo, group: Sequence[int], parts: list[Array]) -> list[Array]:
    return np.split(_all_reduce(node, group, parts)[0], len(group))


def _all_to_all(node: NodeInfo, group: Sequence[int], parts: list[Array]) -> list[Array]:
    split, concat = (int(str(node.attributes.get(f"{n}_axis", 0))) for n in ("split", "concat"))
    cut = [np.split(part, len(group), split) for part in parts]
    return [np.concatenate([pieces[own] for pieces in cut], concat) for own in range(len(group))]


def _broadcast(node: NodeInfo, group: Sequence[int], parts: list[Array]) -> list[Array]:
    return parts * len(group)  # the root's alone


_COLLECTIVES: Mapping[str, Callable[[NodeInfo, Sequence[int], list[Array]], list[Array]]] = {
    "AllReduce": _all_reduce,
    "AllGather": _all_gather,
    "ReduceScatter": _reduce_scatter,
    "AllToAll": _all_to_all,
    "Broadcast": _broadcast,
    "Barrier": lambda node, group, parts: [np.zeros(1, np.uint8)] * len(group),
}


# ---------------------------------------------------------------------------------------- parts


def run_part(source: ModelSource, values: Mapping[str, Any], context: Context) -> Values:
    """Run a model, or a part of one, and free it."""
    plan = build_plan(source, Targets(BuildOptions(context, UNCACHED)))
    try:
        own = plan.executable.open_context()
        try:
            given = [values[spec.name] for spec in plan.executable.inputs]
            found = plan.predict(own, given, None, None)
            specs = plan.executable.outputs
            return {spec.name: value for spec, value in zip(specs, found, strict=True)}
        finally:
            close(own)
    finally:
        plan.pool.close()
        _trim()


def _trim() -> None:
    """Give freed memory back, so that the next part does not come on top of it."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def constant_nodes(whole: Whole) -> set[int]:
    """Return which nodes hold a constant."""
    nodes = whole.proto.graph.node
    return {index for index, node in enumerate(nodes) if node.op_type == "Constant"}


def _weights(whole: Whole, nodes: Iterable[int]) -> int:
    sizes = {tensor.name: prod(tensor.dims) * 4 for tensor in whole.proto.graph.initializer}
    read = {name for index in nodes for name in whole.graph.nodes[index].reads}
    return sum(sizes.get(name, 0) for name in read)


def cut(whole: Whole, order: Sequence[int], wanted: set[str], given: list[str]) -> list[Segment]:
    """Cut nodes, in their order, into parts of at most `PART_BYTES` of weights.

    wanted: what is needed of them afterwards. given: what is there before.
    """
    graph = whole.graph
    makers = {name: i for i in constant_nodes(whole) for name in graph.nodes[i].writes}
    sizes = [_weights(whole, [index]) for index in order]
    parts: list[list[int]] = [[]]
    total = 0
    for index, size in zip(order, sizes):
        if parts[-1] and total + size > PART_BYTES:
            parts.append([])
            total = 0
        parts[-1].append(index)
        total += size
    found = []
    later = [set(wanted)]
    for part in reversed(parts):
        later.append(later[-1].union(*(graph.nodes[index].reads for index in part)))
    known = [*given]
    for part, needed in zip(parts, later[-2::-1]):
        made = [name for index in part for name in graph.nodes[index].writes]
        reads = {name for index in part for name in graph.nodes[index].reads}
        outputs = [name for name in made if name in needed]
        nodes = sorted({*part, *(makers[name] for name in reads if name in makers)})
        inputs = tuple(name for name in known if name in reads)
        found.append(Segment(0, tuple(nodes), inputs, tuple(outputs)))
        known += made
    return found


def needed_after(parts: Sequence[Segment], names: Iterable[str]) -> list[set[str]]:
    """Return for each part what is still needed when it has run."""
    needed = [set(names)]
    for part in reversed(parts[1:]):
        needed.append(needed[-1] | {*part.inputs})
    return needed[::-1]


def types_between(whole: Whole, parts: Sequence[Segment]) -> dict[str, TypeProto]:
    """Return the types of what goes into and comes out of parts."""
    names = {name for part in parts for name in (*part.inputs, *part.outputs)}
    return types_of(whole.proto, names, guess=True)
