"""Operators that move elements about: a divided axis in, a divided axis out.

Reshape is why axes are divided in blocks: three fused projections of h columns, seen as [3, heads,
head], have their heads divided where each of three blocks of h columns is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from engine.layouts.own_attributes import set_for_ranks
from engine.layouts.rules.elementwise import aligned
from engine.layouts.rules.op import Change, Local, Op, Way, each_or_one, is_shape, sized
from engine.layouts.states import PARTIAL, WHOLE, State, lengths, local_size, shard
from engine.types import Dim

Shape = tuple[Dim, ...]


def transpose(op: Op) -> Iterator[Way]:
    """Divided axes go where the permutation puts them."""
    shape = op.shape(op.inputs[0])
    if shape is None:
        return
    order = op.attribute("perm") or list(range(len(shape)))[::-1]
    for state in op.states(op.inputs[0]):
        yield op.way({0: state}, {0: state.on(order.index(state.axis))})
    yield from passed(op)


def passed(op: Op) -> Iterator[Way]:
    """Give terms of a sum on as they are."""
    yield op.way({0: PARTIAL}, {0: PARTIAL}, cost=1.0)


def reverse_sequence(op: Op) -> Iterator[Way]:
    """Any axis but time; samples with their lengths."""
    time, batch = op.attribute("time_axis", 0), op.attribute("batch_axis", 1)
    for state in op.states(op.inputs[0]):
        if state.axis != time:
            lengths_of = state.on(0) if state.axis == batch else WHOLE
            yield op.way({0: state, 1: lengths_of}, {0: state})
    yield from passed(op)


# ------------------------------------------------------------------------------------- reshaping


class Group(NamedTuple):
    """Neighbouring axes of two shapes that hold the same elements: from first to before last."""

    inside: tuple[int, int]
    out: tuple[int, int]


def reshape(op: Op) -> Iterator[Way]:
    """Reshape and Flatten: what a group of axes has divided, the group that it becomes has, too."""
    given, made = op.shape(op.inputs[0]), op.shape(op.outputs[0])
    if given is None or made is None:
        return
    has_shape = len(op.inputs) > 1
    if has_shape and not is_shape(op, 1):
        return
    entries = op.ints(1) if has_shape else None
    found = set()
    for group in groups(given, made):
        for state in op.states(op.inputs[0]):
            found |= {(state, new) for new in _carried(state, given, made, group, op.ranks)}
        back = Group(group.out, group.inside)
        for new in op.states(op.outputs[0]):
            found |= {(state, new) for state in _carried(new, made, given, back, op.ranks)}
    for state, new in sorted(found):
        copies = entries is not None and state.axis < len(entries) and entries[state.axis] == 0
        if copies and state.axis != new.axis and not op.attribute("allowzero", 0):
            continue
        size = made[new.axis]
        assert isinstance(size, int)
        change = sized(op, 1, new.axis, size, new) if has_shape else None
        yield op.way({0: state}, {0: new}, change)
    yield from passed(op)


def groups(given: Shape, made: Shape) -> Iterator[Group]:
    """Yield the groups of axes that hold the same elements, as far as sizes are known."""
    left = 0
    while left < min(len(given), len(made)) and given[left] == made[left] is not None:
        yield Group((left, left + 1), (left, left + 1))
        left += 1
    i, j = len(given), len(made)
    while i > left and j > left:
        end_i, end_j = i, j
        i, j = i - 1, j - 1
        if given[i] == made[j] is not None:
            yield Group((i, end_i), (j, end_j))
            continue
        while True:
            sizes = given[i:end_i], made[j:end_j]
            if not all(isinstance(size, int) for size in (*sizes[0], *sizes[1])):
                return
            one, other = (prod(int(size or 0) for size in part) for part in sizes)
            if one == other:
                break
            if one < other and i > left:
                i -= 1
            elif other < one and j > left:
                j -= 1
            else:
                return
        left_over = (*given[left:i], *made[left:j])
        if (i == left or j == left) and all(size == 1 for size in left_over):
            yield Group((left, end_i), (left, end_j))
            return
        yield Group((i, end_i), (j, end_j))


def _carried(state: State, given: Shape, made: Shape, group: Group, ranks: int) -> Iterator[State]:
    """Yield the states of the result that divide the elements of a group just as `state` does."""
    first, last = group.inside
    if not first <= state.axis < last:
        return
    sizes = [int(size or 0) for size in given[first:last]]
    at = state.axis - first
    after = prod(sizes[at + 1 :])
    flat = [block * after for block in state.blocks or (sizes[at],)] * prod(sizes[:at])
    unit = state.unit * after
    start, end = group.out
    news = [int(size or 0) for size in made[start:end]]
    for place, size in enumerate(news):
        before, after = prod(news[:place]), prod(news[place + 1 :])
        length, rest = divmod(len(flat), max(before, 1))
        period = flat[:length]
        if rest or not length or period * before != flat or sum(period) != size * after:
            continue
        if unit:
            if unit % after == 0:
                blocks = tuple(block // after for block in period)
                yield shard(start + place, blocks, unit // after)
        elif all(block % (after * ranks) == 0 for block in period):
            yield shard(start + place, tuple(block // after for block in period))


def unsqueeze(op: Op) -> Iterator[Way]:
    """New axes of size 1 move the others."""
    made, axes = op.shape(op.outputs[0]), _axes(op)
    if made is None or axes is None:
        return
    new = {axis % len(made) for axis in axes}
    kept = [axis for axis in range(len(made)) if axis not in new]
    for state in op.states(op.inputs[0]):
        yield op.way({0: state}, {0: state.on(kept[state.axis])})
    yield from passed(op)


def squeeze(op: Op) -> Iterator[Way]:
    """Axes of size 1 go, and the others move."""
    given, axes = op.shape(op.inputs[0]), _axes(op)
    if given is None or (axes is None and op.input(1)):
        return
    if axes is None and not all(isinstance(size, int) for size in given):
        return
    if axes is None:
        axes = [axis for axis, size in enumerate(given) if size == 1]
    gone = {axis % len(given) for axis in axes}
    kept = [axis for axis in range(len(given)) if axis not in gone]
    for state in op.states(op.inputs[0]):
        if state.axis in kept:
            yield op.way({0: state}, {0: state.on(kept.index(state.axis))})
    yield from passed(op)


def _axes(op: Op) -> list[int] | None:
    axes = op.ints(1) if op.input(1) else op.attribute("axes")
    return None if axes is None else [int(axis) for axis in axes]


# ------------------------------------------------------------------------- joining and cutting


def concat(op: Op) -> Iterator[Way]:
    """Along another axis, or each input along the axis itself: the result is divided in blocks."""
    shapes = [op.shape(name) for name in op.inputs]
    made = op.shape(op.outputs[0])
    if made is None or any(shape is None for shape in shapes):
        return
    axis = op.axis(0, len(made))
    for state in op.states(op.outputs[0]):
        if state.axis != axis:
            yield Way((state,) * len(op.inputs), (state,))
    sizes = [shape[axis] for shape in shapes if shape is not None]
    parts = [op.division(axis, size) for size in sizes]
    own = [state for state in parts if state is not None]
    joined = op.division(axis, *sizes)
    if joined is not None and len(own) == len(parts):
        yield Way(tuple(own), (joined,))


def split(op: Op) -> Iterator[Way]:
    """Along another axis, or each part along the axis itself: the input is divided in blocks."""
    shape = op.shape(op.inputs[0])
    if shape is None:
        return
    axis = op.axis(0, len(shape))
    for state in op.states(op.inputs[0]):
        if state.axis != axis:
            yield op.way({0: state}, dict.fromkeys(range(len(op.outputs)), state))
    sizes = [(op.shape(name) or shape)[axis] for name in op.outputs]
    wanted = op.division(axis, *sizes)
    parts = [op.division(axis, size) for size in sizes]
    if wanted is None or (op.input(1) and op.value(1) is None):
        return
    if wanted.unit and not op.input(1) and op.attribute("split") is None:
        return  # into equal parts, which those of a rank would have to be, too
    each = [lengths(int(size or 0), op.ranks) for size in sizes]
    own = list(zip(*each))  # by rank

    def change(local: Local) -> None:
        if len(local.node.input) > 1 and local.node.input[1]:
            local.node.input[1] = local.constant(
                each_or_one([np.array(sizes, np.int64) for sizes in own])
            )
        elif op.attribute("split") is not None:
            set_for_ranks(local.node, "split", own)

    outputs = {index: state for index, state in enumerate(parts) if state is not None}
    if len(outputs) == len(parts):
        yield op.way({0: wanted}, outputs, change)


def slice_(op: Op) -> Iterator[Way]:
    """Along other axes, or whole blocks of one axis."""
    shape, cuts = op.shape(op.inputs[0]), _cuts(op)
    if shape is None or cuts is None:
        return
    yield from op.alike(lambda axis: axis not in cuts)
    if len(cuts) != 1:
        return
    [(axis, (start, end, step))] = cuts.items()
    size = shape[axis]
    if step != 1 or not isinstance(size, int):
        return
    blocks = _blocks(op, axis, size)
    starts = [sum(blocks[:index]) for index in range(len(blocks) + 1)]
    first, last = starts.index(start), starts.index(end)
    wanted, made = op.division(axis, *blocks), op.division(axis, *blocks[first:last])
    if wanted is None or made is None or first >= last:
        return
    each = [lengths(block, op.ranks) for block in blocks]
    edges = [[sum(sizes[:end]) for end in (first, last)] for sizes in zip(*each)]  # by rank
    yield op.way({0: wanted}, {0: made}, _cut_at(op, edges))


def _cut_at(op: Op, edges: Sequence[Sequence[int]]) -> Change:
    given = op.value(1)  # all inputs beside the data have one type, int32 or int64

    def change(local: Local) -> None:
        if given is not None:
            for index in (1, 2):
                values = [np.array([edge[index - 1]], given.dtype) for edge in edges]
                local.node.input[index] = local.constant(each_or_one(values))
        else:
            set_for_ranks(local.node, "starts", [edge[:1] for edge in edges])
            set_for_ranks(local.node, "ends", [edge[1:] for edge in edges])

    return change


def _cuts(op: Op) -> dict[int, tuple[int, int, int]] | None:
    """Return start, end and step of what is cut, by axis; None where that is not known."""
    shape = op.shape(op.inputs[0])
    if shape is None:
        return None
    if len(op.inputs) == 1:
        starts, ends = op.attribute("starts", []), op.attribute("ends", [])
        axes, steps = op.attribute("axes") or list(range(len(starts))), [1] * len(starts)
    else:
        axes = op.ints(3) if op.input(3) else list(range(len(shape)))
        if axes is None:
            return None
        starts = op.ints(1) or [0] * len(axes)
        ends = op.ints(2) or [0] * len(axes)
        steps = (op.ints(4) if op.input(4) else [1] * len(axes)) or [0] * len(axes)
        if op.value(1) is None or op.value(2) is None:  # which axes is all that is known
            steps = [0] * len(axes)
    found = {}
    for axis, start, end, step in zip(axes, starts, ends, steps):
        size = shape[axis]
        if not isinstance(size, int):
            found[axis % len(shape)] = (0, 0, 0)
            continue
        low, high = (min(max(x + size if x < 0 else x, 0), size) for x in (start, end))
        found[axis % len(shape)] = (low, high, step)
    return found


def _blocks(op: Op, axis: int, size: int) -> tuple[int, ...]:
    """Return the blocks of an axis between which any of the Slices of this tensor cuts."""
    edges = {0, size}
    for node in op.model.readers[op.inputs[0]]:
        if node.op_type == "Slice":
            cuts = _cuts(op.beside(node))
            if cuts and axis in cuts and cuts[axis][2] == 1:
                edges |= {*cuts[axis][:2]}
    ends = sorted(edges)
    return tuple(end - start for start, end in pairwise(ends))


# ----------------------------------------------------------------------------- other shapes


def expand(op: Op) -> Iterator[Way]:
    """The target shape is a rank's; an axis that is made here is divided as it is made."""
    made = op.shape(op.outputs[0])
    shape = op.shape(op.input(1))
    if made is None or not is_shape(op, 1) or shape is None:
        return
    length = shape[0]
    for state in op.states(op.outputs[0]):
        size = made[state.axis]
        own = aligned(op, op.inputs[0], state, len(made), size)
        place = state.axis - (len(made) - int(length or 0))
        if own is None or own == WHOLE or not isinstance(size, int):
            continue
        known = op.value(1)
        keeps = place < 0 or (known is not None and known.reshape(-1)[place] == 1)
        yield op.way({0: own}, {0: state}, None if keeps else sized(op, 1, place, size, state))


