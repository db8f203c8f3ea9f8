"""Activation functions."""

from __future__ import annotations

from typing import Any

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.primitives.casts import type_of
from engine_mindir.primitives.elementwise import unary
from engine_mindir.values import FLOATS, DType, Value

for _names in (
    ("Relu", "ReLU", "relu", ), ("Sigmoid", "Sigmoid", "sigmoid"),
    ("Softsign", "Softsign"), ("Mish", "Mish", "MishExt"),
):  # fmt: skip
    unary(_names[0], *_names[1:])


@primitive("ReLU6", "relu6", "Relu6")
def relu6(g: Emitter, x: Value) -> Value:
    return g.node("Clip", x, g.constant(0, x.dtype), g.constant(6, x.dtype))


@primitive("ReLUV2")
def relu_v2(g: Emitter, x: Value) -> tuple[Any, ...]:
    return g.node("Relu", x), None


def _limited(g: Emitter, x: Value) -> Value:
    """Return clip(x + 3, 0, 6) in integers."""
    up = g.node("Add", x, g.constant(3, x.dtype))
    up = g.node("Max", up, g.constant(0, x.dtype))
    return g.node("Min", up, g.constant(6, x.dtype))


@primitive("HSwish")
def hard_swish(g: Emitter, x: Value) -> Value:
    if x.dtype not in FLOATS:
        return g.node("Div", g.node("Mul", x, _limited(g, x)), g.constant(6, x.dtype))
    return g.node("HardSwish", x)


@primitive("HSigmoid")
def hard_sigmoid(g: Emitter, x: Value) -> Value:
    if x.dtype not in FLOATS:
        return g.node("Div", _limited(g, x), g.constant(6, x.dtype))
    return g.node("HardSigmoid", x, alpha=1 / 6, beta=0.5)


@primitive("LeakyReLU", "LeakyRelu", "LeakyReLUExt")
def leaky_relu(g: Emitter, x: Value, negative_slope: float = 0.2) -> Value:
    return g.node("LeakyRelu", x, alpha=float(negative_slope))


@primitive("PReLU", "prelu")
def prelu(g: Emitter, x: Value, weight: Value) -> Value:
    rank = g.rank(x)
    if weight.rank == 1 and weight.shape != (1,) and rank > 2:
        weight = g.reshape(weight, (-1, *[1] * (rank - 2)))
    return g.node("PRelu", x, weight)


@primitive("Elu", "elu", "EluExt")
def elu(g: Emitter, x: Value, alpha: float = 1.0) -> Value:
    return g.node("Elu", x, alpha=float(alpha))


@primitive("CeLU")
def celu(g: Emitter, x: Value, alpha: float = 1.0) -> Value:
    return g.node("Celu", x, alpha=float(alpha))


@primitive("SeLU", "SeLUExt")
def selu(g: Emitter, x: Value) -> Value:
    return g.node("Selu", x if x.dtype in FLOATS else g.cast(x, DType.FLOAT32))


@primitive("GeLU", "Gelu", "GELU", "gelu")
def gelu(g: Emitter, x: Value) -> Value:
    return g.node("Gelu", x, approximate="tanh")


@primitive("GeluExt")
def gelu_ext(g: Emitter, x: Value, approximate: Any = 0) -> Value:
    tanh = approximate in (1, "tanh")
    return g.node("Gelu", x, approximate="tanh" if tanh else "none")


@primitive("FastGeLU", "FastGelu", "QuickGelu")
def fast_gelu(g: Emitter, x: Value) -> Value:
    return g.node("Mul", x, g.node("Sigmoid", g.node("Mul", x, 1.702)))


@primitive("SiLU", "Swish", "silu")
def silu(g: Emitter, x: Value) -> Value:
    return g.node("Mul", x, g.node("Sigmoid", x))


@primitive("Softplus", "SoftPlus")
def softplus(g: Emitter, x: Value) -> Value:
    return g.node("Softplus", x)


