"""Dequantization of weights along the axis that a product sums over, written as arithmetic.

onnxruntime (1.32 and before) makes an integer product of MatMul, Gemm or Conv and the
DequantizeLinear before it, and takes scales of a weight's rows for those of its columns. Where
there are as many of one as of the other, the result is wrong; else the product is refused, or left
alone. A rank's part of a weight can be square where the whole is not, and what kept the whole from
that fusion (a QuantizeLinear behind it) can be on the other side of an all-reduce.

Cast, Sub and Mul make the same bits, and are folded when a rank's model is loaded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from engine.sharding.slicing.program import Writer
from engine.types import DType

_DEQUANTIZE = "DequantizeLinear"


def write_as_arithmetic(writer: Writer) -> None:
    """Replace those nodes of a program that fusions would take for others."""
    nodes = writer.program.nodes
    makers = {name: node for node in nodes for name in node.output}
    found = {}
    for node in nodes:
        weights = makers.get(node.input[1]) if len(node.input) > 1 else None
        x = makers.get(node.input[0]) if node.input else None
        if (
            weights is not None
            and weights.op_type == _DEQUANTIZE
            and x is not None
            and x.op_type == _DEQUANTIZE
            and _is_along_sum(writer, node, weights)
        ):
            found[id(weights)] = weights
    nodes[:] = [
        own
        for node in nodes
        for own in (_arithmetic(writer, node) if id(node) in found else [node])
    ]


def _is_along_sum(writer: Writer, node: NodeProto, weights: NodeProto) -> bool:
    """Return whether a product sums over the axis along which its weights have scales."""
    known = writer.program.known
    array, scale = (known.get(name) for name in weights.input[:2])
    if array is None or scale is None or array.shape is None or scale.shape is None:
        return False
    if len(scale.shape) != 1 or scale.shape == (1,) or scale.dtype is not DType.FLOAT32:
        return False
    rank = len(array.shape)
    axis = _integer(weights, "axis", 1) % rank
    if node.op_type == "MatMul":
        return rank == 2 and axis == 0
    if node.op_type == "Gemm":
        return axis == (1 if _integer(node, "transB", 0) else 0)
    return node.op_type == "Conv" and axis == 1


def _arithmetic(writer: Writer, node: NodeProto) -> list[NodeProto]:
    known = writer.program.known
    array = known[node.input[0]]
    assert array.shape is not None
    along = [1] * len(array.shape)
    along[_integer(node, "axis", 1) % len(along)] = -1
    sizes = writer.constant(np.array(along, np.int64))
    made: list[NodeProto] = []

    def add(op_type: str, *inputs: str, **attributes: Any) -> str:
        name = writer.fresh(f"{node.name}/{op_type}")
        made.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    value = add("Cast", node.input[0], to=TensorProto.FLOAT)
    if len(node.input) > 2 and node.input[2]:
        zero = add("Cast", node.input[2], to=TensorProto.FLOAT)
        value = add("Sub", value, add("Reshape", zero, sizes))
    add("Mul", value, add("Reshape", node.input[1], sizes))
    made[-1].output[0] = node.output[0]
    return made


def _integer(node: NodeProto, name: str, default: int) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), default)