def tile(op: Op) -> Iterator[Way]:
    """Axes that are not repeated."""
    repeats = op.ints(1)
    if repeats:
        yield from op.alike(lambda axis: repeats[axis] == 1)


def pad(op: Op) -> Iterator[Way]:
    """Axes without padding."""
    shape = op.shape(op.inputs[0])
    pads = op.ints(1) if op.version >= 11 else op.attribute("pads")
    if shape is None or pads is None:
        return
    axes = op.ints(3) if op.input(3) else list(range(len(shape)))
    if axes is None:
        return
    count = len(axes)
    padded = {a % len(shape) for i, a in enumerate(axes) if pads[i] or pads[i + count]}
    yield from op.alike(lambda axis: axis not in padded)


def shape_of(op: Op) -> Iterator[Way]:
    """The shape of a divided tensor is that of the part, with one entry as large as the whole's."""
    shape = op.shape(op.inputs[0])
    yield op.way({0: PARTIAL}, {0: WHOLE})
    if shape is None:
        return
    first = op.attribute("start", 0)
    last = op.attribute("end", len(shape))
    places = list(range(len(shape)))[first:last]
    for state in op.states(op.inputs[0]):
        size = shape[state.axis]
        if state.axis not in places:
            yield op.way({0: state}, {0: WHOLE})
        elif state.unit and isinstance(size, int):
            yield op.way({0: state}, {0: WHOLE}, _more(state, size, places))
        else:
            yield op.way({0: state}, {0: WHOLE}, _times(state.axis, places))


def _more(state: State, size: int, places: Sequence[int]) -> Change:
    def change(local: Local) -> None:
        at = np.array(places) == state.axis
        others = [
            np.where(at, size - local_size(size, state, local.ranks, rank), 0).astype(np.int64)
            for rank in range(local.ranks)
        ]
        local.follow(0, "Add", [local.constant(others)])

    return change


def _times(axis: int, places: Sequence[int]) -> Change:
    def change(local: Local) -> None:
        factors = np.array([local.ranks if place == axis else 1 for place in places], np.int64)
        local.follow(0, "Mul", [local.constant(factors)])

    return change


def constant_of_shape(op: Op) -> Iterator[Way]:
    """A constant is made as large as a rank needs it."""
    made = op.shape(op.outputs[0])
    for state in op.states(op.outputs[0]) if made and is_shape(op, 0) else ():
        size = made[state.axis] if made else None
        assert isinstance(size, int)
        yield op.way({}, {0: state}, sized(op, 0, state.axis, size, state))


def matrices(op: Op) -> Iterator[Way]:
    """Trilu and Det: axes before the two of the matrices."""
    rank = len(op.shape(op.inputs[0]) or ())
    yield from op.alike(lambda axis: axis < rank - 2)
