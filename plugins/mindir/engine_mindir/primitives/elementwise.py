"""Functions of one tensor, element by element."""

from __future__ import annotations

import math
from typing import Any

from engine_mindir.emit import Emitter
from engine_mindir.primitives import primitive
from engine_mindir.primitives.casts import common, result_type
from engine_mindir.values import FLOATS, DType, Value


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


@primitive("FloatStatus")
def float_status(g: Emitter, x: Value) -> Value:
    bad = g.node("Not", is_finite(g, x))
    return g.node("ReduceMax", g.cast(bad, DType.FLOAT32), keepdims=0, shape=())


@primitive("Logit")
def logit(g: Emitter, x: Value, eps: float = -1.0) -> Value:
    if eps is not None and eps >= 0:
        x = g.node("Clip", x, g.constant(eps, x.dtype), g.constant(1 - eps, x.dtype))
    return g.node("Log", g.node("Div", x, g.node("Sub", g.constant(1, x.dtype), x)))


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


@primitive("Eps")
def eps(g: Emitter, x: Value) -> Value:
    """Return the least step above 1 in this type."""
    step = {DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7, DType.FLOAT64: 2.0**-52}
    smallest = g.constant(step.get(x.dtype, 2.0**-23), x.dtype)
    return g.node("Expand", smallest, g.shape(x), shape=x.shape)


@primitive("IsNegInf")
def is_negative_infinity(g: Emitter, x: Value) -> Value:
    return g.node("Equal", x, g.constant(float("-inf"), x.dtype), dtype=DType.BOOL)
