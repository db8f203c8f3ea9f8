"""Pipeline stages: a program cut where little is to be sent on, in parts of about equal weights.

Ranks are numbered stage by stage. Values of an earlier stage go from each rank to the
one at the same place, in the form in which that has it: a part stays a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from onnx import NodeProto, ValueInfoProto, helper

from engine.errors import ModelError
from engine.formats.collectives import AFTERWARDS, DOMAIN, WITH_SHAPE, is_collective
from engine.formats.micro_batches import MicroBatches
from engine.formats.onnx.graphs import reads, subgraphs
from engine.layouts.batch.source import prove_source
from engine.sharding.slicing.costs import PRODUCTS
from engine.sharding.slicing.original import Original, stored_bytes
from engine.sharding.slicing.program import Known, Program, Weight, elements, nbytes_of
from engine.types import Dim

_WINDOW = 0.3
"""Distance of a cut from where stages are even, in stages: for the thinnest edge near it."""

_OPEN_SIZE = 32
"""An open size, where the bytes that pass between stages are guessed."""

_SMALL_BYTES, _MOST_NODES = 1 << 16, 32
"""Largest weight, and most nodes, of what a stage makes anew instead of receiving it."""


@dataclass
class Stage:
    """A stage's nodes, and what it exchanges with others: (tensor, the other stage), in order."""

    number: int
    nodes: list[NodeProto] = field(default_factory=list)
    receives: list[tuple[str, int]] = field(default_factory=list)
    sends: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class Pipeline:
    """A program in stages. makers: the stage that makes each tensor."""

    program: Program
    stages: list[Stage]
    makers: dict[str, int]
    last_only: bool
    batches: MicroBatches | None = None

    def nodes(self, stage: int, member: int) -> list[NodeProto]:
        """Return the nodes of one rank: with what it sends and receives, and its group named."""
        program, own = self.program, self.stages[stage]
        ranks = program.ranks
        if len(self.stages) == 1:
            return own.nodes
        results = [] if self.last_only else program.model.outputs
        had = {name for name, _ in own.receives}.union(*(node.output for node in own.nodes))
        renamed = {name: f"{name}/made" for name in results if name in had and name in self.makers}
        for name in results:
            if name in self.makers:  # a rank on its own cannot tell what a collective gives
                program.known[f"{name}/made"] = program.known[name]
        received = [
            helper.make_node(
                "Receive", [], [renamed.get(name, name)], f"Receive {name}", domain=DOMAIN,
                rank=maker * ranks + member, **_described(program, name, member),
            )
            for name, maker in own.receives
        ]  # fmt: skip
        nodes = [self._grouped(node, stage, renamed) for node in own.nodes]
        sent = [
            helper.make_node(
                "Send", [renamed.get(name, name)], [f"{name}/sent to {reader}"],
                f"Send {name} to {reader}", domain=DOMAIN, rank=reader * ranks + member,
                **_sent(program, name),
            )
            for name, reader in own.sends
        ]  # fmt: skip
        for name in results:
            if name in self.makers:
                sent += self._broadcast(name, member, has=name in renamed)
        return [*received, *nodes, *sent]

    def outputs(self, stage: int, member: int) -> list[ValueInfoProto]:
        """Return the results that a stage's rank at one place gives."""
        declared = list(self.program.model.proto.graph.output)
        if not self.last_only or stage == len(self.stages) - 1:
            return [with_open_batch(value) for value in declared] if self.batches else declared
        name, reader = min(self.stages[stage].sends, key=lambda sent: not self._is_batched(sent[0]))
        known = self.program.known[name]
        assert known.dtype is not None
        value = helper.make_tensor_value_info(
            f"{name}/sent to {reader}",
            known.dtype.onnx,
            list(self.program.shape_on(name, member) or ()),
        )
        return [with_open_batch(value) if self.batches else value]

    def _is_batched(self, name: str) -> bool:
        shape = self.program.known[name].shape
        return self.batches is None or (shape or (None,))[0] == self.batches.rows

    def _grouped(self, node: NodeProto, stage: int, renamed: dict[str, str]) -> NodeProto:
        is_exchange = is_collective(node.op_type, node.domain)
        touched = not renamed.keys().isdisjoint((*reads(node), *node.output))
        if not is_exchange and not touched:
            return node
        own = NodeProto()
        own.CopyFrom(node)
        _rename(own, renamed)
        if is_exchange:
            first = stage * self.program.ranks
            members = list(range(first, first + self.program.ranks))
            own.attribute.append(helper.make_attribute("group", f"stage{stage}"))
            own.attribute.append(helper.make_attribute("group_ranks", members))
            for attribute in own.attribute:
                if attribute.name == "root":
                    attribute.i = first + attribute.i
        return own

    def _broadcast(self, name: str, member: int, has: bool) -> list[NodeProto]:
        """Return what gives a result to the same place of every stage; a stage may have its own."""
        ranks, maker = self.program.ranks, self.makers[name]
        own = f"{name}/made"
        nodes = []
        described = _described(self.program, name)
        more: dict[str, Any] = {AFTERWARDS: 1} if self.batches else {}
        given = [own]
        if WITH_SHAPE in described:
            more |= described
            given = [own] if has else []
        elif not has:  # something of the result's shape, to be written over
            dims = f"{name}/sizes"
            sizes = np.array(described.get("sizes", []), np.int64)
            self.program.weights[dims] = Weight(values=(sizes,))
            zero = helper.make_tensor("zero", described["to"], [1], [0])
            nodes.append(
                helper.make_node("ConstantOfShape", [dims], [own], f"room for {name}", value=zero)
            )
        members = [number * ranks + member for number in range(len(self.stages))]
        nodes.append(
            helper.make_node(
                "Broadcast", given, [name], f"Broadcast {name}", domain=DOMAIN,
                root=maker * ranks + member, group=f"place{member}", group_ranks=members, **more,
            )
        )  # fmt: skip
        return nodes


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Give tensors other names, also where bodies of the node read them."""
    for own in (node.input, node.output):
        for index, name in enumerate(own):
            own[index] = names.get(name, name)
    for graph in subgraphs(node):
        for inner in graph.node:
            _rename(inner, names)
        for value in graph.output:
            value.name = names.get(value.name, value.name)


def with_open_batch(value: ValueInfoProto) -> ValueInfoProto:
    """Return an input or output of any number of micro-batches."""
    own = ValueInfoProto()
    own.CopyFrom(value)
    if own.type.tensor_type.shape.dim:
        own.type.tensor_type.shape.dim[0].dim_param = "batch"
    return own


def micro_batches(model: Original, count: int) -> MicroBatches:
    """Return how a model's batch is run in parts. Raises ModelError where it cannot be."""
    what = f"{model.name}: cannot run micro-batches"
    if count < 2:
        raise ModelError(f"{what}: it is not cut into stages; ask for two or more (--pp)")
    sizes = {name: (model.shape(name) or (None,))[0] for name in model.batched}
    if missing := [name for name, size in sizes.items() if not isinstance(size, int)]:
        flags = " ".join(f"--input-shape {name}={_example(model, name)}" for name in missing)
        raise ModelError(
            f"{what}: how many rows a part of the batch has is not said for "
            f"{', '.join(f'input {name!r}' for name in missing)}, whose axis 0 is open; give "
            f"--input-shape as well, for example {flags}"
        )
    [rows, *others] = {*sizes.values()} or {None}
    if others or not isinstance(rows, int):
        raise ModelError(
            f"{what}: expected inputs with an open axis 0 that gets one size for all "
            f"(--input-shape), got {sizes or 'none with an open axis 0'}"
        )
    for name in model.outputs:
        shape = model.shape(name)
        if not shape or shape[0] != rows:
            shown = "unknown" if shape is None else list(shape)
            raise ModelError(
                f"{what}: output {name!r} is of shape {shown}; expected the batch of {rows} rows "
                "along axis 0"
            )
    proof = prove_source(lambda: model.source, dict.fromkeys(model.batched, 0))
    reason = proof.reason
    for name, found in proof.outputs.items():
        if found.axis != 0 or not found.is_each:
            reason = reason or f"output {name!r} has not one row for each row of the inputs"
    if reason:
        raise ModelError(
            f"{what}: it is not proven that rows of a batch do not change each other's results: "
            f"{reason}; slice it without micro-batches"
        )
    return MicroBatches(rows, model.batched)


