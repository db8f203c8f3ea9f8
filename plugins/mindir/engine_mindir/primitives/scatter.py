"""Scatter primitives: updates of a tensor by index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_int, as_static
from engine_mindir.primitives.indexing import as_ids
from engine_mindir.values import FLOATS, DType, Value

REDUCTIONS = (
    ("none", "Update"), ("add", "Add"), ("sub", "Sub"), ("mul", "Mul"), ("max", "Max"),
    ("min", "Min"), ("div", "Div"),
)  # fmt: skip
"""Ways to combine updates with what is there, each with the end of its primitives' names."""
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


def register_scatter(reduction: str, name: str, *, writes: bool = False) -> None:
    """Register a primitive that updates elements of a tensor, by coordinates."""

    @primitive(name, writes=writes)
    def lower(g: Emitter, x: Value, indices: Value, updates: Value) -> Value:
        return scatter_into(g, x, g.cast(indices, DType.INT64), updates, reduction)


for _how, _suffix in REDUCTIONS:
    register_scatter(_how, f"TensorScatter{_suffix}")


@primitive("TensorScatterElements")
def tensor_scatter_elements(
    g: Emitter, x: Value, indices: Value, updates: Value, axis: Any = 0, reduction: Any = 0
) -> Value:
    mode = {0: "none", 1: "add", "none": "none", "add": "add"}.get(reduction)
    if mode is None:
        raise Unsupported(f"the scatter reduction {reduction!r}")
    return scatter_into(g, x, as_ids(g, indices), updates, mode, as_int(axis))


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
    wide = g.node("Expand", g.reshape(as_ids(g, ids), tuple(shape)), g.ints(tuple(dims)))
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
        "Expand", g.reshape(as_ids(g, index), tuple(shape)), g.shape(source), shape=source.shape
    )
    return scatter_into(g, x, wide, source, "add", axis)


def _segments(reduction: str, neutral: Callable[[DType], Any], *names: str) -> None:
    """Register a reduction by segments. neutral: of a segment that nothing belongs to."""

    @primitive(*names)
    def lower(g: Emitter, x: Value, segment_ids: Value, num_segments: Any) -> Value:
        rest = g.dims(x)[g.rank(segment_ids) :]
        start = g.constant(neutral(x.dtype), x.dtype)
        empty = g.node("Expand", start, g.ints((num_segments, *rest)))
        ids = g.unsqueeze(g.cast(segment_ids, DType.INT64), (-1,))
        return scatter_into(g, empty, ids, x, reduction)


def _limits(dtype: DType) -> Any:
    return (np.finfo if dtype in FLOATS else np.iinfo)(dtype.numpy)


_segments("add", lambda _: 0, "UnsortedSegmentSum")
_segments("mul", lambda _: 1, "UnsortedSegmentProd")
_segments("max", lambda dtype: _limits(dtype).min, "UnsortedSegmentMax")
_segments("min", lambda dtype: _limits(dtype).max, "UnsortedSegmentMin")


@primitive("KVCacheScatterUpdate", writes=True)
def kv_cache_scatter_update(
    g: Emitter, x: Value, indices: Value, updates: Value, axis: Any, reduce: Any = "none"
) -> Value:
    """Write each batch's updates at its position along the axis; x [batch, heads, length, size]."""
    axis = as_int(axis) % g.rank(x)
    dims = g.dims(updates)
    starts = g.reshape(as_ids(g, indices), (-1, *[1] * (len(dims) - 1)))
    steps = g.node(
        "Range", g.constant(0), g.scalar(dims[axis], DType.INT64), g.constant(1), dtype=DType.INT64
    )
    steps = g.reshape(steps, tuple(-1 if dim == axis else 1 for dim in range(len(dims))))
    wide = g.node("Expand", g.node("Add", starts, steps), g.ints(dims), shape=updates.shape)
    return g.node("ScatterElements", x, wide, updates, axis=axis, shape=x.shape)
