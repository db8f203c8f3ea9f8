"""Operators that move elements about, and those that make tensors of a given shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.layouts.batch.node import Node, counted, only_data, require
from engine.layouts.batch.rules.elementwise import elements_like, joint
from engine.layouts.batch.sizes import BATCH, Dim, depends, lowest, quotient
from engine.layouts.batch.values import (
    MOST_ELEMENTS,
    Kind,
    Mixes,
    Shape,
    Value,
    computed,
    divided,
    elements_of,
    part,
    product,
    whole,
)


def shape_of(node: Node) -> list[Value]:
    """Shape, or a part of it."""
    shape = node.input(0).shape
    if shape is None:
        return [whole()]
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    return [computed(elements_of(*shape[start:end]), 7)]


def size_of(node: Node) -> list[Value]:
    """Size: how many elements there are."""
    made = np.empty((), object)
    made[()] = product(node.input(0).dims)
    return [computed(made, 7)]


def moved(value: Value, shape: Shape, axis: int) -> Value:
    """Return a tensor with its axes elsewhere. axis: that of the samples now."""
    if value.kind is Kind.WHOLE:
        return whole(shape, value.dtype)
    if value.kind is Kind.SIZES:
        return Value(Kind.SIZES, shape, dtype=value.dtype)
    return divided(axis, shape, value.dtype, value.kind)


def transpose(node: Node) -> list[Value]:
    """Divided axes go where the permutation puts them."""
    value = node.input(0)
    rank = value.rank
    order = [int(axis) for axis in node.attributes.get("perm") or range(rank)[::-1]]
    require(sorted(order) == list(range(rank)), "its permutation is of another rank")
    known = elements_like(value, lambda elements: elements.transpose(order))
    if known is not None:
        return [known]
    if value.kind is Kind.INDICES:
        only_data([value])
    shape = tuple(value.dims[axis] for axis in order)
    return [moved(value, shape, order.index(value.axis) if value.axis >= 0 else -1)]


# ------------------------------------------------------------------------------------- reshaping


def reshape(node: Node) -> list[Value]:
    """Reshape: samples stay together and in order where the axes before theirs keep their size."""
    value = node.input(0)
    if "shape" in node.attributes:
        entries: list[Dim] | None = list(node.attributes["shape"])
    else:
        entries = node.dims(1)
    if entries is None:
        require(value.is_whole and node.input(1).is_whole, "the shape it is given is not known")
        return [whole()]
    copies = not node.attributes.get("allowzero", 0)
    return [reshaped(node, value, entries, copies)]


def flatten(node: Node) -> list[Value]:
    """Flatten to two axes."""
    value = node.input(0)
    dims = value.dims
    at = int(node.attributes.get("axis", 1))
    at = at + len(dims) if at < 0 else at
    return [reshaped(node, value, [product(dims[:at]), product(dims[at:])], False)]


def reshaped(node: Node, value: Value, entries: Sequence[Dim], copies: bool) -> Value:
    """Return a tensor in another shape. copies: an entry of 0 means the same size."""
    given = value.dims
    wanted: list[Dim] = []
    for place, entry in enumerate(entries):
        if entry == 0 and copies:
            require(place < len(given), "its shape copies an axis that is not there")
            wanted.append(given[place])
        else:
            wanted.append(entry)
    require(wanted.count(-1) <= 1, "its shape leaves two axes open")
    if value.kind in (Kind.WHOLE, Kind.SIZES):
        made = _completed(node, product(given), wanted)
        if value.elements is not None and all(isinstance(dim, int) for dim in made):
            sizes = [int(dim) for dim in made if isinstance(dim, int)]
            return computed(value.elements.reshape(sizes), value.dtype)
        if value.is_whole and not any(map(depends, made)):
            return whole(made, value.dtype)
        return Value(Kind.SIZES, made, dtype=value.dtype)
    if value.kind is Kind.INDICES:
        only_data([value])
    made, axis, blocks = _along_samples(node, value, wanted)
    if value.kind is Kind.POSITIONS:
        require(
            made[axis] == BATCH and blocks == 1,
            "it joins the axis of the samples' numbers with another",
        )
    if blocks != 1:
        return Value(Kind.BLOCKS, made, axis, dtype=value.dtype, blocks=blocks)
    kind = Kind.DIVIDED if value.kind is Kind.BLOCKS else value.kind
    return divided(axis, made, value.dtype, kind)


def _completed(node: Node, total: Dim, wanted: Sequence[Dim]) -> Shape:
    """Return a shape with its open entry filled in."""
    if -1 not in wanted:
        return tuple(wanted)
    others = product(tuple(dim for dim in wanted if dim != -1))
    found = quotient(total, others)
    if found is None:
        require(not depends(total) and not depends(others), "the axis it leaves open is not known")
        found = node.symbols.of("quotient", total, others)
    return tuple(found if dim == -1 else dim for dim in wanted)


def _along_samples(node: Node, value: Value, wanted: Sequence[Dim]) -> tuple[Shape, int, Dim]:
    """Return the new shape, the axis in it along which the samples lie, and in how many blocks.

    Elements before the samples number `before`, those of one sample after it `each`. The new axis
    begins some axes later or earlier: what it has of those before are its blocks.
    """
    own = quotient(value.size, BATCH * value.blocks)
    require(own is not None, "an input is not of one size for each sample")
    assert own is not None
    before = product(value.dims[: value.axis]) * value.blocks
    each = own * product(value.dims[value.axis + 1 :])
    made = list(wanted)
    if -1 in wanted:
        others = product(tuple(dim for dim in wanted if dim != -1))
        found = quotient(before * BATCH * each, others)
        if found is None:
            found = _open_after(node, before, each, wanted)
        made[wanted.index(-1)] = found
    named = [place for place, entry in enumerate(made) if depends(entry)]
    require(len(named) == 1, "its shape has a fixed size, or two axes, in place of the batch")
    [axis] = named
    blocks = quotient(before, product(tuple(made[:axis])))
    sample = part(made[axis])
    if blocks is None or sample is None or quotient(sample, blocks) is None:
        raise Mixes("it may put parts of different samples together")
    # Of a sample there is then as much as before: else all of it does not fit, and a run fails.
    return tuple(made), axis, blocks


def _open_after(node: Node, before: Dim, each: Dim, wanted: Sequence[Dim]) -> Dim:
    """Return the size of an open axis behind that of the batch, which only a run tells."""
    place = wanted.index(-1)
    named = [at for at, entry in enumerate(wanted[:place]) if depends(entry)]
    if len(named) != 1 or any(map(depends, wanted[place:])):
        raise Mixes("it may put parts of different samples together")
    [axis] = named
    sample = part(wanted[axis])
    if product(tuple(wanted[:axis])) != before or sample is None:
        raise Mixes("it may put parts of different samples together")
    rest = tuple(dim for dim in wanted[axis + 1 :] if dim != -1)
    return node.symbols.of("quotient", each, sample * product(rest))


def squeeze(node: Node) -> list[Value]:
    """Axes of size 1 go, and the others move."""
    value = node.input(0)
    dims = value.dims
    if "axes" in node.attributes or node.has(1):
        axes = node.ints(1, "axes")
        if axes is None:
            node.require_whole(0, 1)
            return [whole()]
        require(bool(axes), "whether no axes are all or none is not said")
        gone = {counted(axis, len(dims)) for axis in axes}
    elif all(isinstance(dim, int) for dim in dims):
        gone = {axis for axis, dim in enumerate(dims) if dim == 1}
    else:
        require(value.is_whole, "it has no axes, and a batch of one sample would lose its axis")
        return [whole()]
    kept = [axis for axis in range(len(dims)) if axis not in gone]
    known = elements_like(value, lambda elements: elements.squeeze(tuple(gone)))
    if known is not None:
        return [known]
    require(value.axis not in kept or value.kind is not Kind.INDICES, "it moves indices")
    require(value.axis < 0 or value.axis in kept, "it removes the axis of the batch")
    require(not any(depends(dims[axis]) for axis in gone), "it removes the axis of the batch")
    shape = tuple(dims[axis] for axis in kept)
    return [moved(value, shape, kept.index(value.axis) if value.axis >= 0 else -1)]


def unsqueeze(node: Node) -> list[Value]:
    """New axes of size 1 move the others."""
    value, axes = node.input(0), node.ints(1, "axes")
    if axes is None:
        node.require_whole(0, 1)
        return [whole()]
    rank = value.rank + len(axes)
    new = {counted(axis, rank) for axis in axes}
    require(len(new) == len(axes), "its axes are there twice")
    known = elements_like(value, lambda e: np.expand_dims(e, tuple(sorted(new))))
    if known is not None:
        return [known]
    if value.kind is Kind.INDICES:
        only_data([value])
    kept = [axis for axis in range(rank) if axis not in new]
    dims = iter(value.dims)
    shape = tuple(1 if axis in new else next(dims) for axis in range(rank))
    return [moved(value, shape, kept[value.axis] if value.axis >= 0 else -1)]


# ----------------------------------------------------------------------------- other shapes


def constant_of_shape(node: Node) -> list[Value]:
    """A constant tensor: divided where its shape has the batch."""
    entries = node.dims(0)
    if entries is None:
        node.require_whole(0)
        return [whole()]
    tensor = node.attributes.get("value")
    dtype = tensor.data_type if tensor is not None else 1
    shape = tuple(entries)
    if all(isinstance(size, int) for size in shape):
        from onnx import numpy_helper

        count = int(np.prod([int(size) for size in shape if isinstance(size, int)]))
        array = numpy_helper.to_array(tensor) if tensor is not None else np.zeros(1, np.float32)
        if count <= 1024 and array.dtype.kind in "iubf":
            filled = np.empty([size for size in shape if isinstance(size, int)], object)
            filled[...] = array.reshape(-1)[0].item()
            return [computed(filled, dtype)]
        return [whole(shape, dtype)]
    return [_filled(shape, dtype)]


def _filled(shape: Shape, dtype: int) -> Value:
    """Return the form of a tensor that is the same everywhere along the batch."""
    axes = [axis for axis, size in enumerate(shape) if depends(size)]
    if not axes:
        return whole(shape, dtype)
    return divided(axes[0], shape, dtype)


def expand(node: Node) -> list[Value]:
    """Broadcast to a shape; what is repeated for each sample is divided."""
    value, entries = node.input(0), node.dims(1)
    if entries is None:
        node.require_whole(0, 1)
        return [whole()]
    given = value.dims
    require(-1 not in entries, "it keeps sizes by -1, which is not ONNX's")
    rank = max(len(given), len(entries))
    dims = [1] * (rank - len(given)) + list(given)
    wanted = [1] * (rank - len(entries)) + list(entries)
    made = tuple(joint(size, want, node.symbols) for size, want in zip(dims, wanted))
    is_small = all(isinstance(size, int) for size in made) and product(made) in range(
        MOST_ELEMENTS + 1
    )
    if value.elements is not None and is_small:
        sizes = [int(size) for size in made if isinstance(size, int)]
        return [computed(np.broadcast_to(value.elements, sizes), value.dtype)]
    if value.is_whole:
        return [_filled(made, value.dtype)]
    if value.kind is Kind.SIZES:
        return [Value(Kind.SIZES, made)]
    if value.kind is Kind.INDICES:
        only_data([value])
    return [divided(value.axis + rank - len(given), made, value.dtype, value.kind)]


def tile(node: Node) -> list[Value]:
    """Repeat along axes that are not the samples', or for each sample."""
    value, repeats = node.input(0), node.dims(1)
    if repeats is None:
        node.require_whole(0, 1)
        return [whole()]
    only_data([value])
    require(len(repeats) == value.rank, "its repeats are of another rank")
    if value.is_divided:
        require(repeats[value.axis] == 1, "it repeats the batch")
    made = []
    for size, repeat in zip(value.dims, repeats):
        require(not depends(repeat) or size == 1, "it repeats an axis for each sample")
        made.append(size * repeat)
    if value.is_whole:
        return [_filled(tuple(made), value.dtype)]
    return [divided(value.axis, tuple(made), value.dtype)]


