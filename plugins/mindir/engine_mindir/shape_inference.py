"""Shape inference for ONNX operators, where the file leaves a result's shape open.

MindSpore drops a tensor's rank after some operators (Squeeze of an open axis, branches); what
follows then has no rank in the file either, though it is plain from the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from engine_mindir.messages import RANK
from engine_mindir.values import Shape, Value

Rule = Callable[[Sequence[Any], Mapping[str, Any]], Shape]


def shape_of(op_type: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Shape:
    """Return the shape of the first result as far as it follows from the inputs' shapes."""
    rule = _RULES.get(op_type)
    try:
        return rule(inputs, attributes) if rule is not None else None
    except (IndexError, TypeError, ValueError):  # the inputs do not fit: the backend says how
        return None


def _shape(operand: Any) -> Shape:
    return operand.shape if isinstance(operand, Value) else tuple(np.shape(operand))


def _same(inputs: Sequence[Any], _: Mapping[str, Any]) -> Shape:
    return _shape(inputs[0])


def _broadcast(inputs: Sequence[Any], _: Mapping[str, Any]) -> Shape:
    return _broadcast_shapes(*map(_shape, inputs))


def _broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that shapes broadcast to."""
    sizes: list[int | None] = []
    for shape in shapes:
        if shape is None:
            return None
        sizes = [*[1] * (len(shape) - len(sizes)), *sizes]
        for axis, dim in enumerate(shape, len(sizes) - len(shape)):
            if sizes[axis] == 1 or dim not in (1, None):
                sizes[axis] = dim
    return tuple(sizes)


def _rank_only(inputs: Sequence[Any], _: Mapping[str, Any]) -> Shape:
    shape = _shape(inputs[0])
    return None if shape is None else (None,) * len(shape)


def _spatial(inputs: Sequence[Any], _: Mapping[str, Any]) -> Shape:
    """Keep batch and channels; the spatial axes are open."""
    shape = _shape(inputs[0])
    return None if shape is None else (*shape[:2], *[None] * (len(shape) - 2))


def _convolved(inputs: Sequence[Any], _: Mapping[str, Any]) -> Shape:
    shape, weight = _shape(inputs[0]), _shape(inputs[1])
    if shape is None and weight is None:
        return None
    batch = shape[0] if shape else None
    channels = weight[0] if weight else None
    return (batch, channels, *[None] * (len(weight or shape or ()) - 2))


def _product(inputs: Sequence[Any], _: Mapping[str, Any]) -> Shape:
    one, two = _shape(inputs[0]), _shape(inputs[1])
    if one is None or two is None:
        return None
    lead = _broadcast_shapes(one[:-2], two[:-2])
    return (*(lead or ()), *one[-2:-1], *(two[-1:] if len(two) > 1 else ()))


def _gemm(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Shape:
    one, two = _shape(inputs[0]) or (None, None), _shape(inputs[1]) or (None, None)
    return one[1 if attributes.get("transA") else 0], two[0 if attributes.get("transB") else 1]


def _reduced(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Shape:
    shape = _shape(inputs[0])
    if shape is None:
        return None
    given = inputs[1] if len(inputs) > 1 else attributes.get("axis")
    axes = _numbers(given)
    if given is not None and axes is None:
        return None
    gone = {axis % len(shape) for axis in axes} if axes is not None else set(range(len(shape)))
    if attributes.get("keepdims", 1):
        return tuple(1 if axis in gone else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in gone)


def _numbers(operand: Any) -> tuple[int, ...] | None:
    if isinstance(operand, Value):
        operand = operand.array()
    if np.size(operand) > RANK:  # it names no axes or sizes, and may be as large as the file
        return None
    return None if operand is None else tuple(int(number) for number in np.reshape(operand, -1))


def _concat(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Shape:
    shape = next((dim for dim in map(_shape, inputs) if dim is not None), None)
    if shape is None:
        return None
    sizes = list(shape)
    sizes[attributes["axis"]] = None
    return tuple(sizes)


def _gathered(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Shape:
    shape, indices = _shape(inputs[0]), _shape(inputs[1])
    if shape is None or indices is None:
        return None
    axis = attributes.get("axis", 0) % len(shape)
    return (*shape[:axis], *indices, *shape[axis + 1 :])


def _gathered_nd(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Shape:
    shape, indices = _shape(inputs[0]), _shape(inputs[1])
    if shape is None or not indices or indices[-1] is None:
        return None
    return (*indices[:-1], *shape[attributes.get("batch_dims", 0) + indices[-1] :])


def _slice(inputs: Sequence[Any], _: Mapping[str, Any]) -> Shape:
    shape = _shape(inputs[0])
    axes = _numbers(inputs[3]) if len(inputs) > 3 else None
    if shape is None or axes is None:
        return _rank_only(inputs, {})
    sliced = {axis % len(shape) for axis in axes}
    return tuple(None if axis in sliced else dim for axis, dim in enumerate(shape))


def _shape_from_input(inputs: Sequence[Any], _: Mapping[str, Any]) -> Shape:
    """Return the shape that the second input holds, or only its rank where it is computed."""
    sizes = _numbers(inputs[1])
    if sizes is not None:
        return tuple(None if size < 1 else size for size in sizes)
    length = _shape(inputs[1])
    if not length or length[0] is None or length[0] > RANK:
        return None
    return (None,) * length[0]


def _expanded(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Shape:
    return _broadcast_shapes(_shape(inputs[0]), _shape_from_input(inputs, attributes))


def _transposed(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Shape:
    shape = _shape(inputs[0])
    return None if shape is None else tuple(shape[axis] for axis in attributes["perm"])


def _einsum(_: Sequence[Any], attributes: Mapping[str, Any]) -> Shape:
    result = attributes["equation"].partition("->")[2].strip()
    return None if not result or "." in result else (None,) * len(result)


_RULES: dict[str, Rule] = {
    "Conv": _convolved, "MatMul": _product, "Gemm": _gemm, "Concat": _concat, "Gather": _gathered,
    "GatherND": _gathered_nd, "Slice": _slice, "Reshape": _shape_from_input, "Expand": _expanded,
    "Transpose": _transposed, "Einsum": _einsum, "ArgMax": _reduced, "ArgMin": _reduced,
    "GatherElements": lambda inputs, _: _shape(inputs[1]),
    "Flatten": lambda *_: (None, None),
    "Range": lambda *_: (None,),
}  # fmt: skip
for _name in (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "BitwiseNot",
    "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh", "CumSum", "Elu", "Erf", "Exp", "Floor", "Gelu",
    "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "IsInf", "IsNaN", "LRN",
    "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "Mish", "Neg", "Not", "Reciprocal",
    "Relu", "Round", "ScatterElements", "ScatterND", "Selu", "Shrink", "Sigmoid", "Sign", "Sin",
    "Sinh", "Softmax", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "Trilu",
):  # fmt: skip
    _RULES[_name] = _same
for _name in (
    "Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater",
    "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Or", "PRelu", "Pow",
    "Sub", "Sum", "Where", "Xor",
):  # fmt: skip
    _RULES[_name] = _broadcast
for _name in ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"):
    _RULES[_name] = _spatial
for _name in (
    "Compress", "ConvTranspose", "DepthToSpace", "GridSample", "Pad", "Resize", "SpaceToDepth",
    "Split", "Tile", "TopK",
):  # fmt: skip
    _RULES[_name] = _rank_only
for _name in ("L1", "L2", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"):
    _RULES[f"Reduce{_name}"] = _reduced
