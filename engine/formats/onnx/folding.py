"""Work that a runtime does while it loads a model: nodes that read nothing but constants.

Runtimes fold them into constants, whatever that takes: a few lines of a file can ask for hours or
terabytes. The memory for it is estimated here from shapes, as far as the file says them. Of a model
that asks for more than others do, a backend leaves folding out and runs such nodes in predict. One
that asks for absurd amounts is refused: no input has a say in it, so it could never run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias

from engine.formats.onnx import limits
from engine.formats.onnx.reading import DTYPES
from engine.formats.onnx.small_values import Array
from engine.formats.onnx.work import Constant, Folded
from engine.types import NodeInfo

Values: TypeAlias = Callable[[str], Array | None]
"""Gives the elements of a small constant by name; None where they are not known."""


def folded(
    node: NodeInfo, inputs: Sequence[Constant], values: Values, fill_bits: int = 32
) -> Folded:
    """Return what a node makes of constants.

    inputs: those that are there, in order. fill_bits: of what ConstantOfShape fills with.
    The result of an operator that is not known here is taken for the inputs broadcast to one shape.
    """
    bits = max((bits for _, bits in inputs), default=32)
    shapes = [shape for shape, _ in inputs]
    operations = 0
    op_type = node.op_type
    if op_type == "MatMul" or op_type == "Gemm":
        shape, operations = _product(shapes[0], shapes[1]) if len(shapes) > 1 else ((), 0)
    elif op_type == "Conv" and len(shapes) > 1 and len(shapes[1]) > 2:
        shape = _convolved(node, shapes[0], shapes[1])
        operations = 2 * prod(shape) * prod(shapes[1][1:])
    elif op_type in ("Conv", "ConvTranspose", "Einsum") and len(shapes) > 1:
        shape = _broadcast(shapes)
        operations = prod(map(prod, shapes[:2]))
    elif op_type in ("ConstantOfShape", "Expand", "Tile", "Reshape"):
        shape = _of_ints(node, shapes, values)
    elif op_type in ("Range", "Pad", "OneHot", "Resize", "Upsample"):
        shape = _grown(node, shapes, values)
    elif op_type in ("RandomNormal", "RandomUniform"):
        dims = _attribute(node, "shape") or []
        shape = () if any(dim < 0 for dim in dims) else tuple(dims)
    elif op_type.startswith("Reduce") and len(shapes) == 1 and "axes" not in node.attributes:
        shape, operations = (), prod(shapes[0])
    elif op_type == "Concat":
        shape = _joined(node, shapes)
    elif op_type == "Unsqueeze" and shapes:
        shape = _unsqueezed(shapes[0], _attribute(node, "axes") or _ints(node, 1, values) or [])
    elif op_type == "Transpose":
        order = node.attributes.get("perm")
        shape = shapes[0][::-1]
        if isinstance(order, tuple) and sorted(map(str, order)) == sorted(
            map(str, range(len(shapes[0])))
        ):
            shape = tuple(shapes[0][int(axis)] for axis in order)
    elif op_type in _SHAPED_AS_FIRST and shapes:
        shape = shapes[0]
    elif op_type in ("Shape", "Size"):
        shape, bits = (limits.RANK,), 64
    elif op_type == "Gather" and len(shapes) > 1:
        data, indices = shapes[:2]
        shape = (prod(indices), prod(data) // max(min(data, default=1), 1))
    else:
        shape = _broadcast(shapes)
    if op_type == "Cast":
        number = node.attributes.get("to")
        dtype = DTYPES[number] if isinstance(number, int) and 0 < number < len(DTYPES) else None
        bits = dtype.bits if dtype is not None else bits
    elif op_type in _CLAIMS:
        bits = 8
    elif op_type == "ConstantOfShape":
        bits = fill_bits
    elif op_type in _OF_FIRST and inputs:
        bits = inputs[0][1]
    elements = prod(shape)
    nbytes = min(elements * bits // 8, limits.ELEMENTS)
    return Folded((shape, bits), min(operations + elements, limits.ELEMENTS), nbytes)


_SHAPED_AS_FIRST = frozenset(
    {
        # Their other inputs lie along one axis, or say where: nothing is broadcast.
        "QuantizeLinear", "DequantizeLinear", "BatchNormalization", "InstanceNormalization",
        "LayerNormalization", "GroupNormalization", "ScatterElements", "ScatterND",
    }
)  # fmt: skip

_OF_FIRST = frozenset(
    # Their other inputs are shapes and places: the elements are of the first one's type.
    ("Reshape", "Expand", "Tile", "Unsqueeze", "Squeeze", "Slice", "Gather", "Pad", "Resize")
)

_CLAIMS = frozenset(
    ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or")
)


def _product(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the shape of a matrix product, and its multiplications and additions."""
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else ()
    shape = (*_broadcast([left[:-2], right[:-2]]), *rows, *columns)
    return shape, 2 * prod(shape) * (left[-1] if left else 1)