def _example(model: Original, name: str) -> str:
    """Return sizes for an input, 4 rows of it and 16 for other open axes."""
    _, *others = model.shape(name) or (None,)
    return ",".join(map(str, (4, *(size if isinstance(size, int) else 16 for size in others))))


def pipeline(
    program: Program, count: int, last_only: bool, batches: MicroBatches | None = None
) -> Pipeline:
    """Cut a program into `count` stages. Raises ModelError where that cannot be."""
    model = program.model
    if count > max(len(program.nodes), 1):
        raise ModelError(
            f"{model.name}: has {len(program.nodes)} nodes, which are not enough for {count} "
            "pipeline stages; ask for fewer (--pp)"
        )
    cuts = _cuts(program, count)
    numbers: list[int] = []
    for place, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(program.nodes)])):
        numbers += [place] * (end - start)
    stages = [Stage(number) for number in range(count)]
    makers: dict[str, int] = {}
    for node, number in zip(program.nodes, numbers):
        stages[number].nodes.append(node)
        makers.update(dict.fromkeys(filter(None, node.output), number))
    places = {name: place for place, name in enumerate(makers)}
    cheap = _cheap(program)
    for stage in stages:
        _repeat(program, stage, cheap, makers)
        own = {name for node in stage.nodes for name in node.output}
        needed = {name for node in stage.nodes for name in reads(node) if name in makers}
        if last_only and stage.number == count - 1:
            needed |= {name for name in model.outputs if name in makers}
        for name in sorted(needed - own, key=places.__getitem__):
            if makers[name] < stage.number:
                stage.receives.append((name, makers[name]))
                stages[makers[name]].sends.append((name, stage.number))
    for stage in stages:  # one order on both sides: by the other stage, then by the tensor
        stage.receives.sort(key=lambda one: (one[1], places[one[0]]))
        stage.sends.sort(key=lambda one: (one[1], places[one[0]]))
        if last_only and stage.number < count - 1 and not stage.sends:
            raise ModelError(
                f"{model.name}: stage {stage.number} sends nothing on; ask for fewer (--pp)"
            )
    return Pipeline(program, stages, makers, last_only, batches)