def pad(node: Node) -> list[Value]:
    """Add to axes that are not the samples'."""
    value = node.input(0)
    only_data(node.given)
    pads = node.ints(1, "pads" if node.version >= 2 else "paddings")
    axes = node.ints(3) if node.has(3) else list(range(value.rank))
    node.require_whole(1, 2, 3)
    if pads is None or axes is None:
        require(value.is_whole, "where it pads is not known")
        return [whole()]
    dims = list(value.dims)
    for place, axis in enumerate(axes):
        axis = counted(axis, value.rank)
        added = pads[place] + pads[place + len(axes)]
        if pads[place] or pads[place + len(axes)]:
            require(axis != value.axis, "it pads the batch")
            dims[axis] = dims[axis] + added
    return [moved(value, tuple(dims), value.axis)]


def trilu(node: Node) -> list[Value]:
    """Axes before the two of the matrices."""
    value = node.input(0)
    only_data([value])
    node.require_whole(1)
    if value.is_divided:
        require(value.axis < value.rank - 2, "the batch is an axis of its matrices")
    return [moved(value, value.dims, value.axis)]


def range_(node: Node) -> list[Value]:
    """Range: numbers of the samples where it goes up to the batch."""
    bounds = [node.dims(index) for index in range(3)]
    if any(bound is None or len(bound) != 1 for bound in bounds):
        node.require_whole(0, 1, 2)
        return [whole((node.symbols.new(),))]
    start, limit, step = (bound[0] for bound in bounds if bound is not None)
    if start == 0 and step == 1 and limit == BATCH:
        return [Value(Kind.POSITIONS, (BATCH,), 0, dtype=7)]
    if any(map(depends, (start, limit, step))):
        bound = lowest(limit)
        if start == 0 and step == 1 and bound is not None and bound >= 0:
            return [Value(Kind.SIZES, (limit,))]
        raise Mixes("its range depends on the batch")
    numbers = (start, limit, step)
    if all(isinstance(number, int) for number in numbers):
        found = range(*(int(number) for number in numbers if isinstance(number, int)))
        if len(found) <= 256 and node.input(0).dtype in (6, 7):
            return [computed(elements_of(*found), node.input(0).dtype)]
        return [whole((len(found),))]
    bound = lowest(limit)
    if start == 0 and step == 1 and bound is not None and bound >= 0:  # else it may be empty
        return [whole((limit,))]
    return [whole((node.symbols.of("range", *numbers),))]
