"""Primitives that construct tensors: filled, ranges, grids."""

from __future__ import annotations

from typing import Any

from engine_mindir.emit import Emitter
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_static
from engine_mindir.primitives.casts import result_type, type_of
from engine_mindir.values import DType, Value


@primitive("ZerosLike", "zeros_like", "zeroslike")
def zeros_like(g: Emitter, x: Any) -> Value:
    return _full_like(g, g.constant(x), 0)


@primitive("OnesLike", "ones_like")
def ones_like(g: Emitter, x: Any) -> Value:
    return _full_like(g, g.constant(x), 1)


@primitive("ZerosLikeExt")
def zeros_like_ext(g: Emitter, x: Value, dtype: Any = None) -> Value:
    return full(g, g.shape(x), 0, dtype)


@primitive("OnesLikeExt")
def ones_like_ext(g: Emitter, x: Value, dtype: Any = None) -> Value:
    return full(g, g.shape(x), 1, dtype)


@primitive("FullLike", "FullLikeExt")
def full_like(g: Emitter, x: Value, fill_value: Any, dtype: Any = None) -> Value:
    return full(g, g.shape(x), fill_value, dtype)


def _full_like(g: Emitter, x: Value, value: int) -> Value:
    zero = g.constant(value, x.dtype)
    if x.rank == 0:
        return zero
    return g.node("Expand", zero, g.shape(x), shape=x.shape)


def full(g: Emitter, size: Any, value: Any, dtype: Any) -> Value:
    kind = result_type(g, DType.FLOAT32) if dtype is None else type_of(g, dtype)
    fill = g.scalar(value, kind)
    size = as_static(size)
    return fill if size == () else g.node("Expand", fill, g.ints(size))


@primitive("Fill", "fill", "DynamicFill")
def fill(g: Emitter, dtype: Any, shape: Any, value: Any) -> Value:
    return full(g, shape, value, dtype)


@primitive("FillV2", "FillScalar", "FillTensor", "Full")
def fill_v2(g: Emitter, shape: Any, value: Any, dtype: Any = None) -> Value:
    return full(g, shape, value, dtype)


@primitive("Zeros")
def zeros(g: Emitter, size: Any, dtype: Any = None) -> Value:
    return full(g, size, 0, dtype)


@primitive("Ones")
def ones(g: Emitter, size: Any, dtype: Any = None) -> Value:
    return full(g, size, 1, dtype)


@primitive("NewZeros")
def new_zeros(g: Emitter, x: Value, size: Any, dtype: Any = None) -> Value:
    return full(g, size, 0, dtype)


@primitive("NewOnes")
def new_ones(g: Emitter, x: Value, size: Any, dtype: Any = None) -> Value:
    return full(g, size, 1, dtype)


@primitive("NewFull")
def new_full(g: Emitter, x: Value, size: Any, value: Any, dtype: Any = None) -> Value:
    kind = x.dtype if dtype is None else type_of(g, dtype)
    return g.node("Expand", g.scalar(value, kind), g.ints(as_static(size)))


@primitive("Eye", "eye")
def eye(g: Emitter, n: Any, m: Any, dtype: Any = None) -> Value:
    kind = type_of(g, dtype)
    plain = g.node("Expand", g.constant(0.0), g.ints((n, m)))
    return g.cast(g.node("EyeLike", plain), kind)


@primitive("Range", "range", "Arange", "arange", "RangeV2")
def range_(g: Emitter, start: Any, limit: Any, delta: Any = 1, *rest: Any) -> Value:
    kind = result_type(g, DType.INT64)
    work = (
        kind
        if kind in (DType.INT32, DType.INT64, DType.FLOAT32, DType.FLOAT64, DType.INT16)
        else DType.FLOAT32
    )
    parts = [g.scalar(bound, work) for bound in (start, limit, delta)]
    return g.cast(g.node("Range", *parts), kind)


@primitive("Meshgrid", "meshgrid")
def meshgrid(g: Emitter, items: tuple[Any, ...], indexing: Any = "xy") -> tuple[Value, ...]:
    """Broadcast each vector over the grid of all; indexing 1 is "xy": first two axes swapped."""
    swapped = indexing in (1, "xy") and len(items) > 1
    order = [1, 0, *range(2, len(items))] if swapped else list(range(len(items)))
    sizes: list[Any] = [g.dim(items[index], 0) for index in order]
    result = []
    for index, vector in enumerate(items):
        position = order.index(index)
        shaped = g.reshape(
            vector, tuple(-1 if axis == position else 1 for axis in range(len(items)))
        )
        result.append(g.node("Expand", shaped, g.ints(tuple(sizes))))
    return tuple(result)
