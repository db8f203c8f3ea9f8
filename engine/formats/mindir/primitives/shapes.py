"""Primitives that change a tensor's shape or the order of its elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.formats.mindir.emit import Emitter, Unsupported, bounded
from engine.formats.mindir.primitives import primitive
from engine.formats.mindir.primitives.arithmetic import common
from engine.formats.mindir.values import Abstract, DType, Value


def axes_of(axis: Any) -> tuple[int, ...]:
    """Return axes as a tuple, given as a number, a tuple or a constant tensor."""
    if isinstance(axis, Value):
        array = axis.array()
        if array is None:
            raise Unsupported("computed axes")
        axis = tuple(int(number) for number in array.reshape(-1))
    return tuple(int(dim) for dim in axis) if isinstance(axis, tuple) else (int(axis),)


def as_int(axis: Any) -> int:
    """Return a number as an int. Raises Unsupported where it is computed at run time."""
    (value,) = axes_of(axis)
    return value


def as_static(value: Any) -> Any:
    """Return a constant tensor as a tuple or number; any other value unchanged."""
    if isinstance(value, Value):
        array = value.array()
        if array is not None and array.ndim <= 1:
            numbers = tuple(int(value) for value in array.reshape(-1))
            return numbers if array.ndim else numbers[0]
    return value


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


@primitive("Concat", "ConcatV2", "concat", "Cat")
def concat(g: Emitter, *items: Any, axis: Any = None) -> Value:
    flat = list(items)
    if flat and isinstance(flat[0], tuple):
        if len(flat) > 1 and axis is None:
            axis = flat[1]
        flat = list(flat[0])
    elif axis is None and flat and not isinstance(flat[-1], Value):
        axis = flat.pop()
    tensors = common(g, *flat)
    axis = as_int(axis if axis is not None else 0)
    if len(tensors) == 1:
        return tensors[0]
    y = g.node("Concat", *tensors, axis=axis)
    sizes = [tensor.shape[axis] if tensor.shape else None for tensor in tensors]
    if y.shape and None not in sizes:
        position = axis % len(y.shape)
        y.shape = (*y.shape[:position], sum(size or 0 for size in sizes), *y.shape[position + 1 :])
    return y


@primitive("Stack", "Pack", "StackExt", "stack")
def stack(g: Emitter, *items: Any, axis: Any = 0) -> Value:
    flat = items[0] if isinstance(items[0], tuple) else items
    if isinstance(items[0], tuple) and len(items) > 1:
        axis = items[1]
    tensors = common(g, *flat)
    axis = as_int(axis)
    return g.node("Concat", *(g.unsqueeze(tensor, (axis,)) for tensor in tensors), axis=axis)


@primitive("Unstack", "Unpack", "UnstackExt", "UnstackView", "UnstackExtView", "unstack")
def unstack(g: Emitter, x: Value, axis: Any = 0, *, num: Any = None) -> tuple[Value, ...]:
    axis = as_int(axis)
    count = x.shape[axis] if x.shape is not None and x.shape[axis] is not None else num
    if count is None:
        raise Unsupported("Unstack along an axis of unknown size")
    bounded(count)
    if count == 1:
        return (g.squeeze(x, (axis,)),)
    parts = g.nodes("Split", x, types=[(None, None)] * count, axis=axis, num_outputs=count)
    rank = x.rank
    for part in parts:
        if rank is not None and x.shape is not None:
            part.shape = tuple(
                1 if position == axis % rank else size for position, size in enumerate(x.shape)
            )
    return tuple(g.squeeze(part, (axis,)) for part in parts)


@primitive("Split", "split")
def split(g: Emitter, x: Value, axis: Any = 0, output_num: Any = 1) -> tuple[Value, ...]:
    count = as_int(output_num)
    bounded(count)
    if count == 1:
        return (g.node("Identity", x),)
    return tuple(
        g.nodes("Split", x, types=[(None, None)] * count, axis=as_int(axis), num_outputs=count)
    )


def _pieces(g: Emitter, x: Value, sizes: tuple[int, ...], axis: int) -> tuple[Value, ...]:
    if len(sizes) == 1:
        return (g.node("Identity", x),)
    return tuple(g.nodes("Split", x, g.ints(sizes), types=[(None, None)] * len(sizes), axis=axis))


@primitive("SplitV", "SplitWithSize", "SplitWithSizeView")
def split_v(
    g: Emitter, x: Value, size_splits: Any = (), axis: Any = 0, *, split_dim: Any = None
) -> tuple[Value, ...]:
    axis = as_int(axis if split_dim is None else split_dim)
    sizes = axes_of(size_splits)
    if -1 in sizes:
        whole = x.shape[axis] if x.shape is not None else None
        if whole is None:
            raise Unsupported("SplitV with an open size along an axis of unknown size")
        rest = whole - sum(size for size in sizes if size >= 0)
        sizes = tuple(rest if size < 0 else size for size in sizes)
    return _pieces(g, x, sizes, axis)


@primitive("SplitTensor", "SplitTensorView", "Chunk", "ChunkView")
def split_tensor(g: Emitter, x: Value, size: Any, axis: Any = 0) -> tuple[Value, ...]:
    axis = as_int(axis)
    whole = x.shape[axis] if x.shape is not None else None
    if not isinstance(g.result, tuple):
        raise Unsupported("a split into an unknown number of parts")
    count = len(g.result)
    if whole is None:
        return tuple(
            g.nodes("Split", x, types=[(None, None)] * count, axis=axis, num_outputs=count)
        )
    part_size = -(-whole // count) if count else whole
    declared = [part.shape[axis] for part in g.result if isinstance(part, Abstract) and part.shape]
    sizes = tuple(size for size in declared if size is not None)
    if len(sizes) != count or sum(sizes) != whole:
        sizes = tuple(min(part_size, whole - start) for start in range(0, whole, part_size))
    return _pieces(g, x, sizes, axis)


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


@primitive("Pad")
def pad(g: Emitter, x: Value, paddings: Any) -> Value:
    return _pad(g, x, [tuple(map(int, pair)) for pair in _pairs(paddings)], "constant", 0)


def _pairs(paddings: Any) -> list[Any]:
    if isinstance(paddings, Value):
        array = paddings.array()
        if array is None:
            raise Unsupported("computed paddings")
        return array.reshape(-1, 2).tolist()
    if paddings and not isinstance(paddings[0], tuple):
        return [paddings[start : start + 2] for start in range(0, len(paddings), 2)]
    return list(paddings)


def _pad(g: Emitter, x: Value, pairs: Any, mode: str, value: Any) -> Value:
    starts, ends = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    fill = g.scalar(value, x.dtype) if mode == "constant" else None
    work = g.cast(x, DType.UINT8) if x.dtype is DType.BOOL else x
    if fill is not None:
        fill = g.cast(fill, work.dtype)
    shape = None
    if x.shape is not None and all(isinstance(start, int) for start in (*starts, *ends)):
        sides = zip(x.shape, starts, ends, strict=True)
        shape = tuple(None if d is None else d + before + after for d, before, after in sides)
    y = g.node("Pad", work, g.ints((*starts, *ends)), fill, mode=mode, shape=shape)
    return g.cast(y, x.dtype)


@primitive("PadV2")
def pad_v2(g: Emitter, x: Value, paddings: Any, constant_values: Any = 0) -> Value:
    return _pad(g, x, _pairs(paddings), "constant", constant_values)


@primitive("MirrorPad")
def mirror_pad(g: Emitter, x: Value, paddings: Any, *, mode: str = "REFLECT") -> Value:
    pairs = _pairs(paddings)
    if mode.upper() == "REFLECT":
        return _pad(g, x, pairs, "reflect", None)
    for axis, (before, after) in enumerate(pairs):  # the edge itself is mirrored too
        parts = []
        if before:
            parts.append(_slice(g, x, before - 1, None, axis, -1))
        parts.append(x)
        if after:
            parts.append(_slice(g, x, -1, -after - 1, axis, -1))
        if len(parts) > 1:
            x = g.node("Concat", *parts, axis=axis)
    return x


def _slice(g: Emitter, x: Value, start: Any, stop: Any, axis: int, step: int = 1) -> Value:
    lowest = -(1 << 62)
    stop = lowest if stop is None else stop
    return g.node("Slice", x, *map(g.ints, (start, stop, axis, step)))


@primitive("PadV3")
def pad_v3(
    g: Emitter,
    x: Value,
    paddings: Any,
    constant_value: Any = None,
    *,
    mode: str = "constant",
    paddings_contiguous: bool = True,
) -> Value:
    """Pad. paddings: pairs, the last axis first; not contiguous: all starts and then all ends."""
    rank = g.rank(x)
    flat = as_static(paddings)
    if isinstance(flat, Value):
        if flat.shape is None or len(flat.shape) != 1 or flat.shape[0] is None:
            raise Unsupported("paddings of unknown number")
        flat = tuple(
            g.node("Gather", flat, g.constant(position), axis=0, shape=())
            for position in range(flat.shape[0])
        )
    count = len(flat) // 2
    pairs: list[Any] = [(flat[2 * position], flat[2 * position + 1]) for position in range(count)]
    if not paddings_contiguous:
        pairs = [(flat[position], flat[position + count]) for position in range(count)]
    full: list[Any] = [(0, 0)] * (rank - count) + pairs[::-1]
    names = {"constant": "constant", "reflect": "reflect", "edge": "edge", "circular": "wrap"}
    return _pad(g, x, full, names[mode], 0 if constant_value is None else constant_value)


def _pad_mode(mode: str, *names: str) -> None:
    @primitive(*names)
    def lower(g: Emitter, x: Value, padding: Any) -> Value:
        return pad_v3(g, x, padding, None, mode=mode)


_pad_mode("reflect", "ReflectionPad1D", "ReflectionPad2D", "ReflectionPad3D")
_pad_mode("edge", "ReplicationPad1D", "ReplicationPad2D", "ReplicationPad3D")


@primitive("ConstantPadND")
def constant_pad(g: Emitter, x: Value, padding: Any, value: Any = 0) -> Value:
    return pad_v3(g, x, padding, value)


@primitive("DepthToSpace")
def depth_to_space(g: Emitter, x: Value, *, block_size: int, format: Any = "NCHW") -> Value:
    """Lower to DepthToSpace in ONNX's DCR order."""
    return g.node("DepthToSpace", x, blocksize=int(block_size), mode="DCR")


