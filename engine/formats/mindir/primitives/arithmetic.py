"""Arithmetic, comparison and logic, element by element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine.formats.mindir.emit import Emitter, Unsupported
from engine.formats.mindir.primitives import primitive
from engine.formats.mindir.values import FLOATS, Abstract, DType, TypeId, Value

_ORDER = (
    DType.BOOL, DType.UINT8, DType.INT8, DType.INT16, DType.UINT16, DType.INT32, DType.UINT32,
    DType.INT64, DType.UINT64, DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64,
)  # fmt: skip


def common(g: Emitter, *operands: Any) -> list[Value]:
    """Promote operands to tensors of one dtype: numbers take that of the tensors beside them."""
    tensors = [operand for operand in operands if isinstance(operand, Value)]
    types = {operand.dtype for operand in tensors}
    if len(types) > 1:
        # A scalar tensor counts as a number: it does not widen a tensor that has axes.
        wide = {operand.dtype for operand in tensors if operand.rank != 0} or types
        floats = {dtype for dtype in types if dtype in FLOATS}
        if floats and not wide & FLOATS:
            wide = floats
        dtype = max(wide, key=lambda kind: _ORDER.index(kind) if kind in _ORDER else 99)
    elif types:
        (dtype,) = types
        if dtype not in FLOATS and any(isinstance(operand, float) for operand in operands):
            dtype = DType.FLOAT32
    else:
        dtype = DType.FLOAT32 if any(isinstance(i, float) for i in operands) else DType.INT64
    return [g.cast(operand, dtype) for operand in operands]


def result_type(g: Emitter, default: DType) -> DType:
    """Return the element type that the file gives for this node's result."""
    return g.result.dtype if isinstance(g.result, Abstract) else default


def binary(op_type: str, *names: str, **attributes: Any) -> None:
    """Register a primitive of two operands that is one ONNX operator."""

    @primitive(*names)
    def lower(g: Emitter, x: Any, y: Any) -> Value:
        left, right = common(g, x, y)
        return g.node(op_type, left, right, **attributes)


def unary(op_type: str, *names: str, **attributes: Any) -> None:
    """Register a primitive of one operand that is one ONNX operator."""

    @primitive(*names)
    def lower(g: Emitter, x: Any) -> Value:
        value = g.constant(x)
        if op_type in _OF_FLOATS and value.dtype not in FLOATS:
            value = g.cast(value, DType.FLOAT32)
        return g.node(op_type, value, **attributes)


_OF_FLOATS = frozenset(
    {
        "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Erf", "Exp", "Sigmoid",
        "Sin", "Sinh", "Sqrt", "Tan", "Tanh",
    }
)  # fmt: skip


def compare(op_type: str, *names: str) -> None:
    """Register a comparison."""

    @primitive(*names)
    def lower(g: Emitter, x: Any, y: Any) -> Value:
        left, right = common(g, x, y)
        return g.node(op_type, left, right, dtype=DType.BOOL)


_names: tuple[str, ...]
for _names in (
    ("Mul", "Mul", "Muls", "mul"),
    ("Pow", "Pow", "PowTensorScalar", "PowScalarTensor", "pow"),
    ("Add", "TensorAdd", "Adds", "tensor_add"),
    ("Sub", "Sub", "sub", "Subs"),
):
    binary(_names[0], *_names[1:])
for _name in ("Abs", "Ceil", "Cos", "Cosh", "Sin", "Sinh", "Tan", "Tanh"):
    unary(_name, _name)
for _names in (
    ("Acosh", "Acosh", "AcoshExt"), ("Asinh", "Asinh", "AsinhExt"),
    ("Acos", "ACos", "AcosExt"), ("Asin", "Asin", "AsinExt"), ("Atan", "Atan", "AtanExt"),
    ("Atanh", "Atanh"), ("Floor", "Floor"),
    ("Exp", "Exp", "exp"), ("Sqrt", "Sqrt", "sqrt"), ("Neg", "Neg", "neg"), ("Sign", "Sign"),
    ("Erf", "Erf"), ("Identity", "Identity", "TensorMove", "StopGradient", "stop_gradient",
     "Copy", "Contiguous", "Clone", "identity", "BpropCut", "Morph", "Detach", "Conj", "Real",
     "CopyToDevice", "CopyToHost", "ToDevice", "FormatCast"),
):  # fmt: skip
    unary(_names[0], *_names[1:])
