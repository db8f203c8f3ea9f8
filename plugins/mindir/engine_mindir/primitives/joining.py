"""Primitives that join tensors along an axis, and that split them."""

from __future__ import annotations

from typing import Any

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_int, axes_of
from engine_mindir.primitives.casts import common
from engine_mindir.values import Abstract, Value


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
    g.bounded(count)
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
    g.bounded(count)
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
        g.bounded(-(-whole // part_size) if part_size > 0 else 0)
        sizes = tuple(min(part_size, whole - start) for start in range(0, whole, part_size))
    return _pieces(g, x, sizes, axis)