@primitive("SpaceToDepth")
def space_to_depth(g: Emitter, x: Value, *, block_size: int, format: Any = "NCHW") -> Value:
    return g.node("SpaceToDepth", x, blocksize=int(block_size))


@primitive("PixelShuffle")
def pixel_shuffle(g: Emitter, x: Value, upscale_factor: int) -> Value:
    return g.node("DepthToSpace", x, blocksize=int(upscale_factor), mode="CRD")


@primitive("BatchToSpaceND", "BatchToSpace")
def batch_to_space(
    g: Emitter, x: Value, block_shape: Any = None, crops: Any = (), *, block_size: Any = None
) -> Value:
    block = _block(block_shape, block_size, crops)
    dims = g.dims(x)
    count = int(np.prod(block))
    spatial = dims[len(dims) - len(block) :]
    lead = dims[1 : len(dims) - len(block)]
    y = g.reshape(x, (*block, -1, *lead, *spatial))
    first = len(block) + 1 + len(lead)
    perm = [len(block), *range(len(block) + 1, first)]
    for position in range(len(block)):
        perm += [first + position, position]
    y = g.transpose(y, perm)
    sizes = tuple(
        size * b if isinstance(size, int) else g.node("Mul", size, b)
        for size, b in zip(spatial, block, strict=True)
    )
    y = g.reshape(y, (dims[0] // count if isinstance(dims[0], int) else -1, *lead, *sizes))
    for position, (before, after) in enumerate(_pairs(crops)):
        if before or after:
            y = _slice(g, y, before, -after if after else 1 << 62, 1 + len(lead) + position)
    return y


@primitive("SpaceToBatchND", "SpaceToBatch")
def space_to_batch(
    g: Emitter, x: Value, block_shape: Any = None, paddings: Any = (), *, block_size: Any = None
) -> Value:
    block = _block(block_shape, block_size, paddings)
    pairs = _pairs(paddings)
    rank = g.rank(x)
    lead_count = rank - len(block)
    x = _pad(g, x, [(0, 0)] * lead_count + pairs, "constant", 0)
    dims = (
        list(g.dims(x)) if x.shape is not None else [g.dim(x, position) for position in range(rank)]
    )
    lead = dims[1:lead_count]
    split_sizes: list[Any] = [dims[0], *lead]
    for position, b in enumerate(block):
        size = dims[lead_count + position]
        split_sizes += [size // b if isinstance(size, int) else g.node("Div", size, b), b]
    y = g.reshape(x, tuple(split_sizes))
    first = lead_count
    perm = [first + 2 * position + 1 for position in range(len(block))] + list(range(first))
    perm += [first + 2 * position for position in range(len(block))]
    y = g.transpose(y, perm)
    sizes = tuple(split_sizes[first + 2 * position] for position in range(len(block)))
    return g.reshape(y, (-1, *lead, *sizes))


def _block(block_shape: Any, block_size: Any, pairs: Any) -> tuple[int, ...]:
    if block_shape is None:
        return (int(block_size),) * len(_pairs(pairs))
    return axes_of(block_shape)


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
            head = _slice(g, x, -amount, 1 << 62, axis)
            x = g.node("Concat", head, _slice(g, x, 0, -amount, axis), axis=axis)
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
    bounded(*sizes)
    index = np.full((), as_int(storage_offset), np.int64)
    for length, step in zip(sizes, strides, strict=True):
        index = index[..., None] + np.arange(length) * step
    return g.node("Gather", g.reshape(x, (-1,)), g.constant(index), axis=0)


@primitive("Narrow", "NarrowView")
def narrow(g: Emitter, x: Value, dim: Any, start: Any, length: Any) -> Value:
    first = as_int(start)
    stop = first + as_int(length)
    return _slice(g, x, first, stop if stop != 0 else 1 << 62, as_int(dim))


@primitive("SelectView", "SelectExtView")
def select_view(g: Emitter, x: Value, index: Any, axis: Any = 0) -> Value:
    return g.node("Gather", x, g.scalar(index, DType.INT64), axis=as_int(axis))
