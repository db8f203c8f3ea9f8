"""Primitives that change a tensor's shape or the order of its elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_int, as_static, axes_of
from engine_mindir.values import Abstract, DType, Value


@primitive("Reshape", "reshape", "ReshapeView", "ReshapeExt", "View")
def reshape(g: Emitter, x: Value, shape: Any) -> Value:
    shape = as_static(shape)
    if isinstance(shape, int):
        shape = (shape,)
    out = g.result.shape if isinstance(g.result, Abstract) else None
    if out is not None and None not in out:
        shape = out
    elif isinstance(shape, tuple) and out is not None and len(out) == len(shape):
        # Sizes that are computed but known by the file, and at most one that is not.
        merged = tuple(a if b is None else b for a, b in zip(shape, out, strict=True))
        if sum(type(size) is not int for size in merged) == 1 and -1 not in merged:
            merged = tuple(size if type(size) is int else -1 for size in merged)
        shape = merged
    return g.reshape(x, shape)


@primitive("Flatten")
def flatten(g: Emitter, x: Value) -> Value:
    return g.node("Flatten", x, axis=1)


@primitive("FlattenExt", "flatten_ext")
def flatten_ext(g: Emitter, x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    rank = g.rank(x)
    first, last = start_dim % max(rank, 1), end_dim % max(rank, 1)
    dims = g.dims(x)
    return g.reshape(x, (*dims[:first], -1, *dims[last + 1 :]))


@primitive("ExpandDims", "Unsqueeze", "ExpandDimsView", "expand_dims")
def expand_dims(g: Emitter, x: Any, axis: Any) -> Value:
    return g.unsqueeze(g.constant(x), axes_of(axis))


@primitive("Squeeze", "SqueezeExt", "squeeze")
def squeeze(g: Emitter, x: Value, axis: Any = ()) -> Value:
    axes = axes_of(axis) if axis is not None else ()
    if not axes:
        if x.shape is None:
            raise Unsupported("Squeeze of a tensor of unknown rank")
        axes = tuple(position for position, size in enumerate(x.shape) if size == 1)
    elif x.shape is not None:
        axes = tuple(axis for axis in axes if x.shape[axis] in (1, None))
    return g.squeeze(x, axes)


@primitive("Transpose", "TransposeView", "transpose", "Permute")
def transpose(g: Emitter, x: Value, perm: Any) -> Value:
    return g.transpose(x, axes_of(perm))


@primitive("TransposeExt", "TransposeExtView", "SwapAxes", "swapaxes")
def transpose_ext(g: Emitter, x: Value, dim0: Any, dim1: Any) -> Value:
    perm = list(range(g.rank(x)))
    first, second = as_int(dim0), as_int(dim1)
    perm[first], perm[second] = perm[second], perm[first]
    return g.transpose(x, perm)


@primitive("TTransposed", "T", "Mt", "TExt")
def transposed(g: Emitter, x: Value) -> Value:
    return g.transpose(x, list(range(g.rank(x)))[::-1])


@primitive("Tile", "tile")
def tile(g: Emitter, x: Value, multiples: Any) -> Value:
    repeats = as_static(multiples)
    rank = g.rank(x)
    if isinstance(repeats, tuple):
        if len(repeats) > rank:
            x = g.unsqueeze(x, range(len(repeats) - rank))
        repeats = (*[1] * (rank - len(repeats)), *repeats)
    return g.node("Tile", x, g.ints(repeats))


@primitive("Repeat")
def repeat(g: Emitter, x: Value, repeats: Any) -> Value:
    return tile(g, x, repeats)


@primitive("RepeatInterleaveInt", "RepeatInterleaveTensor", "RepeatElements")
def repeat_interleave(
    g: Emitter, x: Value, repeats: Any = 1, axis: Any = None, *, rep: Any = None, dim: Any = None
) -> Value:
    count = as_int(as_static(rep if rep is not None else repeats))
    axis = axis if axis is not None else dim
    if axis is None:
        x, axis = g.reshape(x, (-1,)), 0
    axis = as_int(axis) % g.rank(x)
    dims = g.dims(x)
    wide = g.unsqueeze(x, (axis + 1,))
    wide = g.node("Expand", wide, g.ints((*dims[: axis + 1], count, *dims[axis + 1 :])))
    merged = dims[axis] * count if isinstance(dims[axis], int) else -1
    return g.reshape(wide, (*dims[:axis], merged, *dims[axis + 1 :]))


@primitive("BroadcastTo", "broadcast_to", "BroadcastToView", "DynamicBroadcastTo")
def broadcast_to(g: Emitter, x: Any, shape: Any = None) -> Value:
    x, shape = g.constant(x), as_static(shape)
    if isinstance(shape, tuple):
        if any(dim == -1 for dim in shape if type(dim) is int):
            lead = len(shape) - g.rank(x)
            shape = tuple(
                (1 if position < lead else g.dim(x, position - lead))
                if type(size) is int and size == -1
                else size
                for position, size in enumerate(shape)
            )
        if x.shape == shape:
            return g.node("Identity", x)
    return g.node("Expand", x, g.ints(shape))


@primitive("ExpandAs")
def expand_as(g: Emitter, x: Value, other: Value) -> Value:
    return g.node("Expand", x, g.shape(other))


@primitive("Shape", "shape", "DynamicShape")
def shape(g: Emitter, x: Any) -> tuple[Any, ...]:
    return g.dims(g.constant(x))


@primitive("TensorShape", "DynamicShapeTensor")
def tensor_shape(g: Emitter, x: Value) -> Value:
    return g.shape(x)


@primitive("Rank", "rank")
def rank(g: Emitter, x: Value) -> int:
    return g.rank(x)


@primitive("Size", "size")
def size(g: Emitter, x: Value) -> Any:
    if x.shape is not None and None not in x.shape:
        return int(np.prod([dim or 0 for dim in x.shape]))
    return g.node("Size", x, dtype=DType.INT64, shape=())


def slice_axis(g: Emitter, x: Value, start: Any, stop: Any, axis: int, step: int = 1) -> Value:
    """Emit a Slice of one axis; None is the end."""
    lowest = -(1 << 62)
    stop = lowest if stop is None else stop
    return g.node("Slice", x, *map(g.ints, (start, stop, axis, step)))


@primitive("ReverseV2", "Flip", "Reverse")
def reverse(g: Emitter, x: Value, axis: Any) -> Value:
    axes = axes_of(axis)
    if not axes:
        return g.node("Identity", x)
    ends = (-(1 << 62),) * len(axes)
    return g.node(
        "Slice", x, g.ints((-1,) * len(axes)), g.ints(ends), g.ints(axes), g.ints((-1,) * len(axes))
    )


@primitive("ReverseSequence")
def reverse_sequence(
    g: Emitter, x: Value, seq_lengths: Value, *, seq_dim: int, batch_dim: int = 0
) -> Value:
    if {seq_dim, batch_dim} != {0, 1}:
        raise Unsupported("ReverseSequence along axes beyond the first two")
    lengths = g.cast(seq_lengths, DType.INT64)
    return g.node("ReverseSequence", x, lengths, time_axis=seq_dim, batch_axis=batch_dim)


@primitive("Roll", "roll")
def roll(
    g: Emitter,
    x: Value,
    shifts: Any = None,
    axis: Any = None,
    *,
    shift: Any = None,
    dims: Any = None,
) -> Value:
    amounts = axes_of(shifts if shifts is not None else shift)
    roll_axes = axis if axis is not None else dims
    if roll_axes is None or roll_axes == ():
        flat = roll(g, g.reshape(x, (-1,)), amounts, (0,))
        return g.reshape(flat, g.dims(x))
    shape = x.shape
    for amount, axis in zip(amounts, axes_of(roll_axes), strict=True):
        size = shape[axis] if shape is not None else None
        if size is not None:
            amount = amount % size if size else 0
        if amount:
            head = slice_axis(g, x, -amount, 1 << 62, axis)
            x = g.node("Concat", head, slice_axis(g, x, 0, -amount, axis), axis=axis)
    return x


@primitive("ViewAs", "ReshapeAs")
def view_as(g: Emitter, x: Value, other: Value) -> Value:
    return g.reshape(x, g.dims(other))


@primitive("ChannelShuffle")
def channel_shuffle(g: Emitter, x: Value, *, group: Any) -> Value:
    dims = g.dims(x)
    parts = as_int(group)
    grouped = g.reshape(x, (dims[0], parts, -1, *dims[2:]))
    order = [0, 2, 1, *range(3, len(dims) + 1)]
    return g.reshape(g.node("Transpose", grouped, perm=order), dims)


@primitive("AsStrided", "as_strided")
def as_strided(g: Emitter, x: Value, size: Any, stride: Any, storage_offset: Any = 0) -> Value:
    sizes, strides = axes_of(size), axes_of(stride)
    g.bounded(*sizes)
    index = np.full((), as_int(storage_offset), np.int64)
    for length, step in zip(sizes, strides, strict=True):
        index = index[..., None] + np.arange(length) * step
    return g.node("Gather", g.reshape(x, (-1,)), g.constant(index), axis=0)


@primitive("Narrow", "NarrowView")
def narrow(g: Emitter, x: Value, dim: Any, start: Any, length: Any) -> Value:
    first = as_int(start)
    stop = first + as_int(length)
    return slice_axis(g, x, first, stop if stop != 0 else 1 << 62, as_int(dim))


@primitive("SelectView", "SelectExtView")
def select_view(g: Emitter, x: Value, index: Any, axis: Any = 0) -> Value:
    return g.node("Gather", x, g.scalar(index, DType.INT64), axis=as_int(axis))
