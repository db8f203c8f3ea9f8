"""Gather, slice and scatter primitives."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.formats.mindir.emit import Emitter, Unsupported
from engine.formats.mindir.primitives import primitive
from engine.formats.mindir.primitives.arithmetic import common
from engine.formats.mindir.primitives.shapes import as_int, as_static, axes_of
from engine.formats.mindir.values import FLOATS, DType, Value

_FAR = 1 << 62  # a bound beyond any axis: "to the end" of an ONNX Slice


@primitive("Gather", "GatherV2", "SparseGatherV2", "gather")
def gather(g: Emitter, params: Value, indices: Any, axis: Any = 0, batch_dims: Any = 0) -> Value:
    """Return elements along an axis; the first `batch_dims` axes of both go together."""
    ids = _ids(g, indices)
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


def _ids(g: Emitter, indices: Any) -> Value:
    value = g.constant(indices)
    return value if value.dtype in (DType.INT32, DType.INT64) else g.cast(value, DType.INT64)


@primitive("EmbeddingLookup")
def embedding_lookup(g: Emitter, params: Value, indices: Value, offset: Any = 0) -> Value:
    """Gather rows; an index outside of the table gives zeros."""
    ids = _ids(g, indices)
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
    return g.node("Gather", weight, _ids(g, ids), axis=0)


@primitive("GatherD", "GatherDim", "gather_d")
def gather_d(g: Emitter, x: Value, dim: Any, index: Value) -> Value:
    return g.node("GatherElements", x, _ids(g, index), axis=as_int(dim))


@primitive("GatherElements")
def gather_elements(g: Emitter, x: Value, dim: Any, index: Value) -> Value:
    return g.node("GatherElements", x, _ids(g, index), axis=as_int(dim))


@primitive("IndexSelect")
def index_select(g: Emitter, x: Value, axis: Any, index: Value) -> Value:
    return g.node("Gather", x, _ids(g, index), axis=as_int(axis))


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
        return g.node("Gather", x, _ids(g, index_tensors[0]), axis=0)
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


# ------------------------------------------------------------------------------------------ slices


@primitive("Slice", "slice", "SliceFusion")
def slice_(g: Emitter, x: Value, begin: Any, size: Any, *, axes: Any = None) -> Value:
    begin, size = as_static(begin), as_static(size)
    if isinstance(begin, tuple) and isinstance(size, tuple):
        ends = tuple(
            _FAR if type(s) is int and s < 0
            else s + b if isinstance(s, int) and isinstance(b, int)
            else g.node("Add", g.scalar(b, DType.INT64), g.scalar(s, DType.INT64))
            for b, s in zip(begin, size, strict=True)
        )  # fmt: skip
        stop = g.ints(ends)
        count = len(begin)
    else:
        starts, sizes = g.ints(begin), g.ints(size)
        open_ = g.node("Less", sizes, 0, dtype=DType.BOOL)
        stop = g.node("Where", open_, g.constant(_FAR), g.node("Add", starts, sizes), like=starts)
        count = g.rank(x)
    slice_axes = axes_of(axes) if axes is not None else tuple(range(count))
    return g.node("Slice", x, g.ints(begin), stop, g.ints(slice_axes))


@primitive("SliceExt", "SliceExtView")
def slice_ext(g: Emitter, x: Value, dim: Any, start: Any, end: Any, step: Any = 1) -> Value:
    return g.node("Slice", x, *map(g.ints, (start, end, as_int(dim), step)))


def _bit(mask: Any, position: int) -> bool:
    return bool(as_int(mask) >> position & 1)


@primitive("StridedSlice", "strided_slice", "StridedSliceV2")
def strided_slice(
    g: Emitter, x: Value, begin: Any, end: Any, strides: Any = None, begin_mask: Any = 0,
    end_mask: Any = 0, ellipsis_mask: Any = 0, new_axis_mask: Any = 0, shrink_axis_mask: Any = 0,
) -> Value:  # fmt: skip
    """Lower Python's x[a:b:c, ..., None, i]; a bit mask for each kind that is no plain slice."""
    spec = _SliceSpec(
        g, x, as_static(begin), as_static(end), strides, begin_mask, end_mask, ellipsis_mask,
        new_axis_mask, shrink_axis_mask,
    )  # fmt: skip
    y = x
    if spec.axes:
        y = g.node(
            "Slice", x, *map(g.ints, map(tuple, (spec.starts, spec.stops, spec.axes, spec.steps)))
        )
    y = g.squeeze(y, spec.removed)
    y = g.unsqueeze(y, spec.new) if spec.new else y
    return g.node("Identity", y) if y is x else y