for _names in (
    ("Equal", "Equal", "EqScalar", "EqualScalar", "equal", "EqualExt"),
    ("Greater", "Greater", "GreaterScalar", "GtScalar", "greater"),
    ("GreaterOrEqual", "GreaterEqual", "GreaterEqualScalar", "GeScalar", "greater_equal"),
    ("Less", "Less", "LessScalar", "LtScalar", "less"),
    ("LessOrEqual", "LessEqual", "LessEqualScalar", "LeScalar", "less_equal"),
):
    compare(_names[0], *_names[1:])


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


@primitive("Maximum", "maximum")
def maximum(g: Emitter, x: Any, y: Any) -> Value:
    return _extreme(g, "Max", x, y)


@primitive("Minimum", "minimum")
def minimum(g: Emitter, x: Any, y: Any) -> Value:
    return _extreme(g, "Min", x, y)


def _extreme(g: Emitter, op_type: str, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    if left.dtype is DType.BOOL:
        return g.node("Or" if op_type == "Max" else "And", left, right)
    return via_int32(g, op_type, left, right)


_SMALL = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16})


def via_int32(g: Emitter, op_type: str, *inputs: Value, **attributes: Any) -> Value:
    """Emit an operator, in int32 for small integers: runtimes lack kernels for those."""
    dtype = inputs[0].dtype
    if dtype not in _SMALL:
        return g.node(op_type, *inputs, **attributes)
    wide = g.node(op_type, *(g.cast(value, DType.INT32) for value in inputs), **attributes)
    return g.cast(wide, dtype)


