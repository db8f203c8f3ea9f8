"""The ranks of a sliced model as one model, in which each rank's nodes and values bear its name.

A value `h` of rank 1 is `rank1/h`, so that a fault is named with its rank. Exchanges of ranks are
computed by plain nodes: a Sum for an AllReduce, a Concat for an AllGather, in the ranks' order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from engine.errors import ModelError
from engine.formats import ModelFile
from engine.formats.collectives import AFTERWARDS, Part, is_collective, part_of
from engine.formats.kinds import ONNX
from engine.formats.micro_batches import micro_batches_of
from engine.report.fault.sides import rename

_REDUCTIONS = {"sum": "Sum", "max": "Max", "min": "Min", "mean": "Mean"}


class Together(NamedTuple):
    """Two models as they are compared; is_sliced: one is the ranks of the other.

    Each is None where the file itself is run.
    """

    a: bytes | None
    b: bytes | None
    is_sliced: bool


def together(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Together:
    """Return the models to run in place of files that are a rank of several.

    A model that is no rank is compared with ranks as as many copies of itself. Raises ModelError.
    """
    parts = _part(a), _part(b)
    sizes = {part.world_size for part in parts if part is not None}
    if not sizes:
        return Together(None, None, False)
    if len(sizes) > 1:
        counts = " and ".join(f"{part.world_size}" for part in parts if part is not None)
        raise ModelError(f"{a}, {b}: expected models of as many ranks, got {counts}")
    [world] = sizes
    joined = [
        None if part is None else _joined([_read(path) for path in _files(path, part)])
        for path, part in zip((a, b), parts, strict=True)
    ]
    ranked = next(model for model in joined if model is not None)
    named = {output.name for output in ranked.graph.output}
    whole = [
        model if model is not None else _copies(_read(path), world, named)
        for model, path in zip(joined, (a, b), strict=True)
    ]
    data = [model.SerializeToString() for model in whole]
    return Together(data[0], data[1], None in parts)


def _part(path: str | os.PathLike[str]) -> Part | None:
    """Return the rank that a file says it is of, None for any other model."""
    graph = None
    with suppress(ModelError):  # who runs it says what is wrong
        file = ModelFile(path)
        graph = file().graph if os.path.isfile(path) and file.kind == ONNX else None
    found = part_of(graph.metadata) if graph is not None else None
    return found if found is not None and found.world_size > 1 else None


def _files(path: str | os.PathLike[str], part: Part) -> list[Path]:
    """Return the files of all ranks. Raises ModelError where one is missing or is another's."""
    own = Path(path)
    match = re.fullmatch(rf"(.*?){part.rank}(\.[^.]*)", own.name)
    if match is None:
        raise ModelError(
            f"{own}: is rank {part.rank} of {part.world_size}, and its name does not say so; keep "
            f"the names that engine slice gave, as net{part.rank}.onnx",
            str(own),
        )
    found = [own.with_name(f"{match[1]}{rank}{match[2]}") for rank in range(part.world_size)]
    for rank, other in enumerate(found):
        one = _part(other)
        if one is None or (one.rank, one.slicing) != (rank, part.slicing):
            what = "is missing" if not other.exists() else f"is not rank {rank} of the same slicing"
            raise ModelError(
                f"{own}: is one of {part.world_size} ranks, and {other} {what}; slice the model "
                "again",
                str(own),
            )
    return found


def _read(path: str | os.PathLike[str]) -> ModelProto:
    """Read a checked model with its weights in it."""
    ModelFile(path)()
    return onnx.load(os.fspath(path))


def _copies(model: ModelProto, world: int, outputs: set[str]) -> ModelProto:
    """Return a model as that many ranks that all compute everything."""
    found = _joined([model] * world)
    kept = [output for output in found.graph.output if output.name in outputs]
    del found.graph.output[:]
    found.graph.output.extend(kept)
    return found


class _Rank:
    """A rank on its way: how far its nodes were taken over."""

    def __init__(self, number: int, model: ModelProto) -> None:
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        if micro_batches_of(metadata) is not None:
            raise ModelError(
                "the ranks run their batch in micro-batches, which are not one graph; slice the "
                "model without them"
            )
        self.graph, self.prefix, self.next = model.graph, f"rank{number}/", 0
        given = {value.name for value in self.graph.input}
        given -= {tensor.name for tensor in self.graph.initializer}
        made = {name for node in self.graph.node for name in node.output if name}
        made |= {tensor.name for tensor in self.graph.initializer}
        self.names = {name: f"{self.prefix}{name}" for name in made - given}

    def waits(self) -> NodeProto | None:
        """Return the collective that comes next, None at the end."""
        return self.graph.node[self.next] if self.next < len(self.graph.node) else None

    def advance(self, graph: GraphProto) -> None:
        """Take over all nodes up to the next collective."""
        while (node := self.waits()) is not None and not is_collective(node.op_type, node.domain):
            own = graph.node.add()
            own.CopyFrom(node)
            own.name = f"{self.prefix}{node.name}" if node.name else ""
            rename(own, self.names)
            self.next += 1