class _SliceSpec:
    """Effect of a strided slice on each axis: removed, cut, or new."""

    def __init__(
        self, g: Emitter, x: Value, begin: Any, end: Any, strides: Any, begin_mask: Any,
        end_mask: Any, ellipsis: Any, new_axis: Any, shrink: Any,
    ) -> None:  # fmt: skip
        first, last = _parts(g, begin), _parts(g, end)
        steps = axes_of(as_static(strides)) if strides is not None else (1,) * len(first)
        rank = g.rank(x)
        self.starts: list[Any] = []
        self.stops: list[Any] = []
        self.steps: list[int] = []
        self.axes: list[int] = []
        self.removed: list[int] = []
        self.new: list[int] = []
        axis = out = 0
        sliced = sum(
            not _bit(new_axis, position) and not _bit(ellipsis, position)
            for position in range(len(first))
        )
        for position, (start, stop) in enumerate(zip(first, last, strict=True)):
            if _bit(ellipsis, position):
                axis += rank - sliced
                out += rank - sliced
                continue
            if _bit(new_axis, position):
                self.new.append(out)
                out += 1
                continue
            if axis >= rank:
                raise Unsupported("a slice of more axes than the tensor has")
            step = steps[position] if position < len(steps) else 1
            if _bit(shrink, position):
                size = x.shape[axis] if x.shape is not None else None
                if isinstance(start, int) and start < 0 and size is not None:
                    start += size
                self.add(axis, start, _after(g, start), 1)
                self.removed.append(axis)
            else:
                low = -_FAR if step < 0 else _FAR
                start = (_FAR if step < 0 else 0) if _bit(begin_mask, position) else start
                stop = low if _bit(end_mask, position) else stop
                if not (start == 0 and stop == _FAR and step == 1):
                    self.add(axis, start, stop, step)
                out += 1
            axis += 1

    def add(self, axis: int, start: Any, stop: Any, step: int) -> None:
        """Slice an axis."""
        self.axes.append(axis)
        self.starts.append(start)
        self.stops.append(stop)
        self.steps.append(step)


def _after(g: Emitter, start: Any) -> Any:
    if isinstance(start, int):
        return start + 1 if start != -1 else _FAR
    # The exclusive stop after -1 is not 0 but the end.
    is_last = g.node("Equal", start, g.constant(-1, start.dtype), dtype=DType.BOOL)
    following = g.node("Add", start, 1)
    return g.node("Where", is_last, g.constant(_FAR, start.dtype), following, like=start)


def _parts(g: Emitter, value: Any) -> list[Any]:
    """Return the elements of a tuple, or of a computed vector."""
    if isinstance(value, tuple):
        return [g.cast(part, DType.INT64) if isinstance(part, Value) else part for part in value]
    if not isinstance(value, Value):
        return [value]
    if value.shape is None or len(value.shape) != 1 or value.shape[0] is None:
        raise Unsupported("a slice by a vector of unknown length")
    vector = g.cast(value, DType.INT64)
    return [
        g.node("Gather", vector, g.constant(position), axis=0, shape=())
        for position in range(value.shape[0])
    ]


# ------------------------------------------------------------------------------------------ scatter


_HALVES = (DType.FLOAT16, DType.BFLOAT16)


def scatter_into(
    g: Emitter, x: Value, indices: Value, updates: Value, reduction: str, axis: int | None = None
) -> Value:
    """Scatter updates into x: along an axis (ScatterElements), or by coordinates (ScatterND)."""
    op_type = "ScatterND" if axis is None else "ScatterElements"
    if reduction == "sub":
        updates, reduction = g.node("Neg", updates), "add"
    if reduction == "div":
        if x.dtype not in FLOATS:
            raise Unsupported("a scatter that divides integers; divide floats and cast")
        ones = g.node("Expand", g.constant(1, x.dtype), g.shape(x), shape=x.shape)
        return g.node("Div", x, scatter_into(g, ones, indices, updates, "mul", axis))
    if reduction == "none" or x.dtype not in _HALVES:
        return g.node(op_type, x, indices, updates, reduction=reduction, axis=axis, shape=x.shape)
    wide = (g.cast(x, DType.FLOAT32), indices, g.cast(updates, DType.FLOAT32))
    y = g.node(op_type, *wide, reduction=reduction, axis=axis, shape=x.shape)
    return g.cast(y, x.dtype)


