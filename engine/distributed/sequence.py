"""The collectives of one rank's model: their order, and what ranks compare when they join.

Ranks exchange tensors by position, not by name: the n-th collective of a group on one rank meets
the n-th on every other. So their order is that of the file, on every rank, whatever else its model
computes (see `partition`), and ranks whose sequences differ must not start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.formats.collectives import is_collective
from engine.types import Attribute, Dim, DType, GraphInfo, NodeInfo, TensorSpec

PAIRED = frozenset(("Send", "Receive"))
"""A transfer between two ranks, in which the rest of their group has no part."""

# Attributes that have a field of their own. `rank` is the other one of a Send or Receive.
_FIELDS = frozenset(("group", "rank", "peer", "to", "sizes"))


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as all ranks that take part in it must see it.

    group: "" for all ranks. dtype, shape: of what goes in (of a Receive, what comes out), as far
    as the file says; "" and None where it does not. peer: the other rank of a Send or Receive, -1
    where there is none.
    attributes: the rest of its attributes (root, reduction, axis, ...), sorted by name.
    """

    op: str
    group: str
    dtype: str
    shape: tuple[Dim, ...] | None
    peer: int
    attributes: tuple[tuple[str, Attribute], ...]

    def __str__(self) -> str:
        attributes = (f"{name}={value!r}" for name, value in self.attributes)
        fields = (self.op, self.group, self.dtype, repr(self.shape), str(self.peer), *attributes)
        return "|".join(fields)


def sequence(
    graph: GraphInfo, specs: Mapping[str, TensorSpec] | None = None
) -> tuple[Collective, ...]:
    """Return the collectives of a model in the order in which it makes them, that of the file.

    specs: of tensors inside the graph, where somebody knows more than the file.
    """
    known = {spec.name: spec for spec in (*graph.inputs, *graph.outputs)}
    known |= {
        parameter.name: TensorSpec(parameter.name, parameter.dtype, parameter.shape)
        for parameter in graph.parameters
    }
    known |= specs or {}
    return tuple(
        _collective(node, known) for node in graph.nodes if is_collective(node.op_type, node.domain)
    )


def difference(own: Sequence[Collective], others: Sequence[Collective]) -> str:
    """Return where two ranks' sequences do not fit, in one line; "" where they do.

    A dtype or shape that one file says and the other leaves open is no difference.
    """
    for number, (mine, theirs) in enumerate(zip(own, others, strict=False)):
        is_typed = not (mine.dtype and theirs.dtype) or mine.dtype == theirs.dtype
        is_shaped = mine.shape is None or theirs.shape is None or _agree(mine.shape, theirs.shape)
        untyped = [replace(one, dtype="", shape=None) for one in (mine, theirs)]
        if not (is_typed and is_shaped and untyped[0] == untyped[1]):
            return f"collective {number} is {mine} here, but {theirs} there"
    if len(own) != len(others):
        return f"{len(own)} collectives here, but {len(others)} there"
    return ""


def of_group(collectives: Sequence[Collective], group: str) -> tuple[Collective, ...]:
    """Return what all ranks of a group do together: equal on each of them."""
    return tuple(
        collective
        for collective in collectives
        if collective.group == group and collective.op not in PAIRED
    )


def between(collectives: Sequence[Collective], rank: int, peer: int) -> tuple[Collective, ...]:
    """Return what `rank` sends to and receives from `peer`, as the lower of the two sees it.

    So it is equal on both where every Send has its Receive.
    """
    other = {"Send": "Receive", "Receive": "Send"}
    return tuple(
        replace(
            collective,
            op=collective.op if rank < peer else other[collective.op],
            peer=max(rank, peer),
        )
        for collective in collectives
        if collective.op in PAIRED and collective.peer == peer
    )


def _collective(node: NodeInfo, known: Mapping[str, TensorSpec]) -> Collective:
    attributes = dict(node.attributes)
    spec = next((known[name] for name in (*node.inputs, *node.outputs) if name in known), None)
    dtype, shape = (str(spec.dtype), spec.shape) if spec is not None else ("", None)
    to, sizes = attributes.get("to"), attributes.get("sizes")
    if isinstance(to, int):  # a Receive has no input that would say it
        dtype = str(DType.from_onnx(to))
    if isinstance(sizes, tuple):
        shape = tuple(size for size in sizes if isinstance(size, int))
    peer = attributes.get("rank", attributes.get("peer", -1))
    is_paired = node.op_type in PAIRED
    return Collective(
        op=node.op_type,
        group=str(attributes.get("group", "")),
        dtype=dtype,
        shape=shape,
        peer=peer if is_paired and isinstance(peer, int) else -1,
        attributes=tuple(
            sorted((name, value) for name, value in attributes.items() if name not in _FIELDS)
        ),
    )


def _agree(mine: tuple[Dim, ...], theirs: tuple[Dim, ...]) -> bool:
    """Return whether two shapes can be one: names of symbolic dims are each file's own."""
    return len(mine) == len(theirs) and all(
        one == other or not (isinstance(one, int) and isinstance(other, int))
        for one, other in zip(mine, theirs, strict=True)
    )
