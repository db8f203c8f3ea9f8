"""Programs of ranks: nodes, weights and where each weight comes from; and the writing of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any, TypeAlias

import numpy as np
from onnx import NodeProto, helper

from engine.formats.collectives import DOMAIN
from engine.formats.onnx.graphs import reads
from engine.layouts.rules import Way
from engine.layouts.states import (
    PARTIAL,
    WHOLE,
    Array,
    State,
    lengths,
    local_shape,
    local_size,
    part,
    ranges,
)
from engine.sharding.slicing.costs import Costs, step
from engine.sharding.slicing.original import Original, stored_bytes
from engine.types import Dim, DType

Shape: TypeAlias = "tuple[Dim, ...]"

_SLICE_VERSION, _PAD_VERSION = 10, 11
"""Operator sets from which these take what they do as inputs, which may differ by rank."""
_PADDED = frozenset((DType.FLOAT32, DType.FLOAT64, DType.INT8, DType.INT32, DType.INT64,
                     DType.UINT8))  # fmt: skip
_MOST_RUNS = 16
"""Stretches of a tensor that are copied each by a node; more of them are looked up."""

_SAMPLE_BYTES = 4096
"""Of either end of a weight: enough to tell a model that was trained on, without reading it all."""


@dataclass(frozen=True)
class Weight:
    """A constant of the ranks. source, state: a part of one of the model's; else `values`, one for
    each rank, or one for all.
    """

    source: str = ""
    state: State = WHOLE
    values: tuple[Array, ...] = ()

    @property
    def is_shared(self) -> bool:
        """True where all ranks of a stage hold the same."""
        return self.state == WHOLE and len(self.values) < 2


@dataclass(frozen=True)
class Known:
    """Facts about a tensor of the program. tensor, state: of the model, "" for a helper.

    shape: on rank 0, which holds the most of what is divided unevenly.
    """

    tensor: str
    state: State
    dtype: DType | None
    shape: Shape | None


@dataclass
class Program:
    """Program of each of `ranks` ranks of a stage: the same nodes, each with its own weights.

    collectives: by the name of the node, the bytes of the whole tensor that it is for.
    """

    model: Original
    ranks: int
    nodes: list[NodeProto] = field(default_factory=list)
    weights: dict[str, Weight] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)
    collectives: dict[str, int] = field(default_factory=dict)

    def shape_on(self, name: str, rank: int) -> Shape | None:
        """Return the shape of a tensor as one rank has it; None where it is not known."""
        known = self.known[name]
        whole = self.model.shape(known.tensor) if known.tensor else None
        if whole is None or not known.state.unit:
            return known.shape
        return local_shape(whole, known.state, self.ranks, rank)


class Writer:
    """Writes a program, node by node. A tensor in another state than it was made in has a name of
    its own; who reads by the model's name finds the whole.
    """

    def __init__(self, model: Original, ranks: int, costs: Costs) -> None:
        self.program = Program(model, ranks)
        self.model = model
        self.ranks = ranks
        self._costs = costs
        self._names: dict[str, dict[State, str]] = {}
        self._taken = {*model.types, *model.constants}
        self._numbers = count()
        self._fixed = {*model.outputs, *model.captured}
        for name in model.inputs:
            self._note(name, WHOLE, name)

    def node(self, node: NodeProto, way: Way) -> None:
        """Write one node in one way."""
        local = _LocalNode(self, node)
        own = local.node
        for index, (name, state) in enumerate(zip(node.input, way.inputs)):
            if name:
                own.input[index] = self._name(name, state)
            if index in way.gathered:
                own.input[index] = self._gathered(name, state)
        if self.model.captured:
            for name in reads(node) - {*node.input}:
                self._name(name, WHOLE)
        for index, name in enumerate(node.output):
            if name:
                own.output[index] = self._made(name, way.outputs[index])
        if way.change is not None:
            way.change(local)
        local.finish()

    def same_on_all(self, node: NodeProto) -> None:
        """Give every rank what rank 0 has made."""
        last = self.program.nodes[-1]
        for index, name in enumerate(node.output):
            if name:
                own = last.output[index] = self.fresh(f"{name}/own")
                self.program.known[own] = self.program.known[name]
                self.collective("Broadcast", own, name, name, root=0)

    def finished(self) -> Program:
        """Write what makes all results whole, and return the program."""
        for name in self.model.outputs:
            if self._name(name, WHOLE) != name:  # a constant or an input, given back as it is
                self.program.nodes.append(
                    helper.make_node("Identity", [self._names[name][WHOLE]], [name])
                )
            elif name in self.program.weights:  # made by a node: a stage of its own has to have it
                own = self.fresh(f"{name}/value")
                self.program.weights[own] = self.program.weights.pop(name)
                self.program.known[own] = self.program.known[name]
                node = helper.make_node("Identity", [own], [name], f"Identity {name}")
                self.program.nodes.insert(0, node)
        return self.program

    # ---------------------------------------------------------------------------------- names

    def fresh(self, wanted: str) -> str:
        """Return a name that nothing has yet."""
        while wanted in self._taken:
            wanted = f"{wanted}_{next(self._numbers)}"
        self._taken.add(wanted)
        return wanted

    def constant(self, value: Array | np.generic | Sequence[Array | np.generic]) -> str:
        """Return the name of a new constant: one value for all ranks, or one for each."""
        values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        name = self.fresh(f"constant_{next(self._numbers)}")
        arrays = tuple(np.asarray(array) for array in values)
        self.program.weights[name] = Weight(values=arrays)
        first = arrays[0]
        self.program.known[name] = Known("", WHOLE, DType.from_numpy(first.dtype), first.shape)
        return name

    def _note(self, tensor: str, state: State, name: str) -> None:
        self._names.setdefault(tensor, {})[state] = name
        shape = self.model.shape(tensor)
        own = None if shape is None else local_shape(shape, state, self.ranks)
        self.program.known[name] = Known(tensor, state, self.model.dtype(tensor), own)

    def _made(self, tensor: str, state: State) -> str:
        is_free = state == WHOLE or tensor not in self._fixed
        name = tensor if is_free else self.fresh(f"{tensor}/{_word(state)}")
        self._note(tensor, state, name)
        return name

    def _name(self, tensor: str, state: State) -> str:
        """Return the name of a tensor in a state, writing what makes it."""
        names = self._names.setdefault(tensor, {})
        if state in names:
            return names[state]
        if tensor in self.model.constants:
            is_plain = state == WHOLE or (tensor not in self._fixed and not names)
            name = (
                tensor
                if is_plain and tensor not in self.program.weights
                else (self.fresh(f"{tensor}/{_word(state)}"))
            )
            self.program.weights[name] = Weight(tensor, state)
            self._note(tensor, state, name)
            return name
        if not names:  # a sparse constant, which goes along as it is
            self._note(tensor, WHOLE, tensor)
            return self._name(tensor, state)
        _, through = self._costs.cheapest(tensor, names, state)
        assert through is not None, f"{tensor!r} cannot be had as {state}"
        start = min(names, key=lambda held: self._costs.cheapest(tensor, [held], state)[0])
        for wanted in (*through, state):
            if wanted not in names:
                self._convert(tensor, start, wanted)
            start = wanted
        return names[state]

    def _gathered(self, tensor: str, state: State) -> str:
        """Return the name of a whole weight of which each rank holds a part."""
        names = self._names[tensor]
        if WHOLE not in names:
            self._convert(tensor, state, WHOLE)
        return names[WHOLE]

    # ---------------------------------------------------------------------- from state to state

    def _convert(self, tensor: str, state: State, wanted: State) -> None:
        source = self._names[tensor][state]
        is_fixed = wanted == WHOLE and tensor in self._fixed
        name = tensor if is_fixed else self.fresh(f"{tensor}/{_word(wanted)}")
        self._note(tensor, wanted, name)
        how = step(state, wanted, 0, self.ranks)
        assert how is not None
        if how.collective == "AllReduce":
            self.collective("AllReduce", source, name, tensor)
        elif how.collective == "AllGather":
            _write_gather(self, tensor, source, name, state)
        elif how.collective == "AllToAll":
            self.collective(
                "AllToAll", source, name, tensor, split_axis=wanted.axis, concat_axis=state.axis
            )
        elif wanted == PARTIAL:
            _write_term(self, tensor, source, name)
        else:
            _write_cut(self, tensor, source, name, wanted)

    def collective(self, kind: str, source: str, name: str, tensor: str, **attributes: Any) -> None:
        """Write a collective; its position is the same on all ranks."""
        node = helper.make_node(
            kind, [source], [name], f"{kind} {name}", domain=DOMAIN, **attributes
        )
        self.program.nodes.append(node)
        self.program.collectives[node.name] = self.model.nbytes(tensor, 1)

    def add(self, op_type: str, inputs: Sequence[str], name: str, **attributes: Any) -> None:
        """Write a node with one result, called `name`."""
        self.program.nodes.append(
            helper.make_node(op_type, inputs, [name], f"{op_type} {name}", **attributes)
        )

    def note(self, name: str, dtype: DType | None, shape: Shape | None) -> None:
        """Note what is known of a tensor that the model does not have."""
        self.program.known[name] = Known("", WHOLE, dtype, shape)


# -------------------------------------------------------------------------- from state to state


def _write_gather(writer: Writer, tensor: str, source: str, name: str, state: State) -> None:
    """Write what makes a divided tensor whole: blocks come by rank and are put in order.

    A rank that holds less than the first brings a part of it twice, which is left out again.
    """
    if not state.blocks and not state.unit:
        writer.collective("AllGather", source, name, tensor, axis=state.axis)
        return
    shape = writer.model.shape(tensor)
    assert shape is not None
    size = shape[state.axis]
    assert isinstance(size, int)
    sizes = [local_size(size, state, writer.ranks, rank) for rank in range(writer.ranks)]
    most = sizes[0]
    if min(sizes) < most:
        source = _filled(writer, tensor, source, state.axis, sizes)
    mixed = writer.fresh(f"{tensor}/by_rank")
    together = (*shape[: state.axis], most * writer.ranks, *shape[state.axis + 1 :])
    writer.note(mixed, writer.model.dtype(tensor), together)
    writer.collective("AllGather", source, mixed, tensor, axis=state.axis)
    pieces = []  # where in `mixed` each stretch of elements is, in the order of the whole
    befores = [0] * writer.ranks
    for block in state.blocks or (size,):
        for rank, own in enumerate(lengths(block, writer.ranks, state.unit)):
            begin = rank * most + befores[rank]
            pieces.append((begin, begin + own))
            befores[rank] += own
    _picked(writer, mixed, name, state.axis, pieces)


def _filled(writer: Writer, tensor: str, source: str, axis: int, sizes: Sequence[int]) -> str:
    """Write what brings the parts of all ranks to one length: their beginnings once more."""
    dtype, shape = writer.model.dtype(tensor), writer.model.shape(tensor)
    assert shape is not None
    name = writer.fresh(f"{tensor}/filled")
    writer.note(name, dtype, (*shape[:axis], sizes[0], *shape[axis + 1 :]))
    if dtype in _PADDED and writer.model.opsets.get("", 1) >= _PAD_VERSION:
        before = [0] * (len(shape) + axis)
        after = [0] * (len(shape) - axis - 1)
        pads = [np.array([*before, sizes[0] - own, *after], np.int64) for own in sizes]
        writer.add("Pad", [source, writer.constant(pads)], name)
        return name
    places = [
        np.concatenate([np.arange(own), np.zeros(sizes[0] - own)]).astype(np.int64) for own in sizes
    ]
    writer.add("Gather", [source, writer.constant(places)], name, axis=axis)
    return name


def _picked(
    writer: Writer, source: str, name: str, axis: int, pieces: Sequence[tuple[int, int]]
) -> None:
    """Write what puts stretches of a tensor together, in order."""
    runs: list[list[int]] = []
    for begin, end in pieces:
        if runs and runs[-1][1] == begin:
            runs[-1][1] = end
        else:
            runs.append([begin, end])
    if len(runs) > _MOST_RUNS or writer.model.opsets.get("", 1) < _SLICE_VERSION:
        order = np.concatenate([np.arange(*run, dtype=np.int64) for run in runs])
        writer.add("Gather", [source, writer.constant(order)], name, axis=axis)
        return
    axes = writer.constant(np.array([axis], np.int64))
    cut = [name] if len(runs) == 1 else [writer.fresh(f"{name}/run") for _ in runs]
    for own, run in zip(cut, runs):
        edges = [writer.constant(np.array([edge], np.int64)) for edge in run]
        writer.add("Slice", [source, *edges, axes], own)
    if len(runs) > 1:
        writer.add("Concat", cut, name, axis=axis)


def _write_term(writer: Writer, tensor: str, source: str, name: str) -> None:
    """Write what makes a tensor that all have whole a term of a sum: on rank 0 all of it."""
    dtype = writer.model.dtype(tensor)
    assert dtype is not None
    is_first = writer.constant([np.array(rank == 0) for rank in range(writer.ranks)])
    zero = writer.constant(np.zeros((), dtype.numpy))
    writer.add("Where", [is_first, source, zero], name)


def _write_cut(writer: Writer, tensor: str, source: str, name: str, wanted: State) -> None:
    """Write what takes a rank's own part of a tensor that it has whole."""
    shape = writer.model.shape(tensor)
    assert shape is not None
    size = shape[wanted.axis]
    assert isinstance(size, int)
    own = [
        np.concatenate(
            [np.arange(*ends, dtype=np.int64) for ends in ranges(size, wanted, r, writer.ranks)]
        )
        for r in range(writer.ranks)
    ]
    if wanted.blocks or writer.model.opsets.get("", 1) < _SLICE_VERSION:
        index = writer.constant(own)
        writer.add("Gather", [source, index], name, axis=wanted.axis)
    else:
        starts = writer.constant([part[:1] for part in own])
        ends = writer.constant([part[-1:] + 1 for part in own])
        axes = writer.constant(np.array([wanted.axis], np.int64))
        writer.add("Slice", [source, starts, ends, axes], name)


