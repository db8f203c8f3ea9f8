"""Operators that join tensors along an axis, and those that cut them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from engine.layouts.batch.node import Node, counted, only_data, require, require_known
from engine.layouts.batch.rules.shapes import moved
from engine.layouts.batch.sizes import BATCH, Dim, depends, lowest
from engine.layouts.batch.values import Elements, Kind, Value, computed, divided, elements_of, whole

_FAR = (1 << 31) - 1
"""Ends of slices from here on are those of the axis."""


def concat(node: Node) -> list[Value]:
    """Join along an axis that is not the samples'."""
    values = node.given
    if all(value.elements is not None for value in values):
        axis = int(node.attributes.get("axis", 0))
        arrays = [value.elements for value in values if value.elements is not None]
        return [computed(np.concatenate(arrays, axis), values[0].dtype)]
    rank = max(value.rank for value in values)
    axis = node.axis(0, rank)
    if any(value.kind is Kind.POSITIONS for value in values):
        return [_indices(values, axis, rank)]
    if not any(value.is_divided for value in values):
        # Shapes of which parts are not known.
        if axis == 0 and rank == 1 and all(isinstance(value.dims[0], int) for value in values):
            return [_joined_vectors(node, values)]
        dims = [_total(values, axis) if at == axis else values[0].dims[at] for at in range(rank)]
        kind = Kind.WHOLE if all(value.is_whole for value in values) else Kind.SIZES
        return [Value(kind, tuple(dims), dtype=values[0].dtype)]
    only_data(values)
    return [_joined(values, axis)]


def _joined(values: Sequence[Value], axis: int) -> Value:
    axes = {value.axis for value in values}
    require(len(axes) == 1, "not all its inputs are divided along the batch, or by other axes")
    [own] = axes
    require(own != axis, "it joins what different samples have along the batch")
    require(len({value.size for value in values}) == 1, "its inputs have different batches")
    dims = list(values[0].dims)
    dims[axis] = _total(values, axis)
    return divided(own, tuple(dims), values[0].dtype)


def _total(values: Sequence[Value], axis: int) -> Dim:
    total: Dim = 0
    for value in values:
        total = total + value.dims[axis]
    return total


def _joined_vectors(node: Node, values: Sequence[Value]) -> Value:
    """Join vectors some of whose elements are not known."""
    parts: list[Elements] = []
    for index, value in enumerate(values):
        if value.elements is not None:
            parts.append(value.elements)
            continue
        dims = node.dims(index) if value.dtype in (0, 6, 7) else None
        if dims is None or not value.is_whole:
            kind = Kind.WHOLE if all(one.is_whole for one in values) else Kind.SIZES
            return Value(kind, (_total(values, 0),), dtype=values[0].dtype)
        parts.append(elements_of(*dims))
    dtype = next((value.dtype for value in values if value.dtype), 0)
    return computed(np.concatenate(parts), dtype)


def _indices(values: Sequence[Value], axis: int, rank: int) -> Value:
    """Join numbers of samples and other indices to tuples of both."""
    require(axis == rank - 1, "it joins numbers of samples along an axis before the last")
    axes = {value.axis for value in values if value.axis >= 0}
    require(len(axes) == 1 and axis not in axes, "numbers of samples lie along different axes")
    columns: list[bool] = []
    for value in values:
        size = value.dims[-1]
        require(isinstance(size, int) and size <= 16, "the number of indices is not known")
        assert isinstance(size, int)
        if value.kind is Kind.POSITIONS:
            require(size == 1, "numbers of samples are there more than once")
        else:
            require(
                value.is_divided and value.size == BATCH,
                "numbers of samples stand beside what is not divided along the batch",
            )
        columns += [value.kind is Kind.POSITIONS] * size
    dims = (*values[0].dims[:-1], len(columns))
    made = divided(axes.pop(), dims, values[0].dtype, Kind.INDICES)
    return replace(made, columns=tuple(columns))


