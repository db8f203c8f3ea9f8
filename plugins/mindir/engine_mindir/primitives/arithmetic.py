"""Arithmetic of two or more tensors, element by element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine_mindir.emit import Emitter
from engine_mindir.primitives import primitive
from engine_mindir.primitives.casts import common, result_type, via_int32
from engine_mindir.primitives.elementwise import is_nan, trunc
from engine_mindir.values import FLOATS, DType, Value


def binary(op_type: str, *names: str, **attributes: Any) -> None:
    """Register a primitive of two operands that is one ONNX operator."""

    @primitive(*names)
    def lower(g: Emitter, x: Any, y: Any) -> Value:
        left, right = common(g, x, y)
        return g.node(op_type, left, right, **attributes)


_names: tuple[str, ...]


for _names in (
    ("Mul", "Mul", "Muls", "mul"),
    ("Pow", "Pow", "PowTensorScalar", "PowScalarTensor", "pow"),
    ("Add", "TensorAdd", "Adds", "tensor_add"),
    ("Sub", "Sub", "sub", "Subs"),
):
    binary(_names[0], *_names[1:])


@primitive("Add", "add")
def add(g: Emitter, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    if left.dtype is DType.BOOL:
        return g.node("Or", left, right)
    return g.node("Add", left, right)


@primitive("AddExt", "add_ext", "AddScalar")
def add_ext(g: Emitter, x: Any, y: Any, alpha: Any = 1) -> Value:
    if alpha != 1:
        y = g.node("Mul", *common(g, y, alpha))
    return add(g, x, y)


@primitive("SubExt", "sub_ext", "SubScalar")
def sub_ext(g: Emitter, x: Any, y: Any, alpha: Any = 1) -> Value:
    if alpha != 1:
        y = g.node("Mul", *common(g, y, alpha))
    return g.node("Sub", *common(g, x, y))


@primitive("Maximum", "maximum")
def maximum(g: Emitter, x: Any, y: Any) -> Value:
    return extreme_of(g, "Max", x, y)


@primitive("Minimum", "minimum")
def minimum(g: Emitter, x: Any, y: Any) -> Value:
    return extreme_of(g, "Min", x, y)


def extreme_of(g: Emitter, op_type: str, x: Any, y: Any) -> Value:
    """Emit Max or Min, also for the types that ONNX has it not for."""
    left, right = common(g, x, y)
    if left.dtype is DType.BOOL:
        return g.node("Or" if op_type == "Max" else "And", left, right)
    return via_int32(g, op_type, left, right)


@primitive("Div", "RealDiv", "Divs", "DivTensorScalar", "real_div", "div", "RealDivs")
def divide(g: Emitter, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    dtype = result_type(g, left.dtype if left.dtype in FLOATS else DType.FLOAT32)
    if left.dtype not in FLOATS and dtype in FLOATS:
        left, right = g.cast(left, dtype), g.cast(right, dtype)
    return g.node("Div", left, right)


@primitive("DivMod", "DivMods")
def div_mod(g: Emitter, x: Any, y: Any, rounding_mode: Any = None) -> Value:
    if rounding_mode in (None, 0, ""):
        return divide(g, x, y)
    return floor_div(g, x, y) if rounding_mode in (2, "floor") else truncate_div(g, x, y)


@primitive("DivNoNan", "divNoNan")
def div_no_nan(g: Emitter, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    zero = g.node("Equal", right, g.constant(0, right.dtype), dtype=DType.BOOL)
    safe = g.node("Where", zero, g.constant(1, right.dtype), right, dtype=right.dtype)
    return g.node("Where", zero, g.constant(0, left.dtype), g.node("Div", left, safe), like=left)


@primitive("FloorDiv", "FloorDivs", "FloorDivScalar", "floor_div", "FloorDivTensorScalar")
def floor_div(g: Emitter, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    if left.dtype in FLOATS:
        return g.node("Floor", g.node("Div", left, right))
    if left.dtype is DType.BOOL:
        return g.cast(
            floor_div(g, g.cast(left, DType.INT32), g.cast(right, DType.INT32)), DType.BOOL
        )
    if str(left.dtype).startswith("u"):
        return g.node("Div", left, right)
    quotient = g.node("Div", left, right)  # towards zero
    rest = g.node("Sub", left, g.node("Mul", quotient, right))
    zero = g.constant(0, left.dtype)
    open_ = g.node("Not", g.node("Equal", rest, zero, dtype=DType.BOOL))
    signs = g.node(
        "Xor",
        g.node("Less", rest, zero, dtype=DType.BOOL),
        g.node("Less", right, zero, dtype=DType.BOOL),
    )
    lower = g.cast(g.node("And", open_, signs), left.dtype)
    return g.node("Sub", quotient, lower)


@primitive("TruncateDiv")
def truncate_div(g: Emitter, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    quotient = g.node("Div", left, right)
    return trunc(g, quotient) if left.dtype in FLOATS else quotient


@primitive(
    "FloorMod", "RemainderTensorScalar", "RemainderScalarTensor", "RemainderTensorTensor",
    "Remainder", "FloorModScalar", "floor_mod",
)  # fmt: skip
def floor_mod(g: Emitter, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    if left.dtype not in FLOATS:
        return g.node("Mod", left, right)
    rest = g.node("Mod", left, right, fmod=1)
    # fmod has the dividend's sign; this the divisor's.
    zero = g.constant(0, left.dtype)
    differs = g.node("Less", g.node("Mul", rest, right), zero, dtype=DType.BOOL)
    return g.node("Where", differs, g.node("Add", rest, right), rest, like=rest)


@primitive("Mod", "TruncateMod", "FmodTensor", "FmodScalar", "Fmod")
def truncate_mod(g: Emitter, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    return g.node("Mod", left, right, fmod=1)


@primitive("Xdivy")
def xdivy(g: Emitter, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    return _or_zero(g, left, g.node("Div", left, right))


@primitive("Xlogy", "XlogyTensor", "XLogYScalarOther", "XLogYScalarSelf")
def xlogy(g: Emitter, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    return _or_zero(g, left, g.node("Mul", left, g.node("Log", right)))


def _or_zero(g: Emitter, x: Value, result: Value) -> Value:
    """Return a result, and 0 where x is 0."""
    zero = g.constant(0, x.dtype)
    return g.node("Where", g.node("Equal", x, zero, dtype=DType.BOOL), zero, result, like=x)


@primitive("Hypot")
def hypot(g: Emitter, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    return g.node("Sqrt", g.node("Add", g.node("Mul", left, left), g.node("Mul", right, right)))


@primitive("SquaredDifference", "squared_difference")
def squared_difference(g: Emitter, x: Any, y: Any) -> Value:
    apart = g.node("Sub", *common(g, x, y))
    return g.node("Mul", apart, apart)


@primitive("Atan2", "Atan2Ext")
def atan2(g: Emitter, x: Any, y: Any) -> Value:
    """Return the angle of (y, x) with its quadrant; ONNX has no such operator before version 26."""
    up, right = common(g, x, y)
    zero = g.constant(0, up.dtype)
    pi = g.constant(math.pi, up.dtype)
    flat = g.node("Equal", right, zero, dtype=DType.BOOL)
    safe = g.node("Where", flat, g.constant(1, up.dtype), right, like=right)
    angle = g.node("Atan", g.node("Div", up, safe))
    down = g.node("Less", up, zero, dtype=DType.BOOL)
    turned = g.node("Where", down, g.node("Sub", angle, pi), g.node("Add", angle, pi), like=up)
    left = g.node("Less", right, zero, dtype=DType.BOOL)
    angle = g.node("Where", left, turned, angle, like=up)
    vertical = g.node("Mul", g.node("Sign", up), math.pi / 2)
    return g.node("Where", flat, vertical, angle, like=up)


@primitive("Addcmul", "AddcmulExt")
def addcmul(g: Emitter, x: Any, x1: Any, x2: Any, value: Any = 1.0) -> Value:
    x, x1, x2, value = common(g, x, x1, x2, value)
    return g.node("Add", x, g.node("Mul", g.node("Mul", x1, x2), value))


@primitive("Addcdiv", "AddcdivExt")
def addcdiv(g: Emitter, x: Any, x1: Any, x2: Any, value: Any = 1.0) -> Value:
    x, x1, x2, value = common(g, x, x1, x2, value)
    return g.node("Add", x, g.node("Mul", g.node("Div", x1, x2), value))


@primitive("Lerp", "LerpScalar")
def lerp(g: Emitter, x: Any, end: Any, weight: Any) -> Value:
    x, end, weight = common(g, x, end, weight)
    return g.node("Add", x, g.node("Mul", weight, g.node("Sub", end, x)))


@primitive("AddN", "AccumulateNV2", "addn")
def add_n(g: Emitter, *items: Any) -> Value:
    flat = items[0] if len(items) == 1 and isinstance(items[0], tuple) else items
    tensors = common(g, *flat)
    if tensors[0].dtype in FLOATS:
        return g.node("Sum", *tensors)
    total = tensors[0]
    for tensor in tensors[1:]:
        total = g.node("Add", total, tensor)
    return total


@primitive("LinSpace", "LinSpaceExt", "linspace")
def lin_space(g: Emitter, start: Any, stop: Any, num: Any, dtype: Any = None) -> Value:
    kind = result_type(g, DType.FLOAT32)
    start, stop = g.scalar(start, kind), g.scalar(stop, kind)
    count = g.scalar(num, DType.INT64)
    steps = g.node("Range", g.constant(0), count, g.constant(1), dtype=DType.INT64)
    last = g.node("Max", g.node("Sub", count, 1), 1)
    step = g.node("Div", g.node("Sub", stop, start), g.cast(last, kind))
    return g.node("Add", start, g.node("Mul", g.cast(steps, kind), step))


@primitive("Cdist")
def cdist(g: Emitter, x: Value, y: Value, p: float = 2.0) -> Value:
    """Return distances of each row of one to each row of the other."""
    from engine_mindir.primitives.reductions import norm

    apart = g.node("Sub", g.unsqueeze(x, (-2,)), g.unsqueeze(y, (-3,)))
    return norm(g, apart, float(p), (-1,), False)


@primitive("Cross")
def cross(g: Emitter, x: Value, other: Value, dim: int = -65530) -> Value:
    rank = g.rank(x)
    if dim == -65530:
        dim = next((axis for axis, size in enumerate(x.shape or ()) if size == 3), rank - 1)

    def turned(value: Value, order: tuple[int, ...]) -> Value:
        return g.node("Gather", value, g.constant(np.array(order)), axis=dim % rank)

    first = g.node("Mul", turned(x, (1, 2, 0)), turned(other, (2, 0, 1)))
    second = g.node("Mul", turned(x, (2, 0, 1)), turned(other, (1, 2, 0)))
    return g.node("Sub", first, second)


@primitive("Fmax")
def fmax(g: Emitter, x: Any, y: Any) -> Value:
    """Return the greater operand, ignoring NaN: the other one where one is NaN."""
    return _numbers(g, "Max", x, y)


@primitive("Fmin")
def fmin(g: Emitter, x: Any, y: Any) -> Value:
    return _numbers(g, "Min", x, y)


def _numbers(g: Emitter, op_type: str, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    if left.dtype not in FLOATS:
        return extreme_of(g, op_type, left, right)
    both = extreme_of(g, op_type, left, right)
    both = g.node("Where", is_nan(g, right), left, both, like=left)
    return g.node("Where", is_nan(g, left), right, both, like=left)


@primitive("LogAddExp")
def log_add_exp(g: Emitter, x: Value, y: Value) -> Value:
    """Lower log(exp(x) + exp(y)) without overflow."""
    left, right = common(g, x, y)
    distance = g.node("Abs", g.node("Sub", left, right))
    return g.node("Add", g.node("Max", left, right), g.node("Softplus", g.node("Neg", distance)))


@primitive("LogAddExp2")
def log_add_exp2(g: Emitter, x: Value, y: Value) -> Value:
    scaled = (g.node("Mul", operand, math.log(2)) for operand in common(g, x, y))
    return g.node("Div", log_add_exp(g, *scaled), math.log(2))
