"""Operators that treat every element alike, with broadcasting."""

from __future__ import annotations

from collections.abc import Iterator

from engine.layouts.rules.op import Op, Way
from engine.layouts.states import PARTIAL, WHOLE, State
from engine.types import Dim, DType

NAMES = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift",
    "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil",
    "Celu", "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu",
    "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN",
    "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul",
    "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish",
    "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor", "BiasGelu", "FastGelu", "QuickGelu",
)  # fmt: skip

SUMS = {"Add", "Sum", "Sub"}
"""Linear in all inputs at once: terms of a sum in, terms of a sum out."""
LINEAR = {"Identity", "Neg"}
FLOATS = {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64}


def elementwise(op: Op) -> Iterator[Way]:
    """All inputs divided as the output is; an input that is broadcast along the axis is whole."""
    target = op.shape(op.outputs[0])
    if target is None:
        return
    for state in op.states(op.outputs[0]):
        wanted = [aligned(op, name, state, len(target), target[state.axis]) for name in op.inputs]
        known = [one for one in wanted if one is not None]
        if len(known) == len(wanted) and any(one.is_shard for one in known):
            yield Way(tuple(known), (state,))
    kind = op.node.op_type
    if kind in SUMS or kind in LINEAR:
        yield Way((PARTIAL,) * len(op.inputs), (PARTIAL,), cost=1.0)
    elif kind == "Mul":
        yield Way((PARTIAL, WHOLE), (PARTIAL,), cost=1.0)
        yield Way((WHOLE, PARTIAL), (PARTIAL,), cost=1.0)
    elif kind == "Div" and op.model.dtype(op.outputs[0]) in FLOATS:  # of integers it rounds
        yield Way((PARTIAL, WHOLE), (PARTIAL,), cost=1.0)


def aligned(op: Op, name: str, state: State, rank: int, size: object) -> State | None:
    """Return the state of an input that is broadcast to a divided output; None for not known."""
    if not name:
        return WHOLE
    shape = op.shape(name)
    if shape is None:
        return None
    axis = state.axis - (rank - len(shape))
    if axis < 0 or shape[axis] == 1:
        return WHOLE
    return state.on(axis) if shape[axis] == size else None


def quantized(op: Op) -> Iterator[Way]:
    """QuantizeLinear and DequantizeLinear: scales go with the axis that they are for."""
    shape, scale = op.shape(op.inputs[0]), op.shape(op.input(1))
    if shape is None or scale is None:
        return
    if op.attribute("block_size", 0):
        yield from _in_blocks(op, shape, scale, int(op.attribute("block_size")))
        return
    axis = op.axis(1, len(shape)) if len(scale) == 1 and scale != (1,) else -1
    for state in op.states(op.outputs[0]):
        of_scale = state.on(0) if state.axis == axis else WHOLE
        yield op.way({0: state, 1: of_scale, 2: of_scale}, {0: state})


def _in_blocks(op: Op, shape: tuple[Dim, ...], scale: tuple[Dim, ...], size: int) -> Iterator[Way]:
    """A scale for each block along one axis: that is divided between blocks."""
    axis = op.axis(1, len(shape))
    if len(scale) != len(shape):
        return
    for state in op.states(op.outputs[0]):
        if state.axis != axis and scale[state.axis] == shape[state.axis]:
            yield op.way({0: state, 1: state, 2: state}, {0: state})
    blocks = scale[axis]
    if not isinstance(blocks, int) or shape[axis] != blocks * size:
        return
    own, of_scale = op.division(axis, blocks * size, unit=size), op.division(axis, blocks)
    if own is not None and of_scale is not None:
        yield op.way({0: own, 1: of_scale, 2: of_scale}, {0: own})


def dropout(op: Op) -> Iterator[Way]:
    """Dropout as inference has it: it gives what it gets."""
    if op.version >= 12 and op.input(2) and not (op.value(2) is not None and not op.value(2)):
        return
    for state in op.states(op.outputs[0]):
        yield op.way({0: state}, {0: state, 1: state})
