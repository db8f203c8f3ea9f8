"""Matrix products."""

from __future__ import annotations

from typing import Any

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.primitives.casts import common, via_int32
from engine_mindir.primitives.convolution import check_layout
from engine_mindir.values import FLOATS, Value


def _flipped(g: Emitter, x: Value) -> Value:
    rank = g.rank(x)
    return g.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def product(g: Emitter, x: Value, y: Value, flip_x: bool = False, flip_y: bool = False) -> Value:
    """Return a product of matrices or stacks of them; Gemm where it may take a bias."""
    if x.rank == 2 and y.rank == 2 and x.dtype in FLOATS:
        return g.node("Gemm", x, y, transA=1 if flip_x else None, transB=1 if flip_y else None)
    x = _flipped(g, x) if flip_x else x
    y = _flipped(g, y) if flip_y else y
    return via_int32(g, "MatMul", x, y)


@primitive(
    "MatMul", "BatchMatMul", "MatMulV2", "BatchMatMulV2", "matmul", "MatMulFusion", "MatmulFusion"
)
def matmul(
    g: Emitter,
    x: Value,
    y: Value,
    transpose_a: Any = False,
    transpose_b: Any = False,
    bias: Any = None,
) -> Value:
    left, right = common(g, x, y)
    z = product(g, left, right, bool(transpose_a), bool(transpose_b))
    return g.node("Add", z, bias) if isinstance(bias, Value) else z


@primitive("MatMulExt", "BatchMatMulExt", "Mm", "MmExt", "Dot", "Mv", "Vdot")
def matmul_ext(g: Emitter, x: Value, y: Value) -> Value:
    left, right = common(g, x, y)
    return product(g, left, right)


@primitive("Dense", "FullConnection", "Linear")
def dense(
    g: Emitter,
    x: Value,
    weight: Value,
    bias: Any = None,
    *,
    has_bias: Any = None,
    activation_type: Any = 0,
) -> Value:
    """Multiply x by the transposed weight, and add the bias."""
    flip = g.rank(weight) == 2
    y = product(g, x, weight, False, flip)
    return g.node("Add", y, bias) if isinstance(bias, Value) else y


@primitive("BiasAdd", "bias_add")
def bias_add(g: Emitter, x: Value, bias: Value, format: Any = "NCHW") -> Value:
    check_layout(format)
    rank = g.rank(x)
    if rank > 2:
        size = bias.shape[0] if bias.shape else None
        bias = g.reshape(bias, (-1 if size is None else size, *[1] * (rank - 2)))
    return g.node("Add", x, bias)


@primitive("Baddbmm", "Addmm", "Addmv")
def baddbmm(g: Emitter, x: Value, one: Value, two: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    y = g.node("MatMul", one, two)
    y = y if alpha == 1 else g.node("Mul", y, alpha)
    x = x if beta == 1 else g.node("Mul", x, beta)
    return g.node("Add", x, y)


@primitive("Addbmm")
def addbmm(g: Emitter, x: Value, one: Value, two: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    y = g.node("ReduceSum", g.node("MatMul", one, two), g.ints((0,)), keepdims=0)
    y = y if alpha == 1 else g.node("Mul", y, alpha)
    return g.node("Add", x if beta == 1 else g.node("Mul", x, beta), y)


@primitive("Outer", "Ger")
def outer(g: Emitter, x: Value, y: Value) -> Value:
    return g.node("Mul", g.unsqueeze(x, (1,)), g.unsqueeze(y, (0,)))


@primitive("Einsum", "einsum")
def einsum(g: Emitter, *items: Any, equation: Any = None) -> Value:
    flat: list[Any] = []
    for operand in items:
        if isinstance(operand, str):
            equation = operand
        else:
            flat += operand if isinstance(operand, tuple) else (operand,)
    if not isinstance(equation, str):
        raise Unsupported("an Einsum without an equation")
    return g.node("Einsum", *common(g, *flat), equation=equation)


@primitive("TensorDot")
def tensor_dot(g: Emitter, x: Value, y: Value, axes: Any) -> Value:
    left, right = (tuple(axis) if isinstance(axis, tuple) else (axis,) for axis in axes)
    ranks = g.rank(x), g.rank(y)
    letters = "abcdefghijklmnopqrstuvwxyz"
    first = list(letters[: ranks[0]])
    second = list(letters[ranks[0] : sum(ranks)])
    for a, b in zip(left, right, strict=True):
        second[b] = first[a]
    kept = [c for c in first if c not in second] + [c for c in second if c not in first]
    equation = f"{''.join(first)},{''.join(second)}->{''.join(kept)}"
    return g.node("Einsum", x, y, equation=equation)


@primitive("FlashAttentionScore", "PromptFlashAttention")
def attention(g: Emitter, query: Value, key: Value, value: Value, *rest: Any) -> Any:
    raise Unsupported("a fused attention kernel; export the model with plain attention")


@primitive("FFN")
def ffn(g: Emitter, x: Value, weight1: Value, weight2: Value, *rest: Any) -> Any:
    raise Unsupported("a fused feed-forward kernel; export the model without it")


@primitive("EinsumExt")
def einsum_ext(g: Emitter, equation: Any, operands: Any) -> Value:
    return einsum(g, operands, equation=equation)


@primitive("MatrixDeterminant")
def determinant(g: Emitter, x: Value) -> Value:
    return g.node("Det", x)


@primitive("LogMatrixDeterminant")
def log_determinant(g: Emitter, x: Value) -> tuple[Value, Value]:
    """Return the determinant's sign, and the logarithm of its size."""
    det = determinant(g, x)
    return g.node("Sign", det), g.node("Log", g.node("Abs", det))


@primitive("MatrixInverse", "MatrixInverseExt")
def inverse(g: Emitter, x: Value) -> Value:
    return g.node("Inverse", x, domain="com.microsoft", shape=x.shape)