def split(node: Node) -> list[Value]:
    """Cut along an axis that is not the samples'."""
    value = node.input(0)
    axis = node.axis(0, value.rank)
    sizes = node.ints(1, "split")
    if value.elements is not None and sizes is not None:
        pieces = np.split(value.elements, np.cumsum(sizes)[:-1], axis)
        return [computed(piece, value.dtype) for piece in pieces]
    node.require_whole(1)
    if value.kind not in (Kind.WHOLE, Kind.SIZES):
        only_data([value])
        require(axis != value.axis, "it cuts along the batch")
    size, count = value.dims[axis], node.count
    made = []
    for place in range(count):
        if sizes is not None:
            own: Dim = sizes[place]
        elif isinstance(size, int) and not node.has(1):
            each = -(-size // count)
            own = max(min(each, size - each * place), 0)
        else:
            own = node.symbols.new()
        dims = list(value.dims)
        dims[axis] = own
        if value.kind is Kind.SIZES:
            made.append(Value(Kind.SIZES, tuple(dims)))
        else:
            made.append(moved(value, tuple(dims), value.axis))
    return made


def slice_(node: Node) -> list[Value]:
    """Cut along axes that are not the samples'; along these only all of it."""
    value = node.input(0)
    rank = value.rank
    if "starts" in node.attributes:
        starts: list[Dim] | None = list(node.attributes["starts"])
        ends: list[Dim] | None = list(node.attributes["ends"])
        axes = node.attributes.get("axes")
    else:
        starts, ends = node.dims(1), node.dims(2)
        axes = node.ints(3) if node.has(3) else None
        if node.has(3) and axes is None:
            node.require_whole(0, 1, 2, 3, 4)
            return [whole()]
    starts = require_known(starts, "where it cuts depends on the batch")
    ends = require_known(ends, "where it cuts depends on the batch")
    node.require_whole(4)
    steps = node.ints(4) if node.has(4) else [1] * len(starts)
    places = [counted(int(axis), rank) for axis in (axes or range(len(starts)))]
    if value.elements is not None and steps is not None:
        chosen = _chosen(value.elements, places, starts, ends, steps)
        if chosen is not None:
            return [computed(chosen, value.dtype)]
    if value.kind is Kind.INDICES:
        only_data([value])
    dims = list(value.dims)
    for place, axis in enumerate(places):
        step = steps[place] if steps is not None else None
        cut = _cut(node, dims[axis], starts[place], ends[place], step)
        if axis == value.axis:
            require(cut is None, "it cuts along the batch")
        if cut is not None:
            dims[axis] = cut
    return [moved(value, tuple(dims), value.axis)]


def _chosen(
    elements: Elements,
    axes: Sequence[int],
    starts: Sequence[Dim],
    ends: Sequence[Dim],
    steps: Sequence[int],
) -> Elements | None:
    """Return elements that are cut out; None where the places are not known."""
    cuts: list[slice] = [slice(None)] * elements.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps):
        if not isinstance(start, int) or not isinstance(end, int):
            return None
        if step < 0 and (start < -elements.shape[axis] or end >= _FAR):
            return None  # numpy takes nothing, runtimes the first, or all
        # Before the first element: numpy would count such an end from the right.
        last = None if step < 0 and end < -elements.shape[axis] else end
        cuts[axis] = slice(start, last, step)
    return np.asarray(elements[tuple(cuts)], object)


def _cut(node: Node, size: Dim, start: Dim, end: Dim, step: int | None) -> Dim | None:
    """Return the size of what is left of an axis; None for all of it."""
    is_far = end == size or (isinstance(end, int) and end >= _FAR)
    if start == 0 and step == 1 and is_far:
        return None
    require(not depends(start) and not depends(end), "where it cuts depends on the batch")
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int) and step:
        if step < 0 and (start < -size or end >= _FAR):
            return node.symbols.new()  # runtimes do not agree
        return len(range(*slice(start, end, step).indices(size)))
    require(not depends(size), "it cuts along the batch")
    bound = None if isinstance(size, int) else lowest(size)
    if start == 0 and step == 1 and isinstance(end, int) and bound is not None and 0 < end <= bound:
        return end
    if start == 0 and step == 1 and isinstance(size, int) and not isinstance(end, int):
        return node.symbols.cut(size, end)
    return node.symbols.of("slice", size, start, end, step if step else node.symbols.new())