@primitive("ScatterNd", "scatter_nd")
def scatter_nd(g: Emitter, indices: Value, updates: Value, shape: Any) -> Value:
    zero = g.constant(0, updates.dtype)
    empty = g.node("Expand", zero, g.ints(as_static(shape)))
    return scatter_into(g, empty, g.cast(indices, DType.INT64), updates, "add")


def _scatter(reduction: str, *names: str) -> None:
    @primitive(*names)
    def lower(g: Emitter, x: Value, indices: Value, updates: Value) -> Value:
        return scatter_into(g, x, g.cast(indices, DType.INT64), updates, reduction)


_scatter("none", "TensorScatterUpdate")
_scatter("add", "TensorScatterAdd")
_scatter("sub", "TensorScatterSub")
_scatter("mul", "TensorScatterMul")
_scatter("max", "TensorScatterMax")
_scatter("min", "TensorScatterMin")
_scatter("div", "TensorScatterDiv")


@primitive("TensorScatterElements")
def tensor_scatter_elements(
    g: Emitter, x: Value, indices: Value, updates: Value, axis: Any = 0, reduction: Any = 0
) -> Value:
    mode = {0: "none", 1: "add", "none": "none", "add": "add"}.get(reduction)
    if mode is None:
        raise Unsupported(f"the scatter reduction {reduction!r}")
    return scatter_into(g, x, _ids(g, indices), updates, mode, as_int(axis))


@primitive("Scatter")
def scatter(g: Emitter, x: Value, dim: Any, index: Value, src: Value, reduce: Any = 0) -> Value:
    return tensor_scatter_elements(g, x, index, src, dim, reduce)


@primitive("ScatterAddExt")
def scatter_add_ext(g: Emitter, x: Value, dim: Any, index: Value, src: Value) -> Value:
    return tensor_scatter_elements(g, x, index, src, dim, 1)


@primitive("ScatterValue")
def scatter_value(
    g: Emitter, x: Value, dim: Any, index: Value, value: Any, reduce: Any = 0
) -> Value:
    src = g.node("Expand", g.scalar(value, x.dtype), g.shape(index), shape=index.shape)
    return tensor_scatter_elements(g, x, index, src, dim, reduce)


@primitive("IndexFill", "IndexFillScalar", "IndexFillTensor")
def index_fill(g: Emitter, x: Value, dim: Any, index: Value, value: Any) -> Value:
    axis = as_int(dim) % g.rank(x)
    dims = list(g.dims(x))
    ids = g.reshape(index, (-1,))
    shape = [1] * len(dims)
    shape[axis] = -1
    dims[axis] = g.dim(ids, 0)
    wide = g.node("Expand", g.reshape(_ids(g, ids), tuple(shape)), g.ints(tuple(dims)))
    src = g.node("Expand", g.scalar(value, x.dtype), g.ints(tuple(dims)))
    return g.node("ScatterElements", x, wide, src, axis=axis)


@primitive("IndexAddExt")
def index_add_ext(
    g: Emitter, x: Value, index: Value, source: Value, axis: Any = 0, alpha: Any = 1
) -> Value:
    axis = as_int(axis) % g.rank(x)
    if alpha != 1:
        source = g.node("Mul", source, alpha)
    shape = [1] * g.rank(x)
    shape[axis] = -1
    wide = g.node(
        "Expand", g.reshape(_ids(g, index), tuple(shape)), g.shape(source), shape=source.shape
    )
    return scatter_into(g, x, wide, source, "add", axis)


def _segments(reduction: str, neutral: Any, *names: str) -> None:
    @primitive(*names)
    def lower(g: Emitter, x: Value, segment_ids: Value, num_segments: Any) -> Value:
        lead = g.rank(segment_ids)
        rest = g.dims(x)[lead:]
        empty = g.node("Expand", g.constant(neutral, x.dtype), g.ints((num_segments, *rest)))
        ids = g.unsqueeze(g.cast(segment_ids, DType.INT64), (-1,))
        return scatter_into(g, empty, ids, x, reduction)


_segments("add", 0, "UnsortedSegmentSum")
_segments("mul", 1, "UnsortedSegmentProd")