def _true_divide(g: Emitter, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    dtype = result_type(g, left.dtype if left.dtype in FLOATS else DType.FLOAT32)
    if left.dtype not in FLOATS and dtype in FLOATS:
        left, right = g.cast(left, dtype), g.cast(right, dtype)
    return g.node("Div", left, right)


@primitive("Div", "RealDiv", "Divs", "DivTensorScalar", "real_div", "div", "RealDivs")
def divide(g: Emitter, x: Any, y: Any) -> Value:
    return _true_divide(g, x, y)


@primitive("DivMod", "DivMods")
def div_mod(g: Emitter, x: Any, y: Any, rounding_mode: Any = None) -> Value:
    if rounding_mode in (None, 0, ""):
        return _true_divide(g, x, y)
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
    zero = g.constant(0, left.dtype)
    is_zero = g.node("Equal", left, zero, dtype=DType.BOOL)
    return g.node("Where", is_zero, zero, g.node("Div", left, right), like=left)


@primitive("Xlogy", "XlogyTensor", "XLogYScalarOther", "XLogYScalarSelf")
def xlogy(g: Emitter, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    zero = g.constant(0, left.dtype)
    is_zero = g.node("Equal", left, zero, dtype=DType.BOOL)
    return g.node("Where", is_zero, zero, g.node("Mul", left, g.node("Log", right)), like=left)


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


@primitive("Addcmul")
def addcmul(g: Emitter, x: Any, x1: Any, x2: Any, value: Any = 1.0) -> Value:
    x, x1, x2, value = common(g, x, x1, x2, value)
    return g.node("Add", x, g.node("Mul", g.node("Mul", x1, x2), value))


@primitive("Addcdiv", "AddcdivExt")
def addcdiv(g: Emitter, x: Any, x1: Any, x2: Any, value: Any = 1.0) -> Value:
    x, x1, x2, value = common(g, x, x1, x2, value)
    return g.node("Add", x, g.node("Mul", g.node("Div", x1, x2), value))


@primitive("AddcmulExt")
def addcmul_ext(g: Emitter, x: Any, x1: Any, x2: Any, value: Any = 1.0) -> Value:
    return addcmul(g, x, x1, x2, value)


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


@primitive("Square", "square")
def square(g: Emitter, x: Value) -> Value:
    return g.node("Mul", x, x)


@primitive("Rsqrt", "rsqrt")
def rsqrt(g: Emitter, x: Value) -> Value:
    return g.node("Reciprocal", g.node("Sqrt", x))


@primitive("Reciprocal", "Inv", "reciprocal")
def reciprocal(g: Emitter, x: Value) -> Value:
    if x.dtype not in FLOATS:
        x = g.cast(x, result_type(g, DType.FLOAT32))
    return g.node("Reciprocal", x) if x.dtype in FLOATS else g.node("Div", 1, x, like=x)


@primitive("Log", "log")
def log(
    g: Emitter, x: Value, *, base: float = -1.0, scale: float = 1.0, shift: float = 0.0
) -> Value:
    if scale != 1.0:
        x = g.node("Mul", x, scale)
    if shift != 0.0:
        x = g.node("Add", x, shift)
    y = g.node("Log", x)
    return y if base <= 0 else g.node("Div", y, math.log(base))


@primitive("Log1p")
def log1p(g: Emitter, x: Value) -> Value:
    """Lower log(1 + x), exact for small x: log(u) x / (u - 1) with u = 1 + x after rounding."""
    u = g.node("Add", x, 1)
    rest = g.node("Sub", u, 1)
    none = g.node("Equal", rest, g.constant(0, x.dtype), dtype=DType.BOOL)
    endless = g.node("Equal", u, x, dtype=DType.BOOL)
    keep = g.node("Or", none, endless)
    safe = g.node("Where", keep, g.constant(1, x.dtype), rest, like=x)
    exact = g.node("Mul", g.node("Log", u), g.node("Div", x, safe))
    exact = g.node("Where", endless, g.node("Log", u), exact, like=x)
    return g.node("Where", none, x, exact, like=x)


@primitive("Log2")
def log2(g: Emitter, x: Value) -> Value:
    return g.node("Div", g.node("Log", x), math.log(2))


@primitive("Log10")
def log10(g: Emitter, x: Value) -> Value:
    return g.node("Div", g.node("Log", x), math.log(10))


@primitive("Exp2")
def exp2(g: Emitter, x: Value) -> Value:
    return g.node("Pow", g.constant(2, x.dtype), x)


@primitive("Expm1")
def expm1(g: Emitter, x: Value) -> Value:
    """Lower exp(x) - 1, exact for small x too: 2 sinh(x/2) exp(x/2)."""
    half = g.node("Mul", x, 0.5)
    small = g.node("Mul", g.node("Mul", g.node("Sinh", half), 2), g.node("Exp", half))
    plain = g.node("Sub", g.node("Exp", x), 1)
    near = g.node("Less", g.node("Abs", x), g.constant(1, x.dtype), dtype=DType.BOOL)
    return g.node("Where", near, small, plain, like=x)


@primitive("Erfc")
def erfc(g: Emitter, x: Value) -> Value:
    return g.node("Sub", g.constant(1, x.dtype), g.node("Erf", x))


@primitive("Trunc", "Fix")
def trunc(g: Emitter, x: Value) -> Value:
    if x.dtype not in FLOATS:
        return g.node("Identity", x)
    down, up = g.node("Floor", x), g.node("Ceil", x)
    negative = g.node("Less", x, g.constant(0, x.dtype), dtype=DType.BOOL)
    return g.node("Where", negative, up, down, like=x)


@primitive("Frac")
def frac(g: Emitter, x: Value) -> Value:
    return g.node("Sub", x, trunc(g, x))


@primitive("Round", "Rint")
def round_(g: Emitter, x: Value, decimals: int = 0) -> Value:
    if x.dtype not in FLOATS:
        return g.node("Identity", x)
    if not decimals:
        return g.node("Round", x)
    factor = 10.0**decimals
    return g.node("Div", g.node("Round", g.node("Mul", x, factor)), factor)


@primitive("IsNan", "isnan")
def is_nan(g: Emitter, x: Value) -> Value:
    if x.dtype not in FLOATS:
        return _never(g, x)
    return g.node("IsNaN", x, dtype=DType.BOOL)


@primitive("IsInf")
def is_inf(g: Emitter, x: Value) -> Value:
    if x.dtype not in FLOATS:
        return _never(g, x)
    return g.node("IsInf", _wide(g, x), dtype=DType.BOOL)


@primitive("IsFinite", "isfinite")
def is_finite(g: Emitter, x: Value) -> Value:
    if x.dtype not in FLOATS:
        return g.node("Not", _never(g, x))
    return g.node("Not", g.node("Or", is_nan(g, x), is_inf(g, x)))


def _wide(g: Emitter, x: Value) -> Value:
    return g.cast(x, DType.FLOAT32) if x.dtype in (DType.FLOAT16, DType.BFLOAT16) else x


def _never(g: Emitter, x: Value) -> Value:
    return g.node("Not", g.node("Equal", x, x, dtype=DType.BOOL))


@primitive("NanToNum")
def nan_to_num(
    g: Emitter, x: Value, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> Value:
    if x.dtype not in FLOATS:
        return x
    limits = {DType.FLOAT16: 65504.0, DType.FLOAT32: 3.4028234663852886e38}
    most = limits.get(x.dtype, 1.7976931348623157e308)
    if x.dtype is DType.BFLOAT16:
        most = 3.3895313892515355e38
    above = g.node("IsInf", _wide(g, x), dtype=DType.BOOL, detect_negative=0)
    below = g.node("IsInf", _wide(g, x), dtype=DType.BOOL, detect_positive=0)
    y = g.node("Where", is_nan(g, x), g.constant(nan or 0.0, x.dtype), x, like=x)
    y = g.node("Where", above, g.constant(most if posinf is None else posinf, x.dtype), y, like=x)
    return g.node(
        "Where", below, g.constant(-most if neginf is None else neginf, x.dtype), y, like=x
    )


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
    left, right = common(g, x, y)
    if str(left.dtype).startswith("u"):
        return g.node("BitShift", left, right, direction="LEFT")
    right = g.cast(
        g.node("Pow", g.constant(2.0, DType.FLOAT64), g.cast(right, DType.FLOAT64)), left.dtype
    )
    return g.node("Mul", left, right)


@primitive("RightShift", "BitwiseRightShift")
def right_shift(g: Emitter, x: Any, y: Any) -> Value:
    left, right = common(g, x, y)
    if str(left.dtype).startswith("u"):
        return g.node("BitShift", left, right, direction="RIGHT")
    right = g.cast(
        g.node("Pow", g.constant(2.0, DType.FLOAT64), g.cast(right, DType.FLOAT64)), left.dtype
    )
    return floor_div(g, left, right)


@primitive("Cast", "cast", "Cast_")
def cast(g: Emitter, x: Any, dst_type: Any = None) -> Value:
    dtype = type_of(g, dst_type)
    value = g.constant(x)
    if dtype is DType.BOOL and value.dtype in FLOATS:
        return g.node("Cast", value, dtype=dtype, to=dtype.onnx)
    if value.dtype in FLOATS and dtype in (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16):
        # As C does on the way of a CPU: through a wide integer, whose low bits stay.
        value = g.node("Cast", value, dtype=DType.INT32, to=DType.INT32.onnx)
    return g.cast(value, dtype)


def type_of(g: Emitter, given: Any) -> DType:
    """Return an element type given as an argument: MindSpore's number for it, or a type."""
    from engine.formats.mindir.values import TYPE_IDS

    if isinstance(given, TypeId):
        return given.dtype
    if isinstance(given, Value):
        array = given.array()
        given = int(array) if array is not None and array.size == 1 else given
    if isinstance(given, int) and given in TYPE_IDS:
        return TYPE_IDS[given]
    if isinstance(g.result, Abstract):
        return g.result.dtype
    raise Unsupported(f"the element type {given!r} is not known")


@primitive("Select", "Where", "select", "where", "SelectExt")
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
        x = _extreme(g, "Max", x, g.cast(min, x.dtype))
    if max is not None:
        x = _extreme(g, "Min", x, g.cast(max, x.dtype))
    return x


@primitive("ClipByValue", "clip_by_value")
def clip_by_value(
    g: Emitter, x: Value, clip_value_min: Any = None, clip_value_max: Any = None
) -> Value:
    return clamp(g, x, clip_value_min, clip_value_max)


@primitive("LinSpace", "LinSpaceExt", "linspace")
def lin_space(g: Emitter, start: Any, stop: Any, num: Any, dtype: Any = None) -> Value:
    kind = result_type(g, DType.FLOAT32)
    start, stop = g.scalar(start, kind), g.scalar(stop, kind)
    count = g.scalar(num, DType.INT64)
    steps = g.node("Range", g.constant(0), count, g.constant(1), dtype=DType.INT64)
    last = g.node("Max", g.node("Sub", count, 1), 1)
    step = g.node("Div", g.node("Sub", stop, start), g.cast(last, kind))
    return g.node("Add", start, g.node("Mul", g.cast(steps, kind), step))


@primitive("FloatStatus")
def float_status(g: Emitter, x: Value) -> Value:
    bad = g.node("Not", is_finite(g, x))
    return g.node("ReduceMax", g.cast(bad, DType.FLOAT32), keepdims=0, shape=())


@primitive("Logit")
def logit(g: Emitter, x: Value, eps: float = -1.0) -> Value:
    if eps is not None and eps >= 0:
        x = g.node("Clip", x, g.constant(eps, x.dtype), g.constant(1 - eps, x.dtype))
    return g.node("Log", g.node("Div", x, g.node("Sub", g.constant(1, x.dtype), x)))


@primitive("Cdist")
def cdist(g: Emitter, x: Value, y: Value, p: float = 2.0) -> Value:
    """Return distances of each row of one to each row of the other."""
    from engine.formats.mindir.primitives.reductions import norm

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


@primitive("Heaviside")
def heaviside(g: Emitter, x: Value, at_zero: Value) -> Value:
    left, right = common(g, x, at_zero)
    zero = g.constant(0, left.dtype)
    step = g.cast(g.node("Greater", left, zero, dtype=DType.BOOL), left.dtype)
    return g.node("Where", g.node("Equal", left, zero, dtype=DType.BOOL), right, step, like=left)


@primitive("Sinc")
def sinc(g: Emitter, x: Value) -> Value:
    """Lower sin(pi x) / (pi x), 1 at 0."""
    x = x if x.dtype in FLOATS else g.cast(x, result_type(g, DType.FLOAT32))
    angle = g.node("Mul", x, math.pi)
    none = g.node("Equal", angle, g.constant(0, x.dtype), dtype=DType.BOOL)
    one = g.constant(1, x.dtype)
    safe = g.node("Where", none, one, angle, like=x)
    return g.node("Where", none, one, g.node("Div", g.node("Sin", safe), safe), like=x)


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
        return _extreme(g, op_type, left, right)
    both = _extreme(g, op_type, left, right)
    both = g.node("Where", is_nan(g, right), left, both, like=left)
    return g.node("Where", is_nan(g, left), right, both, like=left)


@primitive("ApproximateEqual")
def approximately(g: Emitter, x: Value, y: Value, *, tolerance: float = 1e-5) -> Value:
    apart = g.node("Abs", g.node("Sub", x, y))
    return g.node("Less", apart, g.constant(tolerance, x.dtype), dtype=DType.BOOL)


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


@primitive("Eps")
def eps(g: Emitter, x: Value) -> Value:
    """Return the least step above 1 in this type."""
    step = {DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7, DType.FLOAT64: 2.0**-52}
    smallest = g.constant(step.get(x.dtype, 2.0**-23), x.dtype)
    return g.node("Expand", smallest, g.shape(x), shape=x.shape)


@primitive("IsNegInf")
def is_negative_infinity(g: Emitter, x: Value) -> Value:
    return g.node("Equal", x, g.constant(float("-inf"), x.dtype), dtype=DType.BOOL)


@primitive("ToDtype")
def to_dtype(g: Emitter, x: Value, dtype: Any = None, *rest: Any) -> Value:
    return g.cast(x, type_of(g, dtype)) if dtype is not None else g.node("Identity", x)


@primitive("ToOther")
def to_other(g: Emitter, x: Value, other: Value, *rest: Any) -> Value:
    return g.cast(x, other.dtype)
