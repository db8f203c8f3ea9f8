"""A node as rules see it, and their answers: the ways in which ranks can share the work.

    def reverse_sequence(op: Op) -> Iterator[Way]:
        time, batch = op.attribute("time_axis", 0), op.attribute("batch_axis", 1)
        for state in op.states(op.inputs[0]):
            if state.axis != time:
                lengths = state.on(0) if state.axis == batch else WHOLE
                yield op.way({0: state, 1: lengths}, {0: state})

A way says in which state the node wants its inputs and gives its outputs. `op.way` leaves those
that are not named whole. PARTIAL (terms of a sum) is right only if the operator is linear. Blocks
and uneven parts need nothing from a rule: `op.states` has them. That every rank computes the whole
node is always possible and needs no rule. An input of indices or lengths needs an entry in
`LOOKUPS` (rules/__init__.py), or the check of the slices does not reach all of its axis.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from onnx import NodeProto, helper

from engine.layouts.own_attributes import set_for_ranks
from engine.layouts.states import WHOLE, Array, State, division, local_size
from engine.types import Dim, DType

Shape: TypeAlias = tuple[Dim, ...]


class Facts(Protocol):
    """A model as the rules of its operators see it."""

    @property
    def opsets(self) -> Mapping[str, int]:
        """Versions of the operator sets, "" for ONNX's own."""

    @property
    def constants(self) -> Container[str]:
        """Names of the tensors that the file holds."""

    @property
    def readers(self) -> Mapping[str, Sequence[NodeProto]]:
        """The nodes that read a tensor, by its name."""

    def dtype(self, name: str) -> DType | None:
        """Return the element type of a tensor; None for what is no tensor, or not known."""

    def shape(self, name: str) -> Shape | None:
        """Return the shape of a tensor as far as it is known; None for an open rank."""

    def value(self, name: str) -> Array | None:
        """Return the elements of a small constant; None for anything else."""

    def is_numeric(self, name: str) -> bool:
        """Return whether a tensor's elements are whole bytes that can be exchanged."""

    def is_random(self, node: NodeProto) -> bool:
        """Return whether a node, or one in its bodies, draws numbers."""


