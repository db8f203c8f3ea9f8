"""Splits of operators, for `infer_predict_layout` only: the dimensions that are one axis.

The slicer's rules are in `engine/layouts/rules/`: they need sizes, and divide one axis at a time. A
strategy that is inferred here may split several, in the order of MindSpore's device matrix.

    axes = axes_of(node, (2, 2))      # MatMul: inputs (m, k) and (k, n), output (m, n)

Splitting an operator is splitting axes: a dimension of that axis is split the same way in every
input and output that has it. An axis that no output has is summed over, so each rank has a partial
sum. A dimension of no axis (None) cannot be split. Operators without a rule run whole on each rank.

`RULES` is the table: a rule for every operator that is known to split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from engine.types import NodeInfo

Dims: TypeAlias = "tuple[str | None, ...]"
"""The axis of each dimension of a tensor."""


class Axes(NamedTuple):
    """Axes of an operator. order: of the device matrix. inputs, outputs: of each, by position.

    replicas_first: where more devices than slices are there, the replicas are the slowest
    dimension of the device matrix, not the fastest (as MindSpore has it for lookups).
    """

    order: tuple[str, ...]
    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]
    replicas_first: bool = False


Rule: TypeAlias = "Callable[[NodeInfo, Sequence[int]], Axes]"
"""Gives the axes of a node whose inputs have so many dimensions (0 for one that is left out)."""


class NoRule(ValueError):
    """A node cannot be split so. The message says why."""


def axes_of(node: NodeInfo, ranks: Sequence[int]) -> Axes:
    """Return the axes of a node, whose inputs have so many dimensions. Raises NoRule."""
    rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx", "com.microsoft") else None
    if rule is None:
        raise NoRule(f"no rule says how {node.op_type} splits")
    try:
        return rule(node, ranks)
    except (IndexError, KeyError, TypeError) as error:
        raise NoRule(f"{node.op_type} with inputs of {list(ranks)} dimensions") from error


def _ordered(*tensors: Dims) -> tuple[str, ...]:
    return tuple(dict.fromkeys(axis for dims in tensors for axis in dims if axis is not None))


def _aligned(rank: int, most: int) -> Dims:
    """Return the axes of a tensor that broadcasts to `most` dimensions, from the right."""
    return tuple(f"d{dim}" for dim in range(most - rank, most))


def _int(node: NodeInfo, name: str, default: int = 0) -> int:
    value = node.attributes.get(name, default)
    if not isinstance(value, int):
        raise NoRule(f"{node.op_type}: its attribute {name!r} is not known")
    return value


def _elementwise(node: NodeInfo, ranks: Sequence[int]) -> Axes:
    most = max(ranks)
    inputs = tuple(_aligned(rank, most) for rank in ranks)
    whole = _aligned(most, most)
    return Axes(_ordered(whole), inputs, (whole,))


def _matmul(node: NodeInfo, ranks: Sequence[int]) -> Axes:
    a, b = ranks[0], ranks[1]
    batch = max(a, b) - 2
    left: Dims = (*_aligned(a - 2, batch), "m", "k") if a > 1 else ("k",)
    right: Dims = (*_aligned(b - 2, batch), "k", "n") if b > 1 else ("k",)
    result = (*_aligned(batch, batch), *(("m",) if a > 1 else ()), *(("n",) if b > 1 else ()))
    return Axes(_ordered(_aligned(batch, batch), ("m", "k", "n")), (left, right), (result,))


def _gemm(node: NodeInfo, ranks: Sequence[int]) -> Axes:
    left: Dims = ("k", "m") if _int(node, "transA") else ("m", "k")
    right: Dims = ("n", "k") if _int(node, "transB") else ("k", "n")
    bias: Dims = ("m", "n")[2 - ranks[2] :] if len(ranks) > 2 else ()
    return Axes(("m", "k", "n"), (left, right, bias)[: len(ranks)], (("m", "n"),))


def _conv(node: NodeInfo, ranks: Sequence[int]) -> Axes:
    kernel = (None,) * (ranks[0] - 2)
    # Groups read channels of their own: only whole output channels can be told apart.
    channels = "c" if _int(node, "group", 1) == 1 else None
    inputs: tuple[Dims, ...] = (("n", channels, *kernel), ("o", channels, *kernel), ("o",))
    return Axes(("n", "c", "o"), inputs[: len(ranks)], (("n", "o", *kernel),))


def _conv_transpose(node: NodeInfo, ranks: Sequence[int]) -> Axes:
    if _int(node, "group", 1) != 1:
        raise NoRule("ConvTranspose of several groups")
    kernel = (None,) * (ranks[0] - 2)
    inputs: tuple[Dims, ...] = (("n", "c", *kernel), ("c", "o", *kernel), ("o",))
    return Axes(("n", "c", "o"), inputs[: len(ranks)], (("n", "o", *kernel),))


def _gather(node: NodeInfo, ranks: Sequence[int]) -> Axes:
    axis = _int(node, "axis") % ranks[0]
    data = tuple(f"d{dim}" for dim in range(ranks[0]))
    index = tuple(f"i{dim}" for dim in range(ranks[1]))
    result = (*data[:axis], *index, *data[axis + 1 :])
    return Axes((*data, *index), (data, index), (result,), replicas_first=True)


def _normalization(node: NodeInfo, ranks: Sequence[int]) -> Axes:
    """LayerNormalization and the like: scale and bias lie along the last dimensions."""
    most = ranks[0]
    whole = _aligned(most, most)
    others = (_aligned(rank, most) for rank in ranks[1:])
    return Axes(_ordered(whole), (whole, *others), (whole,))


def _channelwise(node: NodeInfo, ranks: Sequence[int]) -> Axes:
    """BatchNormalization and the like: scale, bias, mean and variance are one a channel."""
    whole: Dims = ("n", "c", *(f"s{dim}" for dim in range(ranks[0] - 2)))
    return Axes(_ordered(whole), (whole, *((("c",),) * (len(ranks) - 1))), (whole,))


def _prelu(node: NodeInfo, ranks: Sequence[int]) -> Axes:
    whole = _aligned(ranks[0], ranks[0])
    return Axes(_ordered(whole), (whole, _aligned(ranks[1], ranks[0])), (whole,))


def _einsum(node: NodeInfo, ranks: Sequence[int]) -> Axes:
    equation = node.attributes["equation"]
    if not isinstance(equation, str) or "." in equation:
        raise NoRule(f"Einsum with the equation {equation!r}")
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = tuple(tuple(term) for term in left.split(","))
    letters = [letter for term in terms for letter in term]
    result = tuple(right) if arrow else tuple(
        sorted(letter for letter in {*letters} if letters.count(letter) == 1)
    )  # fmt: skip
    return Axes(_ordered(*terms), terms, (result,))


_ELEMENTWISE = (
    "Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Sum", "Mean", "Mod", "And", "Or", "Xor",
    "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Where", "BitwiseAnd",
    "BitwiseOr", "BitwiseXor", "BiasGelu", "Abs", "Neg", "Exp", "Log", "Sqrt", "Reciprocal",
    "Relu", "Sigmoid", "Tanh", "Erf", "Gelu", "FastGelu", "QuickGelu", "Elu", "Selu",
    "LeakyRelu", "HardSigmoid", "HardSwish", "Softplus", "Softsign", "Mish", "Identity", "Cast",
    "Not", "Sign", "Floor", "Ceil", "Round", "Sin", "Cos",
)  # fmt: skip

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "FusedConv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gather": _gather,
    "LayerNormalization": _normalization,
    "SimplifiedLayerNormalization": _normalization,
    "RMSNormalization": _normalization,
    "BatchNormalization": _channelwise,
    "InstanceNormalization": _channelwise,
    "PRelu": _prelu,
    "Einsum": _einsum,
}
"""Sharding rules of ONNX's operators, and of those in ONNX Runtime's own domain."""