def _joined(models: Sequence[ModelProto]) -> ModelProto:
    """Return the models of all ranks as one. Raises ModelError where they do not fit together."""
    whole = ModelProto(ir_version=models[0].ir_version)
    whole.opset_import.extend(models[0].opset_import)
    whole.functions.extend(models[0].functions)
    graph = whole.graph
    graph.name = models[0].graph.name
    ranks = [_Rank(number, model) for number, model in enumerate(models)]
    known = set[str]()
    for rank in ranks:
        for value in rank.graph.input:
            if value.name not in rank.names and value.name not in known:
                known.add(value.name)
                graph.input.add().CopyFrom(value)
        for tensor in rank.graph.initializer:
            own = graph.initializer.add()
            own.CopyFrom(tensor)
            own.name = rank.names[tensor.name]
        rank.advance(graph)
    while waiting := {at: node for at, rank in enumerate(ranks) if (node := rank.waits())}:
        met = _met(waiting, len(ranks))
        if not met:
            at, node = next(iter(waiting.items()))
            raise ModelError(f"rank {at}: {node.op_type} {node.name!r} waits in vain for others")
        graph.node.extend(_exchanged(met, waiting, ranks))
        for at in met:
            ranks[at].next += 1
            ranks[at].advance(graph)
    for rank in ranks:
        for value in rank.graph.output:
            own_value = graph.output.add()
            own_value.CopyFrom(value)
            own_value.name = rank.names.get(value.name, value.name)
    return whole


def _met(waiting: dict[int, NodeProto], world: int) -> list[int]:
    """Return the ranks that meet in a collective for which all have come."""
    for at, node in waiting.items():
        said = _attributes(node)
        if node.op_type in ("Send", "Receive"):
            group = sorted((at, int(said["rank"])))
        else:
            group = list(said.get("group_ranks", range(world)))
        others = [waiting.get(other) for other in group]
        if all(other is not None and _is_same(node, other) for other in others):
            return group
    return []


def _is_same(one: NodeProto, other: NodeProto) -> bool:
    pair = {one.op_type, other.op_type}
    if pair == {"Send", "Receive"}:
        return True
    mine, others = _attributes(one), _attributes(other)
    return one is other or (len(pair) == 1 and "Send" not in pair and mine == others)


def _exchanged(
    group: Sequence[int], waiting: dict[int, NodeProto], ranks: Sequence[_Rank]
) -> list[NodeProto]:
    """Return the nodes that compute what the ranks of a group get."""
    nodes = [waiting[at] for at in group]
    kind, said = nodes[0].op_type, _attributes(nodes[0])
    if said.get(AFTERWARDS):
        raise ModelError(
            f"{kind} {nodes[0].name!r} runs after micro-batches, which are not one graph"
        )
    brings = [
        ranks[at].names.get(name, name) for at, node in zip(group, nodes) for name in node.input[:1]
    ]
    gets = [ranks[at].names[name] for at, node in zip(group, nodes) for name in node.output[:1]]
    if kind == "AllReduce":
        reduction = _text(said.get("reduction", "sum"))
        if reduction in _REDUCTIONS:
            return [_node(_REDUCTIONS[reduction], brings, out) for out in gets]
    if kind == "AllGather":
        axis = int(said.get("axis", 0))
        return [_node("Concat", brings, out, axis=axis) for out in gets]
    if kind == "Broadcast":
        root = group.index(int(said.get("root", 0)))
        source = brings[root] if len(brings) == len(group) else brings[0]
        return [_node("Identity", [source], out) for out in gets]
    if kind in ("Send", "Receive"):
        return [_node("Identity", brings, out) for out in gets]
    if kind == "Barrier":
        zero = TensorProto(data_type=TensorProto.UINT8, dims=[1], raw_data=b"\0")
        return [_node("Constant", [], out, value=zero) for out in gets]
    raise ModelError(
        f"{kind} {nodes[0].name!r}: diff does not compute this exchange outside of the ranks; it "
        "compares ranks that exchange by AllReduce, AllGather, Broadcast, Send and Receive"
    )


def _node(op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, inputs, [output], output, **attributes)


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
