"""Operators that look up elements by indices, or put them in places."""

from __future__ import annotations

import numpy as np

from engine.layouts.batch.node import Node, counted, only_data, require
from engine.layouts.batch.rules.shapes import moved
from engine.layouts.batch.sizes import BATCH, Dim
from engine.layouts.batch.values import Kind, Mixes, Shape, Value, computed, divided, whole


def gather(node: Node) -> list[Value]:
    """Each sample's own indices in a table; or, of samples, entries of another axis.

    Along the batch itself only by the numbers of the samples: each has its own.
    """
    data, places = node.input(0), node.input(1)
    axis = node.axis(0, data.rank)
    indices = node.ints(1)
    if data.elements is not None and indices is not None and places.elements is not None:
        array = np.reshape(indices, places.elements.shape).astype(np.int64)
        return [computed(np.asarray(np.take(data.elements, array, axis), object), data.dtype)]
    only_data([data])
    shape = (*data.dims[:axis], *places.dims, *data.dims[axis + 1 :])
    if places.kind is Kind.POSITIONS:
        require(
            data.is_divided and data.axis == axis and data.size == BATCH,
            "it looks up the number of a sample in another tensor",
        )
        return [divided(axis + places.axis, shape, data.dtype)]
    only_data([places])
    if places.is_divided:
        require(data.is_whole, "it looks up elements of different samples")
        return [divided(axis + places.axis, shape, data.dtype)]
    require(data.axis != axis, "it chooses among the samples of a batch")
    shift = places.rank - 1 if data.axis > axis else 0
    return [moved(data, shape, data.axis + shift)]


def gather_elements(node: Node) -> list[Value]:
    """Along another axis than the batch's; or each sample's own indices in a table."""
    data, places = node.input(0), node.input(1)
    axis = node.axis(0, data.rank)
    if data.is_whole and places.is_whole:
        return [whole(places.shape, data.dtype)]
    if data.is_whole:
        if places.axis != axis:
            # The same table for all, given a row each: the one row that it has, or an own copy.
            raise Mixes("it looks up rows of a table by the number of the sample")
        return [divided(axis, places.dims, data.dtype)]
    require(
        places.is_divided and data.axis == places.axis != axis and data.size == places.size,
        "it chooses among the samples of a batch",
    )
    return [divided(data.axis, places.dims, data.dtype)]


def gather_nd(node: Node) -> list[Value]:
    """Tuples of indices, each sample's own or, by its number, into its own part."""
    data, places = node.input(0), node.input(1)
    only_data([data])
    batches = int(node.attributes.get("batch_dims", 0))
    length = places.dims[-1]
    require(isinstance(length, int), "the number of indices is not known")
    assert isinstance(length, int)
    tail = data.dims[batches + length :]
    shape: Shape = (*places.dims[:-1], *tail)
    if places.kind is Kind.INDICES:
        columns = [place for place, own in enumerate(places.columns) if own]
        require(
            data.is_divided
            and data.size == BATCH
            and columns == [data.axis - batches]
            and (batches == 0),
            "it looks up the number of a sample in another axis",
        )
        return [divided(places.axis, shape, data.dtype)]
    only_data([places])
    last = places.rank - 1
    if places.is_divided:
        require(places.axis != last, "the batch is the axis of its indices")
        if data.is_whole:
            require(places.axis >= batches, "it takes rows of a table by the number of the sample")
        else:
            require(
                data.axis == places.axis < batches and data.size == places.size,
                "it looks up elements of different samples",
            )
        return [divided(places.axis, shape, data.dtype)]
    if data.is_whole:
        return [whole(shape, data.dtype)]
    require(data.axis >= batches + length, "it chooses among the samples of a batch")
    return [divided(last + data.axis - batches - length, shape, data.dtype)]


def scatter_elements(node: Node) -> list[Value]:
    """Put elements along another axis than the batch's."""
    data, places, updates = (node.input(index) for index in range(3))
    axis = node.axis(0, data.rank)
    if all(value.is_whole for value in (data, places, updates)):
        return [whole(data.shape, data.dtype)]
    require(
        all(value.is_divided and value.axis == data.axis != axis for value in node.given)
        and len({value.size for value in node.given}) == 1,
        "it may put elements into the parts of other samples",
    )
    return [divided(data.axis, data.dims, data.dtype)]


def scatter_nd(node: Node) -> list[Value]:
    """Put slices into places that do not count along the batch, or do by the sample's number."""
    data, places, updates = (node.input(index) for index in range(3))
    only_data([data, updates])
    length = places.dims[-1]
    require(isinstance(length, int), "the number of indices is not known")
    assert isinstance(length, int)
    if places.is_whole and data.is_whole and updates.is_whole:
        return [whole(data.shape, data.dtype)]
    require(
        data.is_divided and updates.is_divided and data.size == updates.size,
        "it may put elements into the parts of other samples",
    )
    if places.kind is Kind.INDICES:
        columns = [place for place, own in enumerate(places.columns) if own]
        require(
            columns == [data.axis] and updates.axis == places.axis and data.size == BATCH,
            "it may put elements into the parts of other samples",
        )
        return [divided(data.axis, data.dims, data.dtype)]
    require(
        places.is_whole
        and data.axis >= length
        and updates.axis == places.rank - 1 + data.axis - length,
        "it may put elements into the parts of other samples",
    )
    return [divided(data.axis, data.dims, data.dtype)]


def one_hot(node: Node) -> list[Value]:
    """A new axis for each index."""
    places = node.input(0)
    node.require_whole(1, 2)
    rank = places.rank + 1
    axis = node.axis(-1, rank)
    depth = node.dims(1)
    size: Dim = depth[0] if depth else node.symbols.new()
    shape = (*places.dims[:axis], size, *places.dims[axis:])
    return [moved(places, shape, places.axis + (places.axis >= axis))]


def top_k(node: Node) -> list[Value]:
    """TopK along another axis than the batch's."""
    value = node.input(0)
    node.require_whole(1)
    axis = node.axis(-1, value.rank)
    require(axis != value.axis, "it chooses among the samples of a batch")
    counts = node.dims(1) if node.has(1) else [int(node.attributes["k"])]
    dims = list(value.dims)
    dims[axis] = counts[0] if counts else node.symbols.new()
    return [moved(value, tuple(dims), value.axis)] * 2


def reverse_sequence(node: Node) -> list[Value]:
    """Reverse each sample's sequence, by its own length."""
    value, lengths = node.input(0), node.input(1)
    time = counted(int(node.attributes.get("time_axis", 0)), value.rank)
    own = counted(int(node.attributes.get("batch_axis", 1)), value.rank)
    if value.is_divided or lengths.is_divided:
        require(
            value.is_divided
            and lengths.is_divided
            and value.axis == own != time
            and value.size == lengths.size,
            "it reverses along the batch",
        )
    return [value if value.is_divided else whole(value.shape, value.dtype)]


def tensor_scatter(node: Node) -> list[Value]:
    """Scatter of a cache's new entries, each sample's at its own place."""
    cache = node.input(0)
    axis = node.axis(-2, cache.rank)
    require(axis not in (0, cache.axis), "it writes along the batch")
    require(
        all(
            value.is_divided and value.axis == 0 and value.size == cache.size
            for value in node.given
        ),
        "not all its inputs are divided along the batch",
    )
    return [divided(0, cache.dims, cache.dtype)]