class _LocalNode:
    """A node while it is written; see engine.layouts.rules.op.Local."""

    def __init__(self, writer: Writer, node: NodeProto) -> None:
        self.node = NodeProto()
        self.node.CopyFrom(node)
        self.ranks = writer.ranks
        self._writer = writer
        self._after: list[NodeProto] = []

    def constant(self, value: Array | np.generic | Sequence[Array | np.generic]) -> str:
        """See Local."""
        return self._writer.constant(value)

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """See Local."""
        name = self._writer.fresh(f"{self.node.name}/{op_type}")
        self._writer.program.nodes.append(
            helper.make_node(op_type, inputs, [name], name, **attributes)
        )
        return name

    def follow(self, index: int, op_type: str, others: Sequence[str], **attributes: Any) -> None:
        """See Local."""
        name = self.node.output[index]
        self.node.output[index] = self._writer.fresh(f"{name}/before")
        inputs = [*others, self.node.output[index]]
        self._after.append(
            helper.make_node(op_type, inputs, [name], f"{op_type} {name}", **attributes)
        )

    def finish(self) -> None:
        """Write the node and what follows it."""
        self._writer.program.nodes += [self.node, *self._after]


def _word(state: State) -> str:
    if state.is_shard:
        return f"axis{state.axis}" + (f"x{len(state.blocks)}" if state.blocks else "")
    return state.kind