def _cheap(program: Program) -> dict[str, frozenset[int]]:
    """Return the nodes that make a tensor, where these are few and small, by its name.

    Shapes that are computed, masks, tables of sines: each stage makes its own.
    """
    makers = {name: place for place, node in enumerate(program.nodes) for name in node.output}
    found: dict[str, frozenset[int]] = {}
    for place, node in enumerate(program.nodes):
        if is_collective(node.op_type, node.domain) or node.op_type in PRODUCTS:
            continue
        before = frozenset((place,))
        for name in reads(node):
            weight = program.weights.get(name)
            if weight is not None:
                if nbytes_of(weight, program.model, program.ranks) > _SMALL_BYTES:
                    break
            elif name in makers:
                if name not in found:
                    break
                before |= found[name]
        else:
            if len(before) <= _MOST_NODES:
                found.update(dict.fromkeys(filter(None, node.output), before))
    return found


def _repeat(
    program: Program, stage: Stage, cheap: Mapping[str, frozenset[int]], makers: Mapping[str, int]
) -> None:
    """Put nodes into a stage that make what it needs of earlier ones as well as these do."""
    again: set[int] = set()
    for node in stage.nodes:
        for name in reads(node):
            if name in cheap and makers[name] < stage.number:
                again |= cheap[name]
    own = {id(node) for node in stage.nodes}
    nodes = [program.nodes[place] for place in sorted(again)]
    stage.nodes[:0] = [node for node in nodes if id(node) not in own]


def _cuts(program: Program, count: int) -> list[int]:
    """Return before which nodes stages begin: near even loads, where the fewest bytes pass."""
    if count == 1:
        return []
    loads = _loads(program)
    passing = _passing(program)
    total, done = sum(loads), 0.0
    before = [0.0]
    for load in loads:
        done += load
        before.append(done)
    cuts: list[int] = []
    for number in range(1, count):
        target = total * number / count
        first = cuts[-1] + 1 if cuts else 1
        last = len(loads) - (count - number)
        places = range(first, last + 1)
        reach = total / count * _WINDOW
        near = [p for p in places if abs(before[p] - target) <= reach] or [
            min(places, key=lambda p: abs(before[p] - target))
        ]
        cuts.append(min(near, key=lambda p: (passing[p], abs(before[p] - target))))
    return cuts


def _loads(program: Program) -> list[float]:
    """Return what each node adds to a stage: its weights, and a little for what it moves."""
    counted: set[str] = set()
    loads = []
    for node in program.nodes:
        load = 1.0
        for name in node.input:
            weight = program.weights.get(name)
            if weight is not None and name not in counted:
                counted.add(name)
                load += nbytes_of(weight, program.model, program.ranks)
        loads.append(load)
    return loads


def _passing(program: Program) -> list[float]:
    """Return for each place between nodes the bytes of what is made before and read after it."""
    last: dict[str, int] = {}
    for place, node in enumerate(program.nodes):
        for name in reads(node):
            last[name] = place
    passing = [0.0] * (len(program.nodes) + 1)
    for place, node in enumerate(program.nodes):
        for name in node.output:
            known = program.known.get(name)
            nbytes = (
                float("inf")
                if known is None or known.dtype is None or known.shape is None
                else stored_bytes(known.dtype, _guessed_elements(known.shape))
            )
            for at in range(place + 1, last.get(name, place) + 1):
                passing[at] += nbytes
    return passing


def _guessed_elements(shape: Sequence[Dim]) -> int:
    """Return about how many elements a tensor has; an open size is taken for `_OPEN_SIZE`."""
    return prod(size if isinstance(size, int) else _OPEN_SIZE for size in shape)


def _described(program: Program, name: str, member: int = 0) -> dict[str, Any]:
    """Return the attributes of a Receive: the shape, or that it goes before the tensor.

    member: the place in its stage of the rank that receives it.

    Raises ModelError for what is no tensor, or of a type that nobody knows.
    """
    known: Known | None = program.known.get(name)
    if known is None or known.dtype is None:
        raise ModelError(
            f"{program.model.name}: {name!r} goes from one stage to another, and what it is an "
            "array of is not known; add it to the graph's value_info, or ask for fewer stages "
            "(--pp)"
        )
    own = program.shape_on(name, member)
    if elements(own) is None:
        return {"to": known.dtype.onnx, WITH_SHAPE: 1}
    sizes = [int(size or 0) for size in own or ()]
    return {"to": known.dtype.onnx, **({"sizes": sizes} if sizes else {})}


def _sent(program: Program, name: str) -> dict[str, Any]:
    """Return the attributes by which a Send is like the Receive of the same tensor."""
    return {WITH_SHAPE: 1} if WITH_SHAPE in _described(program, name) else {}