def _segment_extremes(op: str, *names: str) -> None:
    @primitive(*names)
    def lower(g: Emitter, x: Value, segment_ids: Value, num_segments: Any) -> Value:
        # A segment that nothing belongs to is the type's least or greatest finite number.
        limits = (np.finfo if x.dtype in FLOATS else np.iinfo)(x.dtype.numpy)
        neutral = limits.min if op == "max" else limits.max
        lead = g.rank(segment_ids)
        empty = g.node(
            "Expand", g.constant(neutral, x.dtype), g.ints((num_segments, *g.dims(x)[lead:]))
        )
        ids = g.unsqueeze(g.cast(segment_ids, DType.INT64), (-1,))
        return scatter_into(g, empty, ids, x, op)


_segment_extremes("max", "UnsortedSegmentMax")
_segment_extremes("min", "UnsortedSegmentMin")


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


@primitive("TensorCopySlices")
def copy_slices(
    g: Emitter, x: Value, value: Value, begin: Any, end: Any, strides: Any = None
) -> Value:
    """Assign to x[begin:end:strides], given for the first axes.

    ONNX has no slice assignment: a mask over each axis selects between x and the gathered value.
    """
    starts, stops = _parts(g, as_static(begin)), _parts(g, as_static(end))
    steps = axes_of(as_static(strides)) if strides is not None else (1,) * len(starts)
    dims = g.dims(x)
    value = g.cast(value, x.dtype)
    rank = len(dims)
    mask: Value | None = None
    for axis, (start, stop, step) in enumerate(zip(starts, stops, steps, strict=True)):
        size = dims[axis]
        if step < 1:
            raise Unsupported("an assignment to a slice that runs backwards")
        if (start, step) == (0, 1) and isinstance(size, int) and type(stop) is int and stop >= size:
            continue
        start, stop = (
            bound + size if type(bound) is int and bound < 0 and isinstance(size, int) else bound
            for bound in (start, stop)
        )
        positions = g.node(
            "Range", g.constant(0), g.scalar(size, DType.INT64), g.constant(1), dtype=DType.INT64
        )
        offset = g.node("Sub", positions, start)
        selected = g.node(
            "And",
            g.node("GreaterOrEqual", offset, g.constant(0), dtype=DType.BOOL),
            g.node("Less", positions, g.scalar(stop, DType.INT64), dtype=DType.BOOL),
        )
        if step > 1:
            on_step = g.node("Equal", g.node("Mod", offset, step), g.constant(0), dtype=DType.BOOL)
            selected = g.node("And", selected, on_step)
            offset = g.node("Div", offset, step)
        value_axis = axis - rank + g.rank(value)  # the axis of the value that lies along this one
        if value_axis >= 0 and (value.shape is None or value.shape[value_axis] != 1):
            last = g.node("Sub", g.scalar(g.dim(value, value_axis), DType.INT64), 1)
            source_index = g.node("Clip", offset, g.constant(0), last)
            value = g.node("Gather", value, source_index, axis=value_axis)
        wide = g.reshape(selected, tuple(-1 if dim == axis else 1 for dim in range(rank)))
        mask = wide if mask is None else g.node("And", mask, wide)
    if mask is None:
        return g.node("Expand", value, g.shape(x), shape=x.shape)
    return g.node("Where", mask, value, x, like=x, shape=x.shape)


@primitive("Take")
def take(g: Emitter, x: Value, index: Value) -> Value:
    return g.node("Gather", g.reshape(x, (-1,)), _ids(g, index), axis=0)


@primitive("SelectV2")
def select_v2(g: Emitter, condition: Value, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    return g.node("Where", g.cast(condition, DType.BOOL), left, right, like=left)


@primitive("KVCacheScatterUpdate", writes=True)
def kv_cache_scatter_update(
    g: Emitter, x: Value, indices: Value, updates: Value, axis: Any, reduce: Any = "none"
) -> Value:
    """Write each batch's updates at its position along the axis; x [batch, heads, length, size]."""
    axis = as_int(axis) % g.rank(x)
    dims = g.dims(updates)
    starts = g.reshape(_ids(g, indices), (-1, *[1] * (len(dims) - 1)))
    steps = g.node(
        "Range", g.constant(0), g.scalar(dims[axis], DType.INT64), g.constant(1), dtype=DType.INT64
    )
    steps = g.reshape(steps, tuple(-1 if dim == axis else 1 for dim in range(len(dims))))
    wide = g.node("Expand", g.node("Add", starts, steps), g.ints(dims), shape=updates.shape)
    return g.node("ScatterElements", x, wide, updates, axis=axis, shape=x.shape)