def nbytes_of(weight: Weight, model: Original, ranks: int, rank: int = 0) -> int:
    """Return how many bytes a rank holds of a weight."""
    if weight.values:
        return weight.values[0].nbytes
    tensor = model.constants[weight.source]
    own = local_shape(tuple(tensor.dims), weight.state, ranks, rank)
    return stored_bytes(DType.from_onnx(tensor.data_type), prod(own))


def value_of(weight: Weight, model: Original, rank: int, ranks: int) -> Array:
    """Return what a rank holds of a weight, as a view where that can be."""
    if weight.values:
        return weight.values[rank if len(weight.values) > 1 else 0]
    return part(model.array(weight.source), weight.state, rank, ranks)


def elements(shape: Shape | None) -> int | None:
    """Return the number of elements of a shape; None where a size is open."""
    if shape is None or not all(isinstance(size, int) for size in shape):
        return None
    return prod(size for size in shape if isinstance(size, int))


def identity(program: Program, *words: object) -> str:
    """Return a digest of a model and of how its ranks divide it; words: what else makes the files.

    The ranks' files name it: those of two slicings do not run together. It does not depend on the
    file's name and folder, so that each machine may slice for itself.
    """
    digest = hashlib.sha256(repr(words).encode())
    for node in program.nodes:
        digest.update(node.SerializeToString(deterministic=True))
    for name, weight in program.weights.items():
        digest.update(repr((name, weight.source, weight.state)).encode())
        for value in weight.values:
            digest.update(value.tobytes())
    for name, tensor in program.model.constants.items():
        digest.update(repr((name, tensor.data_type, *tensor.dims)).encode())
        if DType.from_onnx(tensor.data_type) is not DType.STRING:
            raw = program.model.array(name).reshape(-1).view(np.uint8)
            digest.update(raw[:_SAMPLE_BYTES].tobytes())
            digest.update(raw[-_SAMPLE_BYTES:].tobytes())
    return digest.hexdigest()[:32]
