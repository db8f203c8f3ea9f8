"""Gather primitives: elements by index, by mask, as one-hot vectors."""

from __future__ import annotations

from typing import Any

from engine_mindir.emit import Emitter
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_int, as_static
from engine_mindir.primitives.casts import common
from engine_mindir.values import DType, Value


@primitive("Gather", "GatherV2", "SparseGatherV2", "gather")
def gather(g: Emitter, params: Value, indices: Any, axis: Any = 0, batch_dims: Any = 0) -> Value:
    """Return elements along an axis; the first `batch_dims` axes of both go together."""
    ids = as_ids(g, indices)
    axis = as_int(axis) % max(g.rank(params), 1)
    batch = as_int(batch_dims)
    if not batch:
        return g.node("Gather", params, ids, axis=axis)
    batch %= g.rank(ids) + 1
    rank, ids_rank = g.rank(params), g.rank(ids)
    # The axis comes first behind the batch; then it and the rest are GatherND's.
    order = [*range(batch), axis, *(dim for dim in range(batch, rank) if dim != axis)]
    data = g.transpose(params, order)
    ids = g.cast(ids, DType.INT64)
    gathered = g.node("GatherND", data, g.unsqueeze(ids, (-1,)), batch_dims=batch)
    before = axis - batch
    count = ids_rank - batch
    perm = [
        *range(batch),
        *range(batch + count, batch + count + before),
        *range(batch, batch + count),
        *range(batch + count + before, rank - 1 + count),
    ]
    return g.transpose(gathered, perm)


def as_ids(g: Emitter, indices: Any) -> Value:
    """Return indices as a tensor of a type that ONNX takes for them."""
    value = g.constant(indices)
    return value if value.dtype in (DType.INT32, DType.INT64) else g.cast(value, DType.INT64)


@primitive("EmbeddingLookup")
def embedding_lookup(g: Emitter, params: Value, indices: Value, offset: Any = 0) -> Value:
    """Gather rows; an index outside of the table gives zeros."""
    ids = as_ids(g, indices)
    shift = as_static(offset)
    if shift != 0:
        ids = g.node("Sub", ids, shift)
    rows = g.scalar(g.dim(params, 0), ids.dtype)
    zero = g.constant(0, ids.dtype)
    in_range = g.node(
        "And",
        g.node("GreaterOrEqual", ids, zero, dtype=DType.BOOL),
        g.node("Less", ids, rows, dtype=DType.BOOL),
    )
    safe = g.node("Where", in_range, ids, zero, like=ids)
    gathered = g.node("Gather", params, safe, axis=0)
    for _ in range(g.rank(params) - 1):
        in_range = g.unsqueeze(in_range, (-1,))
    return g.node("Where", in_range, gathered, g.constant(0, params.dtype), like=params)


@primitive("Embedding", "embedding")
def embedding(g: Emitter, ids: Value, weight: Value, *rest: Any) -> Value:
    return g.node("Gather", weight, as_ids(g, ids), axis=0)


@primitive("GatherD", "GatherDim", "gather_d", "GatherElements")
def gather_d(g: Emitter, x: Value, dim: Any, index: Value) -> Value:
    return g.node("GatherElements", x, as_ids(g, index), axis=as_int(dim))


@primitive("IndexSelect")
def index_select(g: Emitter, x: Value, axis: Any, index: Value) -> Value:
    return g.node("Gather", x, as_ids(g, index), axis=as_int(axis))


@primitive("GatherNd", "gather_nd", "GatherNdExt")
def gather_nd(g: Emitter, x: Value, indices: Value) -> Value:
    return g.node("GatherND", x, g.cast(indices, DType.INT64))


@primitive("Index", "InnerIndex")
def index(g: Emitter, x: Value, indices: Any) -> Value:
    """Lower x[i, j, ...], with a tensor for each of the first axes."""
    index_tensors = indices if isinstance(indices, tuple) else (indices,)
    if len(index_tensors) == 1:
        if index_tensors[0].dtype is DType.BOOL:
            return _select_true(g, x, index_tensors[0])
        return g.node("Gather", x, as_ids(g, index_tensors[0]), axis=0)
    parts = [g.cast(tensor, DType.INT64) for tensor in index_tensors]
    total = parts[0]
    for part in parts[1:]:
        total = g.node("Add", total, part)
    size = g.shape(total)
    columns = [
        g.unsqueeze(g.node("Expand", part, size, shape=total.shape), (-1,)) for part in parts
    ]
    return g.node("GatherND", x, g.node("Concat", *columns, axis=-1))


@primitive("MaskedSelect")
def masked_select(g: Emitter, x: Value, mask: Value) -> Value:
    """Select the elements where the mask is true, both broadcast; a 1-D tensor of open size."""
    if x.shape != mask.shape:
        ones = g.node("Expand", g.constant(True), g.shape(x), shape=x.shape)
        mask = g.node("And", mask, ones)
        x = g.node("Expand", x, g.shape(mask))
    return g.node("Compress", g.reshape(x, (-1,)), g.reshape(mask, (-1,)), axis=0)


def _select_true(g: Emitter, x: Value, mask: Value) -> Value:
    if mask.rank == 1:
        return g.node("Compress", x, mask, axis=0)
    indices = g.node("NonZero", mask, dtype=DType.INT64)
    return g.node("GatherND", x, g.transpose(indices, [1, 0]))


@primitive("NonZero", "nonzero", "InnerNonZero")
def non_zero(g: Emitter, x: Value) -> Value:
    """Return the coordinates of non-zero elements, a row for each."""
    return g.node("Transpose", g.node("NonZero", x, dtype=DType.INT64), perm=[1, 0])


@primitive("OneHot", "one_hot")
def one_hot(
    g: Emitter, indices: Value, depth: Any, on: Any = 1.0, off: Any = 0.0, axis: Any = -1
) -> Value:
    on_value, off_value = common(g, on, off)
    kind = on_value.dtype
    ids = g.cast(indices, DType.INT64)
    axis = as_int(axis)
    expanded = (
        g.unsqueeze(ids, (axis if axis >= 0 else -1,)) if axis != -1 else g.unsqueeze(ids, (-1,))
    )
    count = g.scalar(depth, DType.INT64)
    steps = g.node("Range", g.constant(0), count, g.constant(1), dtype=DType.INT64)
    rank = g.rank(ids) + 1
    position = axis % rank
    steps = g.reshape(steps, tuple(-1 if dim == position else 1 for dim in range(rank)))
    hit = g.node("Equal", expanded, steps, dtype=DType.BOOL)
    return g.node("Where", hit, g.scalar(on_value, kind), g.scalar(off_value, kind), dtype=kind)


@primitive("OneHotExt")
def one_hot_ext(
    g: Emitter, indices: Value, num_classes: Any, on: Any = 1, off: Any = 0, axis: Any = -1
) -> Value:
    return one_hot(g, indices, num_classes, on, off, axis)


@primitive("SequenceMask")
def sequence_mask(g: Emitter, lengths: Value, maxlen: Any = None) -> Value:
    limit = (
        g.node("ReduceMax", lengths, keepdims=0, shape=()) if maxlen is None
        else g.scalar(maxlen, lengths.dtype)
    )  # fmt: skip
    steps = g.node(
        "Range", g.constant(0, lengths.dtype), limit, g.constant(1, lengths.dtype), like=lengths
    )
    return g.node("Less", steps, g.unsqueeze(lengths, (-1,)), dtype=DType.BOOL)


@primitive("Take")
def take(g: Emitter, x: Value, index: Value) -> Value:
    return g.node("Gather", g.reshape(x, (-1,)), as_ids(g, index), axis=0)