class Local(Protocol):
    """A node while it is written for one rank, with its own inputs and outputs."""

    node: NodeProto
    ranks: int

    def constant(self, value: Array | np.generic | Sequence[Array | np.generic]) -> str:
        """Return the name of a new constant: one value for all ranks, or one for each."""

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node before this one and return the name of what it makes."""

    def follow(self, index: int, op_type: str, others: Sequence[str], **attributes: Any) -> None:
        """Let a node with `others` as further inputs make output `index` of what this one does."""


Change: TypeAlias = Callable[[Local], None]


class Way(NamedTuple):
    """One way to share the work of a node.

    inputs, outputs: the state of each, in order; of those that are left out any.
    change: what differs in the node that a rank runs. cost: the part of the whole work that a rank
    has left, None for its share. gathered: inputs, by number, that the node needs whole although
    the ranks hold them in the states of `inputs`: weights that are exchanged before each run.
    """

    inputs: tuple[State, ...]
    outputs: tuple[State, ...]
    change: Change | None = None
    cost: float | None = None
    gathered: tuple[int, ...] = ()


Rule: TypeAlias = Callable[["Op"], Iterator[Way]]


class Op:
    """A node as its rule sees it. ranks: among which the work is shared."""

    def __init__(
        self, node: NodeProto, model: Facts, ranks: int, blocks: dict[str, set[State]]
    ) -> None:
        self.node = node
        self.model = model
        self.ranks = ranks
        self.inputs = tuple(node.input)
        self.outputs = tuple(node.output)
        self._blocks = blocks

    def beside(self, node: NodeProto) -> Op:
        """Return another node of the same model, as its rule sees it."""
        return Op(node, self.model, self.ranks, self._blocks)

    @property
    def version(self) -> int:
        """The version of the node's operator set."""
        return self.model.opsets.get("" if self.node.domain == "ai.onnx" else self.node.domain, 1)

    def shape(self, name: str) -> tuple[Dim, ...] | None:
        """Return the shape of a tensor; None for an open rank."""
        return self.model.shape(name) if name else None

    def input(self, index: int) -> str:
        """Return the name of an input, "" where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def value(self, index: int) -> Array | None:
        """Return the elements of an input that is a small constant; else None."""
        return self.model.value(self.input(index))

    def ints(self, index: int) -> list[int] | None:
        """Return an input that is a small constant as a list of integers; else None."""
        value = self.value(index)
        return None if value is None else [int(x) for x in value.reshape(-1)]

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value; strings as str."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def axis(self, default: int, rank: int) -> int:
        """Return attribute `axis`, counted from the left."""
        axis = int(self.attribute("axis", default))
        return axis + rank if axis < 0 else axis

    def splits(self, size: Dim, blocks: tuple[int, ...] = (), unit: int = 0) -> bool:
        """Return whether an axis of this size, or each of its blocks, can be divided.

        unit: see State; 0 asks for equal parts.
        """
        if self.ranks < 2 or not isinstance(size, int) or size < self.ranks:
            return False
        parts = blocks or (size,)
        if unit:
            return all(block % unit == 0 and block // unit >= self.ranks for block in parts)
        return all(block % self.ranks == 0 for block in parts)

    def division(self, axis: int, *sizes: Dim, unit: int = 1) -> State | None:
        """Return the state that divides an axis, or its blocks of these sizes; None for no such.

        Into equal parts where that can be. unit: of which parts are multiples.
        """
        known = tuple(size for size in sizes if isinstance(size, int))
        if self.ranks < 2 or len(known) < len(sizes):
            return None
        return division(axis, known, self.ranks, unit)

    def states(self, name: str) -> list[State]:
        """Return the ways in which a tensor can be divided; blocks as its neighbours want them."""
        shape = self.shape(name)
        if shape is None or not self.model.is_numeric(name):
            return []
        plain = [self.division(axis, size) for axis, size in enumerate(shape)]
        wanted = sorted(self._blocks.get(name, ()))
        return [state for state in plain if state is not None] + wanted

    def axis_states(self, name: str, axis: int) -> list[State]:
        """Return the ways in which one axis of a tensor can be divided."""
        return [state for state in self.states(name) if state.axis == axis]

    def alike(self, fits: Callable[[int], bool]) -> Iterator[Way]:
        """Yield ways that divide the first input and the output along one axis that fits."""
        for state in self.states(self.inputs[0]):
            if fits(state.axis):
                yield self.way({0: state}, {0: state})

    def way(
        self,
        inputs: dict[int, State],
        outputs: dict[int, State],
        change: Change | None = None,
        cost: float | None = None,
    ) -> Way:
        """Return a way in which all inputs and outputs that are not named are whole."""
        return Way(
            tuple(inputs.get(index, WHOLE) for index in range(len(self.inputs))),
            tuple(outputs.get(index, WHOLE) for index in range(len(self.outputs))),
            change,
            cost,
        )


def divided(name: str, sizes: Sequence[int]) -> Change:
    """Return a change that sets an attribute to a number of each rank's own."""

    def change(local: Local) -> None:
        set_for_ranks(local.node, name, sizes)

    return change


def sized(op: Op, index: int, axis: int, size: int, state: State) -> Change:
    """Return a change for an input that holds a shape: one entry of it is a rank's part of `size`.

    state: as what this axis is divided.

    The others stay, whether they are known (or 0, or -1) or computed while the model runs.
    """
    known = op.value(index)
    shape = op.shape(op.input(index))

    def change(local: Local) -> None:
        sizes = [local_size(size, state, local.ranks, rank) for rank in range(local.ranks)]
        if known is not None:
            entries = np.array(known)
            local.node.input[index] = local.constant(
                each_or_one(
                    [
                        np.where(np.arange(entries.size) == axis, own, entries).astype(
                            entries.dtype
                        )
                        for own in sizes
                    ]
                )
            )
            return
        assert shape is not None
        place = np.arange(int(shape[0] or 0)) == axis
        owns = each_or_one([np.full(shape, own, np.int64) for own in sizes])
        names = [local.constant(place), local.constant(owns)]
        local.node.input[index] = local.add("Where", [*names, local.node.input[index]])

    return change


def each_or_one(values: Sequence[Array]) -> Sequence[Array]:
    """Return a constant's value for each rank, or one where they are all the same."""
    is_one = all(np.array_equal(value, values[0]) for value in values)
    return [values[0]] if is_one else values


def is_shape(op: Op, index: int) -> bool:
    """Return whether `sized` can change this input: its length is known."""
    shape = op.shape(op.input(index))
    return op.value(index) is not None or (
        shape is not None and len(shape) == 1 and isinstance(shape[0], int)
    )