@primitive("SoftplusExt")
def softplus_ext(g: Emitter, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    scaled = g.node("Mul", x, float(beta))
    soft = g.node("Div", g.node("Softplus", scaled), float(beta))
    straight = g.node("Greater", scaled, float(threshold), dtype=DType.BOOL)
    return g.node("Where", straight, x, soft, like=x)


@primitive("Threshold")
def threshold(g: Emitter, x: Value, threshold: float = 0, value: float = 0) -> Value:
    above = g.node("Greater", x, threshold, dtype=DType.BOOL)
    return g.node("Where", above, x, g.constant(value, x.dtype), like=x)


@primitive("LogSigmoid", "LogSigmoidExt")
def log_sigmoid(g: Emitter, x: Value) -> Value:
    return g.node("Neg", g.node("Softplus", g.node("Neg", x)))


@primitive("TanhShrink")
def tanh_shrink(g: Emitter, x: Value) -> Value:
    return g.node("Sub", x, g.node("Tanh", x))


@primitive("HShrink")
def hard_shrink(g: Emitter, x: Value, lambd: float = 0.5) -> Value:
    inside = g.node("LessOrEqual", g.node("Abs", x), float(lambd), dtype=DType.BOOL)
    return g.node("Where", inside, g.constant(0, x.dtype), x, like=x)


@primitive("SoftShrink")
def soft_shrink(g: Emitter, x: Value, lambd: float = 0.5) -> Value:
    return g.node("Shrink", x, lambd=float(lambd), bias=float(lambd))


@primitive("HardTanh", "Hardtanh")
def hard_tanh(g: Emitter, x: Value, min_val: float = -1.0, max_val: float = 1.0) -> Value:
    return g.node("Clip", x, g.constant(min_val, x.dtype), g.constant(max_val, x.dtype))


@primitive("Softmax", "softmax", "SoftMax")
def softmax(g: Emitter, logits: Value, axis: Any = -1) -> Value:
    return _over(g, "Softmax", logits, axis)


@primitive("LogSoftmax")
def log_softmax(g: Emitter, logits: Value, axis: Any = -1) -> Value:
    return _over(g, "LogSoftmax", logits, axis)


@primitive("LogSoftmaxExt")
def log_softmax_ext(g: Emitter, logits: Value, axis: Any = None, dtype: Any = None) -> Value:
    """Lower log-softmax. Default axis: 0 for a tensor of 0, 1 or 3 axes, else 1."""
    if axis is None:
        axis = 0 if g.rank(logits) in (0, 1, 3) else 1
    x = logits if dtype is None else g.cast(logits, type_of(g, dtype))
    return _over(g, "LogSoftmax", x, axis)


def _over(g: Emitter, op_type: str, x: Value, axis: Any) -> Value:
    axes = (-1,) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if len(axes) == 1:
        if x.rank == 0:
            return g.reshape(g.node(op_type, g.reshape(x, (1,)), axis=0), ())
        return g.node(op_type, x, axis=int(axes[0]))
    if op_type != "Softmax" or not axes:
        raise Unsupported(f"{op_type} over the axes {axes}")
    most = g.node("ReduceMax", x, g.ints(axes), keepdims=1)
    raised = g.node("Exp", g.node("Sub", x, most))
    return g.node("Div", raised, g.node("ReduceSum", raised, g.ints(axes), keepdims=1))


@primitive("GLU", "Glu")
def glu(g: Emitter, x: Value, axis: int = -1) -> Value:
    left, right = g.nodes("Split", x, types=[(None, None)] * 2, axis=int(axis), num_outputs=2)
    return g.node("Mul", left, g.node("Sigmoid", right))


@primitive("Swiglu")
def swiglu(g: Emitter, x: Value, dim: int = -1) -> Value:
    left, right = g.nodes("Split", x, types=[(None, None)] * 2, axis=int(dim), num_outputs=2)
    return g.node("Mul", silu(g, left), right)


@primitive("Dropout", "DropoutExt", "Dropout2D", "Dropout3D", "DropoutDoMask", "AlphaDropout")
def dropout(g: Emitter, x: Value, *rest: Any) -> tuple[Any, ...]:
    """Pass x through: nothing is dropped in inference."""
    return g.node("Identity", x), None


@primitive("Activation")
def activation(
    g: Emitter,
    x: Value,
    *,
    activation_type: Any = 0,
    alpha: float = 0.2,
    min_val: float = -1.0,
    max_val: float = 1.0,
    approximate: bool = False,
) -> Value:
    """Lower MindSpore Lite's fused activation, which names the function by a number."""
    plain = {
        1: "Relu",
        2: "Sigmoid",
        5: "Elu",
        6: "LeakyRelu",
        8: "Softsign",
        9: "Softplus",
        10: "Tanh",
        11: "Selu",
        12: "HardSwish",
        13: "HardSigmoid",
    }
    kind = int(activation_type)
    if kind == 3:
        return relu6(g, x)
    if kind == 14:
        return hard_tanh(g, x, min_val, max_val)
    if kind == 13:
        return hard_sigmoid(g, x)
    if kind == 6:
        return leaky_relu(g, x, alpha)
    if kind == 15:
        return g.node("Gelu", x, approximate="tanh" if approximate else "none")
    if kind in (7, 18):
        return silu(g, x)
    if kind not in plain:
        raise Unsupported(f"the activation number {kind}")
    return g.node(plain[kind], x)
