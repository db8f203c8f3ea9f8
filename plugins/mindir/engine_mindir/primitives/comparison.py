"""Comparison, logic, bits and selection, element by element."""

from __future__ import annotations

from typing import Any

from engine_mindir.emit import Emitter
from engine_mindir.primitives import primitive
from engine_mindir.primitives.arithmetic import binary, extreme_of, floor_div
from engine_mindir.primitives.casts import common
from engine_mindir.primitives.elementwise import is_nan
from engine_mindir.values import DType, Value

for _names in (
    ("Equal", "Equal", "EqScalar", "EqualScalar", "equal", "EqualExt"),
    ("Greater", "Greater", "GreaterScalar", "GtScalar", "greater"),
    ("GreaterOrEqual", "GreaterEqual", "GreaterEqualScalar", "GeScalar", "greater_equal"),
    ("Less", "Less", "LessScalar", "LtScalar", "less"),
    ("LessOrEqual", "LessEqual", "LessEqualScalar", "LeScalar", "less_equal"),
):
    binary(_names[0], *_names[1:], dtype=DType.BOOL)


@primitive("NotEqual", "NeScalar", "NotEqualScalar", "not_equal")
def not_equal(g: Emitter, x: Any, y: Any) -> Value:
    return g.node("Not", g.node("Equal", *common(g, x, y), dtype=DType.BOOL))


@primitive("IsClose")
def is_close(
    g: Emitter, x: Value, y: Value, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Value:
    apart = g.node("Abs", g.node("Sub", x, y))
    allowed = g.node("Add", g.node("Mul", g.node("Abs", y), rtol), atol)
    close = g.node("LessOrEqual", apart, allowed, dtype=DType.BOOL)
    close = g.node("Or", close, g.node("Equal", x, y, dtype=DType.BOOL))
    if equal_nan:
        both = g.node("And", is_nan(g, x), is_nan(g, y))
        close = g.node("Or", close, both)
    return close


def _logic(op_type: str, *names: str) -> None:
    @primitive(*names)
    def lower(g: Emitter, x: Any, y: Any) -> Value:
        return g.node(op_type, g.cast(x, DType.BOOL), g.cast(y, DType.BOOL))


_logic("And", "LogicalAnd", "logical_and")


_logic("Or", "LogicalOr", "logical_or")


_logic("Xor", "LogicalXor", "logical_xor")


@primitive("LogicalNot", "logical_not")
def logical_not(g: Emitter, x: Value) -> Value:
    return g.node("Not", g.cast(x, DType.BOOL))


def _bits(op_type: str, logic: str, *names: str) -> None:
    @primitive(*names)
    def lower(g: Emitter, x: Any, y: Any) -> Value:
        left, right = common(g, x, y)
        return g.node(logic if left.dtype is DType.BOOL else op_type, left, right)


_bits("BitwiseAnd", "And", "BitwiseAnd", "BitwiseAndTensor", "BitwiseAndScalar")


_bits("BitwiseOr", "Or", "BitwiseOr", "BitwiseOrTensor", "BitwiseOrScalar")


_bits("BitwiseXor", "Xor", "BitwiseXor", "BitwiseXorTensor", "BitwiseXorScalar")


@primitive("Invert", "BitwiseNot", "InvertExt")
def invert(g: Emitter, x: Value) -> Value:
    return g.node("Not" if x.dtype is DType.BOOL else "BitwiseNot", x)


@primitive("LeftShift", "BitwiseLeftShift")
def left_shift(g: Emitter, x: Any, y: Any) -> Value:
    return _shifted(g, x, y, "LEFT")


@primitive("RightShift", "BitwiseRightShift")
def right_shift(g: Emitter, x: Any, y: Any) -> Value:
    return _shifted(g, x, y, "RIGHT")


def _shifted(g: Emitter, x: Any, y: Any, direction: str) -> Value:
    left, right = common(g, x, y)
    if str(left.dtype).startswith("u"):
        return g.node("BitShift", left, right, direction=direction)
    power = g.node("Pow", g.constant(2.0, DType.FLOAT64), g.cast(right, DType.FLOAT64))
    right = g.cast(power, left.dtype)
    return g.node("Mul", left, right) if direction == "LEFT" else floor_div(g, left, right)


@primitive("Select", "Where", "select", "where", "SelectExt", "SelectV2")
def select(g: Emitter, condition: Value, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    return g.node("Where", g.cast(condition, DType.BOOL), left, right, like=left)


@primitive("MaskedFill", "masked_fill", "MaskedFillScalar")
def masked_fill(g: Emitter, x: Value, mask: Value, value: Any) -> Value:
    return g.node("Where", mask, g.scalar(value, x.dtype), x, like=x)


@primitive("ClampScalar", "ClampTensor", "clamp", "Clamp")
def clamp(g: Emitter, x: Value, min: Any = None, max: Any = None) -> Value:
    if isinstance(min, float) or isinstance(max, float):
        x = common(g, x, min if min is not None else max)[0]
    if min is not None:
        x = extreme_of(g, "Max", x, g.cast(min, x.dtype))
    if max is not None:
        x = extreme_of(g, "Min", x, g.cast(max, x.dtype))
    return x


@primitive("ClipByValue", "clip_by_value")
def clip_by_value(
    g: Emitter, x: Value, clip_value_min: Any = None, clip_value_max: Any = None
) -> Value:
    return clamp(g, x, clip_value_min, clip_value_max)


@primitive("ApproximateEqual")
def approximately(g: Emitter, x: Value, y: Value, *, tolerance: float = 1e-5) -> Value:
    apart = g.node("Abs", g.node("Sub", x, y))
    return g.node("Less", apart, g.constant(tolerance, x.dtype), dtype=DType.BOOL)