def _convolved(node: NodeInfo, data: tuple[int, ...], weights: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a convolution of stride 1, a bound for others.

    Of data whose rank is not known, one axis of as many elements.
    """
    if len(data) != len(weights):
        return (prod(data) // max(weights[1], 1) * weights[0],)
    pads, spatial = _attribute(node, "pads") or [], len(data) - 2
    if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return (data[0], weights[0], *data[2:])  # SAME: as large as the data
    if len(pads) != 2 * spatial:
        pads = [0] * (2 * spatial)
    sizes = zip(data[2:], pads[:spatial], pads[spatial:], weights[2:], strict=True)
    kept = (max(0, dim + low + high - kernel + 1) for dim, low, high, kernel in sizes)
    return (data[0], weights[0], *kept)


def _joined(node: NodeInfo, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of a Concat; one axis of all elements where the shapes do not fit."""
    axis = node.attributes.get("axis")
    rank = len(shapes[0]) if shapes else 0
    if isinstance(axis, int) and -rank <= axis < rank:
        rest = {shape[: axis % rank] + shape[axis % rank + 1 :] for shape in shapes}
        if len(rest) == 1 and all(len(shape) == rank for shape in shapes):
            (others,) = rest
            whole = sum(shape[axis] for shape in shapes)
            return (*others[: axis % rank], whole, *others[axis % rank :])
    return (sum(map(prod, shapes)),)


def _unsqueezed(shape: tuple[int, ...], axes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape with axes of size 1 in the places that are named."""
    rank = len(shape) + len(axes)
    if rank > limits.RANK or len({axis % rank for axis in axes} if rank else ()) != len(axes):
        return shape
    rest, places = iter(shape), {axis % rank for axis in axes}
    return tuple(1 if place in places else next(rest) for place in range(rank))


def _of_ints(node: NodeInfo, shapes: Sequence[tuple[int, ...]], values: Values) -> tuple[int, ...]:
    """Return the shape that an integer input asks for; one of few elements where it is unknown."""
    position = 0 if node.op_type == "ConstantOfShape" else 1
    asked = _ints(node, position, values)
    given = shapes[0] if position else ()
    if asked is not None and node.op_type == "Reshape":
        asked = _reshaped(given, asked)
    if asked is None or any(size < 0 for size in asked):
        return (prod(given),)
    if node.op_type == "Tile":
        return (prod(given) * prod(asked),)
    if node.op_type == "Expand":
        return _broadcast([given, tuple(asked)])
    if node.op_type == "Reshape" and prod(asked) != prod(given):
        return (prod(given),)
    return tuple(asked)


def _reshaped(given: tuple[int, ...], asked: list[int]) -> list[int]:
    """Return the sizes that a Reshape asks for, with what 0 and -1 stand for."""
    sizes = [
        given[place] if size == 0 and place < len(given) else size
        for place, size in enumerate(asked)
    ]
    known = prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and known > 0:
        sizes[sizes.index(-1)] = prod(given) // known
    return sizes


def _grown(node: NodeInfo, shapes: Sequence[tuple[int, ...]], values: Values) -> tuple[int, ...]:
    """Return the shape of what numbers in an input let grow; that of the first where unknown."""
    given = shapes[0]
    if node.op_type == "Range":
        ends = [values(name) for name in node.inputs]
        if len(ends) == 3 and all(end is not None and end.size == 1 for end in ends):
            start, limit, step = (float(end.item()) for end in ends if end is not None)
            count = (limit - start) / step if step else 0.0
            return (int(max(0.0, min(count, float(limits.ELEMENTS)))),)
        return (1,)
    if node.op_type == "Pad":
        pads = _ints(node, 1, values) or _attribute(node, "pads")
        if pads is not None and len(pads) == 2 * len(given):
            both = zip(pads[: len(given)], pads[len(given) :], strict=True)
            pairs = zip(given, both, strict=True)
            return tuple(max(0, dim + low + high) for dim, (low, high) in pairs)
    elif node.op_type == "OneHot":
        if depth := _ints(node, 1, values):
            return (*given, max(0, depth[0]))
    else:
        sizes = _ints(node, 3, values)
        if sizes and len(sizes) == len(given):
            return tuple(max(0, size) for size in sizes)
        scales = (
            values(node.inputs[1 if node.op_type == "Upsample" else 2])
            if len(node.inputs) > (1 if node.op_type == "Upsample" else 2)
            else None
        )
        if scales is not None and scales.size == len(given):
            pairs_ = zip(given, scales.ravel().tolist(), strict=True)
            return tuple(int(min(max(0.0, dim * scale), 1e18)) for dim, scale in pairs_)
    return given


def _ints(node: NodeInfo, position: int, values: Values) -> list[int] | None:
    found = values(node.inputs[position]) if position < len(node.inputs) else None
    if found is None or found.dtype.kind not in "iu":
        return None
    return [int(value) for value in found.ravel()]


def _attribute(node: NodeInfo, name: str) -> list[int] | None:
    """Return an attribute's integers; None for one that is missing, or of another kind."""
    found = node.attributes.get(name)
    if not isinstance(found, tuple):
        return None
    numbers = [number for number in found if isinstance(number, int)]
    return numbers if len(numbers) == len(found) else None


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that these are broadcast to; the largest dims where they do not fit."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(0 if 0 in dims else max(dims) for dims in zip(*padded, strict=True))
