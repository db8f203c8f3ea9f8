"""Sums, means, extremes and norms along axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine_mindir.emit import Emitter, lowest
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_int, as_static, axes_of
from engine_mindir.primitives.casts import result_type, type_of, via_int32
from engine_mindir.values import FLOATS, Abstract, DType, Value


def reduce(
    g: Emitter, op_type: str, x: Value, axis: Any, keep_dims: Any, skip: Any = False
) -> Value:
    """Reduce over axes; () and None mean all of them, or none where `skip` is set."""
    axis = as_static(axis)
    if axis is None or axis == ():
        if axis == () and skip:
            return g.node("Identity", x)
        return via_int32(g, op_type, x, keepdims=int(bool(keep_dims)))
    if isinstance(axis, int):
        axis = (axis,)
    if x.rank == 0:
        return g.node("Identity", x)
    if x.dtype not in FLOATS and x.dtype in (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16):
        wide = g.cast(x, DType.INT32)
        return g.cast(g.node(op_type, wide, g.ints(axis), keepdims=int(bool(keep_dims))), x.dtype)
    return g.node(op_type, x, g.ints(axis), keepdims=int(bool(keep_dims)))


def _plain(op_type: str, *names: str) -> None:
    @primitive(*names)
    def lower(
        g: Emitter, x: Value, axis: Any = (), keep_dims: Any = False, skip_mode: Any = False
    ) -> Value:
        return reduce(g, op_type, x, axis, keep_dims, skip_mode)


_plain("ReduceSum", "ReduceSum", "reduce_sum")
_plain("ReduceMax", "ReduceMax", "reduce_max")
_plain("ReduceMin", "ReduceMin", "reduce_min")
_plain("ReduceProd", "ReduceProd", "reduce_prod")


@primitive("ReduceMean", "reduce_mean")
def mean(g: Emitter, x: Value, axis: Any = (), keep_dims: Any = False) -> Value:
    if isinstance(g.result, Abstract) and g.result.dtype is not x.dtype:
        x = g.cast(x, g.result.dtype)
    return reduce(g, "ReduceMean", x, axis, keep_dims)


@primitive("ReduceSumSquare")
def sum_square(g: Emitter, x: Value, axis: Any = (), keep_dims: Any = False) -> Value:
    return reduce(g, "ReduceSumSquare", x, axis, keep_dims)


def _typed(op_type: str, *names: str) -> None:
    """Register the newer form of a reduction, which takes the dtype to compute in."""

    @primitive(*names)
    def lower(
        g: Emitter, x: Value, axis: Any = None, keep_dims: Any = False, dtype: Any = None
    ) -> Value:
        kind = result_type(g, x.dtype) if dtype is None else type_of(g, dtype)
        return reduce(g, op_type, g.cast(x, kind), axis, keep_dims)


_typed("ReduceSum", "SumExt", "sum")
_typed("ReduceMean", "MeanExt", "mean")
_typed("ReduceProd", "ProdExt", "prod")


def _logical(op_type: str, *names: str) -> None:
    @primitive(*names)
    def lower(g: Emitter, x: Value, axis: Any = (), keep_dims: Any = False) -> Value:
        flags = g.cast(g.cast(x, DType.BOOL), DType.INT32)
        return g.cast(reduce(g, op_type, flags, axis, keep_dims), DType.BOOL)


_logical("ReduceMin", "ReduceAll", "All")
_logical("ReduceMax", "ReduceAny", "Any", "AnyExt")


@primitive("Max")
def whole_max(g: Emitter, x: Value) -> Value:
    return reduce(g, "ReduceMax", x, None, False)


@primitive("Min")
def whole_min(g: Emitter, x: Value) -> Value:
    return reduce(g, "ReduceMin", x, None, False)


@primitive("LogSumExp")
def log_sum_exp(g: Emitter, x: Value, axis: Any = (), keep_dims: Any = False) -> Value:
    return reduce(g, "ReduceLogSumExp", x, axis, keep_dims)


def _variance(
    g: Emitter, x: Value, axis: Any, correction: Any, keep_dims: Any
) -> tuple[Value, Value]:
    """Return variance and mean. correction: subtracted from the count (Bessel's correction)."""
    axis = as_static(axis)
    axes = tuple(range(g.rank(x))) if axis is None or axis == () else axes_of(axis)
    centre = g.node("ReduceMean", x, g.ints(axes), keepdims=1)
    apart = g.node("Sub", x, centre)
    squares = g.node(
        "ReduceSum", g.node("Mul", apart, apart), g.ints(axes), keepdims=int(bool(keep_dims))
    )
    count: Any = 1
    for dim in axes:
        size = g.dim(x, dim)
        if isinstance(size, int) and isinstance(count, int):
            count *= size
        else:
            count = g.node("Mul", g.scalar(count, DType.INT64), g.scalar(size, DType.INT64))
    if isinstance(count, int):
        # Division by zero gives NaN, as there.
        variance = g.node("Div", squares, float(count - as_int(correction)))
    else:
        denominator = g.node("Sub", count, as_int(correction))
        variance = g.node("Div", squares, g.cast(denominator, x.dtype))
    kept = centre if keep_dims else g.squeeze(centre, axes)
    return variance, kept


@primitive("ReduceStd")
def std(
    g: Emitter, x: Value, axis: Any = (), unbiased: Any = True, keep_dims: Any = False
) -> tuple[Value, Value]:
    variance, centre = _variance(g, x, axis, int(bool(unbiased)), keep_dims)
    return g.node("Sqrt", variance), centre


@primitive("Std")
def std_ext(
    g: Emitter, x: Value, axis: Any = None, correction: Any = 1, keep_dims: Any = False
) -> Value:
    return g.node("Sqrt", _variance(g, x, axis, correction, keep_dims)[0])


@primitive("Var")
def var_ext(
    g: Emitter, x: Value, axis: Any = None, correction: Any = 1, keep_dims: Any = False
) -> Value:
    return _variance(g, x, axis, correction, keep_dims)[0]


@primitive("VarMean")
def var_mean(
    g: Emitter, x: Value, axis: Any = None, correction: Any = 1, keep_dims: Any = False
) -> tuple[Value, Value]:
    return _variance(g, x, axis, correction, keep_dims)


@primitive("StdMean")
def std_mean(
    g: Emitter, x: Value, axis: Any = None, correction: Any = 1, keep_dims: Any = False
) -> tuple[Value, Value]:
    variance, centre = _variance(g, x, axis, correction, keep_dims)
    return g.node("Sqrt", variance), centre


@primitive("LpNorm")
def lp_norm(
    g: Emitter, x: Value, axis: Any = (), p: Any = 2, keep_dims: Any = False, epsilon: float = 1e-12
) -> Value:
    return norm(g, x, float(p), axis, keep_dims)


@primitive("Norm", "LinalgVectorNorm")
def norm(
    g: Emitter, x: Value, p: Any = 2.0, axis: Any = None, keep_dims: Any = False, dtype: Any = None
) -> Value:
    if p == 2:
        return reduce(g, "ReduceL2", x, axis, keep_dims)
    if p == 1:
        return reduce(g, "ReduceL1", x, axis, keep_dims)
    size = g.node("Abs", x)
    if p in (float("inf"), float("-inf")):
        return reduce(g, "ReduceMax" if p > 0 else "ReduceMin", size, axis, keep_dims)
    if p == 0:
        some = g.node("Not", g.node("Equal", x, g.constant(0, x.dtype), dtype=DType.BOOL))
        return reduce(g, "ReduceSum", g.cast(some, x.dtype), axis, keep_dims)
    total = reduce(g, "ReduceSum", g.node("Pow", size, float(p)), axis, keep_dims)
    return g.node("Pow", total, 1.0 / float(p))


@primitive("L2Normalize", "L2Normalise")
def l2_normalize(g: Emitter, x: Value, axis: Any = 0, epsilon: float = 1e-4) -> Value:
    squares = g.node("ReduceSum", g.node("Mul", x, x), g.ints(axes_of(axis)), keepdims=1)
    return g.node("Div", x, g.node("Sqrt", g.node("Max", squares, g.constant(epsilon, x.dtype))))


@primitive("CumSum", "cumsum")
def cum_sum(g: Emitter, x: Value, axis: Any, exclusive: Any = False, reverse: Any = False) -> Value:
    return _cumulated(g, x, axis, exclusive, reverse)


@primitive("CumsumExt")
def cumsum_ext(g: Emitter, x: Value, axis: Any, dtype: Any = None) -> Value:
    return _cumulated(g, g.cast(x, result_type(g, x.dtype)), axis, False, False)


def _cumulated(g: Emitter, x: Value, axis: Any, exclusive: Any, reverse: Any) -> Value:
    supported = (DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64)
    work = (
        x
        if x.dtype in supported
        else g.cast(x, DType.FLOAT32 if x.dtype in FLOATS else DType.INT32)
    )
    axis_tensor = g.scalar(as_int(axis), DType.INT64)
    y = g.node(
        "CumSum", work, axis_tensor, exclusive=int(bool(exclusive)), reverse=int(bool(reverse))
    )
    return g.cast(y, x.dtype)


@primitive("CumProd")
def cum_prod(
    g: Emitter, x: Value, axis: Any, exclusive: Any = False, reverse: Any = False
) -> Value:
    """Lower a cumulative product by a scan: ONNX has none. The axis must have a known size."""
    axis = as_int(axis) % g.rank(x)
    size = x.shape[axis] if x.shape is not None else None
    return _scan(g, x, axis, size, "Mul", 1, bool(exclusive), bool(reverse))


def _scan(
    g: Emitter,
    x: Value,
    axis: int,
    size: int | None,
    op_type: str,
    neutral: Any,
    exclusive: bool,
    reverse: bool,
) -> Value:
    """Scan (cumulative reduction) in log2(size) steps, each with the tensor shifted."""
    from engine_mindir.emit import Unsupported

    if size is None:
        raise Unsupported("a running product or extreme along an axis of unknown size")
    fill = g.constant(neutral, x.dtype)

    def shifted(value: Value, by: int) -> Value:
        starts = [0] * g.rank(x)
        ends = [0] * g.rank(x)
        (ends if reverse else starts)[axis] = by
        (starts if reverse else ends)[axis] = -by
        return g.node("Pad", value, g.ints((*starts, *ends)), fill, mode="constant", shape=x.shape)

    if exclusive:
        x = shifted(x, 1)
    step = 1
    while step < size:
        x = g.node(op_type, x, shifted(x, step), shape=x.shape)
        step *= 2
    return x


@primitive("Cummax")
def cummax(g: Emitter, x: Value, axis: Any = 0) -> tuple[Any, ...]:
    return _running_extreme_with_index(g, x, axis, "Max")


@primitive("Cummin", "CumminExt")
def cummin(g: Emitter, x: Value, axis: Any = 0) -> tuple[Any, ...]:
    return _running_extreme_with_index(g, x, axis, "Min")


def _running_extreme_with_index(
    g: Emitter, x: Value, axis: Any, op_type: str
) -> tuple[Value, Value]:
    """Return the running extreme, and where it was last met."""
    axis = as_int(axis) % g.rank(x)
    size = x.shape[axis] if x.shape is not None else None
    least = lowest(x.dtype)
    neutral = least if op_type == "Max" else np.inf if least == -np.inf else -1 - least
    if str(x.dtype).startswith("u") and op_type == "Min":
        neutral = np.iinfo(str(x.dtype)).max
    y = _scan(g, x, axis, size, op_type, neutral, False, False)
    shape = [1] * g.rank(x)
    shape[axis] = size or 0
    g.bounded(size or 0)
    indices = g.constant(np.arange(size or 0, dtype=np.int32).reshape(shape))
    met = g.node(
        "Where",
        g.node("Equal", x, y, dtype=DType.BOOL),
        indices,
        g.constant(0, DType.INT32),
        dtype=DType.INT32,
        shape=x.shape,
    )
    return y, _scan(g, met, axis, size, "Max", 0, False, False)


@primitive("Nansum")
def nan_sum(
    g: Emitter, x: Value, axis: Any = None, keep_dims: Any = False, dtype: Any = None
) -> Value:
    nothing = g.node("IsNaN", x, dtype=DType.BOOL)
    x = g.node("Where", nothing, g.constant(0, x.dtype), x, like=x, shape=x.shape)
    return reduce(g, "ReduceSum", g.cast(x, result_type(g, x.dtype)), axis, keep_dims)


@primitive("CountNonZero")
def count_non_zero(g: Emitter, x: Value, axis: Any = None, keep_dims: Any = False) -> Value:
    some = g.cast(g.cast(x, DType.BOOL), result_type(g, DType.INT64))
    return reduce(g, "ReduceSum", some, axis, keep_dims)


@primitive("CumulativeLogsumexp")
def cumulative_log_sum_exp(
    g: Emitter, x: Value, axis: Any, *, exclusive: Any = False, reverse: Any = False
) -> Value:
    """Lower by cumulative sums of exp(x - max), which do not overflow."""
    axis = as_int(axis)
    maximum = g.node("ReduceMax", x, g.ints((axis,)), keepdims=1)
    scaled = g.node("Exp", g.node("Sub", x, maximum))
    return g.node("Add", g.node("Log", _cumulated(g, scaled, axis, exclusive, reverse)), maximum)
