"""Attention in one operator: heads are divided, and with them queries, keys, values and caches."""

from __future__ import annotations

from collections.abc import Iterator

from engine.layouts.own_attributes import set_for_ranks
from engine.layouts.rules.op import Change, Local, Op, Way, divided
from engine.layouts.states import WHOLE, State, lengths
from engine.types import Dim


def _heads(op: Op, heads: object, others: object) -> tuple[int, int] | None:
    """Return how many heads queries have, and keys; None where these cannot be divided."""
    if not isinstance(heads, int) or not isinstance(others, int):
        return None
    return None if others < op.ranks or heads % others else (heads, others)


def _along(op: Op, axis: int, heads: int, *sizes: Dim) -> State | None:
    """Return the state that divides an axis of heads, or of their columns, by groups of heads.

    heads: how many groups there are, each of which goes to one rank.
    """
    units = {size // heads for size in sizes if isinstance(size, int) and size % heads == 0}
    if len(units) > 1 and heads % op.ranks:
        return None  # blocks whose groups are of different width
    return op.division(axis, *sizes, unit=min(units)) if units else None


def attention(op: Op) -> Iterator[Way]:
    """Attention of operator set 23: with heads as an axis of their own, or in the last one."""
    query, key, value, mask = (op.shape(op.input(index)) for index in (0, 1, 2, 3))
    if query is None or key is None or value is None:
        return
    four = len(query) == 4
    found = (
        _heads(op, query[1], key[1])
        if four
        else (_heads(op, op.attribute("q_num_heads", 0), op.attribute("kv_num_heads", 0)))
    )
    if found is None or (mask is None and op.input(3)):
        return
    heads, groups = found
    axis = 1 if four else 2
    own = [_along(op, axis, groups, shape[axis]) for shape in (query, key, value)]
    cache, scores = _along(op, 1, groups, groups), _along(op, 1, groups, heads)
    made = op.shape(op.outputs[0])
    if four:
        out = own[0]
    elif isinstance(value[2], int):
        out = _along(op, 2, groups, value[2] // groups * heads)
    else:
        out = None
    if None in own or cache is None or scores is None or out is None or made is None:
        return
    inputs = {index: state for index, state in enumerate(own) if state is not None}
    inputs |= {4: cache, 5: cache}
    if mask is not None and len(mask) > 2 and mask[-3] != 1:  # broadcast to four dims
        inputs[3] = scores.on(len(mask) - 3)
    outputs = {0: out, 1: cache, 2: cache, 3: scores}
    change = None if four else _set_heads(op, groups, "q_num_heads", "kv_num_heads")
    yield op.way(inputs, outputs, change)


def multi_head(op: Op) -> Iterator[Way]:
    """MultiHeadAttention of com.microsoft, with queries, keys and values of three dims."""
    shapes = [op.shape(op.input(index)) for index in range(3)]
    if any(shape is None or len(shape) != 3 for shape in shapes):
        return
    found = _heads(op, op.attribute("num_heads", 0), op.attribute("num_heads", 0))
    widths = [int(shape[2] or 0) for shape in shapes if shape and isinstance(shape[2], int)]
    if found is None or len(widths) < 3:
        return
    heads, _ = found
    own = [_along(op, 2, heads, width) for width in widths]
    together, cache = _along(op, 0, heads, *widths), _along(op, 1, heads, heads)
    if None in own or cache is None or (together is None and op.input(3)):
        return
    inputs = {index: state for index, state in enumerate(own) if state is not None}
    out = inputs[2]
    inputs |= {3: together or WHOLE, 6: cache, 7: cache}
    bias = op.shape(op.input(5)) if op.input(5) else None
    if op.input(5) and (bias is None or len(bias) != 4):
        return
    if bias is not None and bias[1] != 1:
        inputs[5] = cache
    change = _set_heads(op, heads, "num_heads")
    yield op.way(inputs, {0: out, 1: cache, 2: cache, 3: cache}, change)


def grouped_query(op: Op) -> Iterator[Way]:
    """GroupQueryAttention of com.microsoft, with keys and values or packed with the queries."""
    query, heads = op.shape(op.input(0)), op.attribute("num_heads", 0)
    found = _heads(op, heads, op.attribute("kv_num_heads", 0))
    if query is None or len(query) != 3 or found is None:
        return
    width, groups = query[2], found[1]
    if not isinstance(width, int) or len(op.inputs) > 9:
        return
    cache = _along(op, 1, groups, groups)
    states: list[State | None]
    if op.input(1):
        others = [op.shape(op.input(index)) for index in (1, 2)]
        sizes = [shape[2] if shape is not None and len(shape) == 3 else None for shape in others]
        states = [_along(op, 2, groups, size) for size in (width, *sizes)]
        own = states[0]
    else:
        head = width // (heads + 2 * groups)
        states = [_along(op, 2, groups, heads * head, groups * head, groups * head)]
        own = _along(op, 2, groups, heads * head)
    if None in states or own is None or cache is None:
        return
    inputs = {index: state for index, state in enumerate(states) if state is not None}
    change = _set_heads(op, groups, "num_heads", "kv_num_heads")
    yield op.way(inputs | {3: cache, 4: cache}, {0: own, 1: cache, 2: cache}, change)


def fused(op: Op) -> Iterator[Way]:
    """Attention of com.microsoft, which has the three projections in it."""
    weights, heads = op.shape(op.input(1)), op.attribute("num_heads", 0)
    found = _heads(op, heads, heads)
    if weights is None or len(weights) != 2 or found is None:
        return
    width = weights[1]
    if not isinstance(width, int) or any(op.input(index) for index in (4, 5, 6)):
        return
    sizes = tuple(op.attribute("qkv_hidden_sizes") or (width // 3,) * 3)
    own, out = _along(op, 1, heads, *sizes), _along(op, 2, heads, sizes[2])
    past = _along(op, 2, heads, heads)  # behind the axis of keys and values
    if own is not None and out is not None and past is not None:
        inputs = {1: own, 2: own.on(0)}
        yield op.way(inputs, {0: out, 1: past}, _fused_heads(op, heads, sizes))


def _fused_heads(op: Op, heads: int, sizes: tuple[int, ...]) -> Change:
    numbers = lengths(heads, op.ranks)

    def change(local: Local) -> None:
        _set_heads(op, heads, "num_heads")(local)
        if any(attribute.name == "qkv_hidden_sizes" for attribute in local.node.attribute):
            own = [[size // heads * number for size in sizes] for number in numbers]
            set_for_ranks(local.node, "qkv_hidden_sizes", own)

    return change


def _set_heads(op: Op, groups: int, *names: str) -> Change:
    """Return a change that gives a rank its part of the heads."""

    def change(local: Local) -> None:
        for attribute in list(local.node.attribute):
            if attribute.name in names:
                set_for_ranks(
                    local.node,
                    attribute.name,
                    lengths(attribute.i, op.ranks, attribute.i // groups),
                )

    return change


def rotary(op: Op) -> Iterator[Way]:
    """RotaryEmbedding with heads as an axis of their own; tables of sines are whole."""
    shape = op.shape(op.inputs[0])
    if shape is None or len(shape) != 4 or op.node.domain not in ("", "ai.onnx"):
        return
    yield from op.alike(lambda axis: axis == 1)


def packed_columns(op: Op) -> Iterator[Way]:
    """MatMulNBits of com.microsoft, by columns: its weights have them in the first axis."""
    shape, columns = op.shape(op.input(1)), op.attribute("N", 0)
    made = op.shape(op.outputs[0])
    if shape is None or made is None or op.input(4):
        return
    own = op.division(0, columns)
    if own is None:
        return
    beside = [op.shape(op.input(index)) for index in (2, 3, 5) if op.input(index)]
    if any(not size or not isinstance(size[0], int) or size[0] % columns for size in beside):
        return
    inputs = {1: own}
    for index in (2, 3, 5):  # each with an entry, or a row of blocks, for a column
        shape = op.shape(op.input(index))
        if shape is not None and isinstance(shape[0], int):
            part = op.division(0, shape[0], unit=shape[0] // columns)
            if part is None:
                return
            inputs[index] = part
    change = divided("N", lengths(columns, op.ranks))
    yield op.way(inputs, {0: own.on(len(made) - 1)}, change)
