"""If, Loop and Scan: by their bodies, where every sample takes the same way through them."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import GraphProto

from engine.layouts.batch.node import Node, counted, only_data, require
from engine.layouts.batch.sizes import Dim, Symbols
from engine.layouts.batch.values import Kind, Mixes, Shape, Value, divided, whole

_ROUNDS = 4


def if_(node: Node) -> list[Value]:
    """If: a condition that is whole, and branches that give the same forms."""
    node.require_whole(0)
    elements = node.input(0).elements
    branches: list[GraphProto] = [node.attributes["then_branch"], node.attributes["else_branch"]]
    known = None if elements is None else elements.reshape(-1)[0]
    if isinstance(known, bool):
        return node.run(branches[0 if known else 1], [])
    one, other = (node.run(branch, []) for branch in branches)
    return [_either(first, second, node.symbols) for first, second in zip(one, other, strict=True)]


def _either(one: Value, other: Value, symbols: Symbols) -> Value:
    """Return the form of what may be one or the other."""
    kinds = {one.kind, other.kind}
    if kinds == {Kind.WHOLE}:
        if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
            return whole()
        return whole(_either_shape(one.shape, other.shape, symbols), one.dtype)
    if kinds != {Kind.DIVIDED} or one.axis != other.axis or one.rank != other.rank:
        raise Mixes("its branches depend on the batch in different ways")
    require(one.size == other.size, "its branches give different sizes along the batch")
    return divided(one.axis, _either_shape(one.dims, other.dims, symbols), one.dtype)


def _either_shape(one: Shape, other: Shape, symbols: Symbols) -> Shape:
    return tuple(a if a == b else symbols.new() for a, b in zip(one, other))


def loop(node: Node) -> list[Value]:
    """Loop: as many rounds for every sample, and a state that keeps its form."""
    node.require_whole(0, 1)
    body: GraphProto = node.attributes["body"]
    states = [node.input(index) for index in range(2, len(node.inputs))]
    number = whole((), 7)

    def run(current: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        condition, *made = node.run(body, [number, whole((), 9), *current])
        require(condition.is_whole, "when it ends depends on the samples")
        return made[: len(current)], made[len(current) :]

    states, scanned = _settled(states, run, node.symbols)
    rounds = node.symbols.new()
    return [*states, *(_stacked(value, 0, rounds) for value in scanned)]


def scan(node: Node) -> list[Value]:
    """Scan: along an axis that is not the samples'."""
    require(node.version >= 9, "it is Scan of operator set 8")
    given = node.attributes
    body: GraphProto = given["body"]
    count = int(given["num_scan_inputs"])
    states = [node.input(index) for index in range(len(node.inputs) - count)]
    sequences = [node.input(len(states) + index) for index in range(count)]
    only_data(sequences)
    axes = given.get("scan_input_axes") or [0] * count
    slices = []
    rounds: Dim = 0
    for value, axis in zip(sequences, axes, strict=True):
        axis = counted(int(axis), value.rank)
        require(axis != value.axis, "it goes along the batch")
        rounds = value.dims[axis]
        shape = (*value.dims[:axis], *value.dims[axis + 1 :])
        own = value.axis - (axis < value.axis)
        slices.append(divided(own, shape) if value.is_divided else whole(shape))

    def run(current: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        made = node.run(body, [*current, *slices])
        return made[: len(current)], made[len(current) :]

    states, scanned = _settled(states, run, node.symbols)
    places = given.get("scan_output_axes") or [0] * len(scanned)
    return [
        *states,
        *(_stacked(value, int(axis), rounds) for value, axis in zip(scanned, places, strict=True)),
    ]


def _settled(
    states: Sequence[Value],
    run: object,
    symbols: Symbols,
) -> tuple[list[Value], list[Value]]:
    """Return the forms that a state keeps from round to round, and those of what is collected.

    Raises Mixes where it does not keep one.
    """
    only_data(states)
    current = [
        divided(v.axis, v.dims, v.dtype) if v.is_divided else whole(v.shape, v.dtype)
        for v in states
    ]
    for _ in range(_ROUNDS):
        made, scanned = run(current)  # type: ignore[operator]
        only_data([*made, *scanned])
        following = []
        is_settled = True
        for before, after in zip(current, made, strict=True):
            general = _either(before, after, symbols)
            is_settled &= before.shape == after.shape and before.kind is general.kind
            if before.shape is not None and before.shape != after.shape:
                general = _opened(before, general, symbols)
            following.append(general)
        if is_settled or [v.shape for v in following] == [v.shape for v in current]:
            return following, scanned
        current = following
    raise Mixes("its state does not keep its shape")


def _opened(before: Value, general: Value, symbols: Symbols) -> Value:
    return general


def _stacked(value: Value, axis: int, rounds: Dim) -> Value:
    """Return the form of what is collected from all rounds."""
    if value.shape is None:
        return whole()
    at = counted(axis, value.rank + 1)
    shape = (*value.shape[:at], rounds, *value.shape[at:])
    if value.is_whole:
        return whole(shape, value.dtype)
    return divided(value.axis + (value.axis >= at), shape, value.dtype)
