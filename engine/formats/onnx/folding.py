"""Work that a runtime does while it loads a model: nodes that read nothing but constants.

Runtimes fold them into constants, whatever that takes: a few lines of a file can ask for hours or
terabytes. What it takes is estimated here from shapes, as far as the file says them, so that a
backend can leave folding out and run such nodes in predict, where deadlines hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

from engine.formats.onnx import limits
from engine.formats.onnx.reading import DTYPES
from engine.formats.onnx.scope import Scope
from engine.formats.onnx.tensor import read_ints
from engine.formats.protobuf import Budget
from engine.types import NodeInfo

Constant: TypeAlias = tuple[tuple[int, ...], int]
"""Shape of a constant, and the bits of an element."""


def folded(
    node: NodeInfo, inputs: Sequence[Constant], scope: Scope, budget: Budget
) -> tuple[Constant, int]:
    """Return what a node makes of constants, and the cost: operations, and 10 for each byte.

    inputs: those that are there, in order. The result of an operator that is not known here is
    taken for the inputs broadcast to one shape.
    """
    bits = max((bits for _, bits in inputs), default=32)
    shapes = [shape for shape, _ in inputs]
    operations = 0
    op_type = node.op_type
    if op_type == "MatMul" or op_type == "Gemm":
        shape, operations = _product(shapes[0], shapes[1]) if len(shapes) > 1 else ((), 0)
    elif op_type in ("Conv", "ConvTranspose", "Einsum") and len(shapes) > 1:
        shape = _broadcast(shapes)
        operations = prod(map(prod, shapes[:2]))
    elif op_type in ("ConstantOfShape", "Expand", "Tile", "Reshape"):
        shape = _of_ints(node, shapes, scope, budget)
    elif op_type == "Concat":
        shape = (sum(map(prod, shapes)),)
    elif op_type == "Transpose":
        order = node.attributes.get("perm")
        shape = shapes[0][::-1]
        if isinstance(order, tuple) and sorted(map(str, order)) == sorted(
            map(str, range(len(shapes[0])))
        ):
            shape = tuple(shapes[0][int(axis)] for axis in order)
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
    elements = prod(shape)
    cost = operations + elements + 10 * (elements * bits // 8)
    return (shape, bits), min(cost, limits.ELEMENTS)


def _product(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the shape of a matrix product, and its multiplications and additions."""
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else ()
    shape = (*_broadcast([left[:-2], right[:-2]]), *rows, *columns)
    return shape, 2 * prod(shape) * (left[-1] if left else 1)


def _of_ints(
    node: NodeInfo, shapes: Sequence[tuple[int, ...]], scope: Scope, budget: Budget
) -> tuple[int, ...]:
    """Return the shape that an integer input asks for; one of few elements where it is unknown."""
    position = 0 if node.op_type == "ConstantOfShape" else 1
    name = node.inputs[position] if position < len(node.inputs) else ""
    constant = scope.constant(name)
    asked = read_ints(constant, budget) if constant is not None else None
    given = shapes[0] if position else ()
    if asked is None or any(size < 0 for size in asked):
        return (prod(given),)
    if node.op_type == "Tile":
        return (prod(given) * prod(asked),)
    if node.op_type == "Expand":
        return _broadcast([given, tuple(asked)])
    if node.op_type == "Reshape" and prod(asked) != prod(given):
        return (prod(given),)
    return tuple(asked)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that these are broadcast to; the largest dims where they do not fit."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(0 if 0 in dims else max(dims) for dims in zip(*padded, strict=True))
