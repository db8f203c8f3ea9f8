"""Quantization with scales from the file; those that are computed from all of a tensor mix."""

from __future__ import annotations

from engine.layouts.batch.node import Node, require
from engine.layouts.batch.rules.elementwise import broadcast
from engine.layouts.batch.rules.shapes import moved
from engine.layouts.batch.values import Mixes, Value


def linear(node: Node) -> list[Value]:
    """QuantizeLinear and DequantizeLinear: scales for all, or along another axis."""
    value = node.input(0)
    node.require_whole(1, 2)
    scale = node.input(1)
    if value.is_divided:
        if scale.rank == 1 and scale.dims != (1,):
            require(node.axis(1, value.rank) != value.axis, "its scales are along the batch")
        elif scale.rank > 1:
            require(scale.dims[value.axis] == 1, "its scales are along the batch")
    return [moved(value, value.dims, value.axis)]


def dynamic(node: Node) -> list[Value]:
    """Scales from the smallest and largest of all elements."""
    raise Mixes("its scale is computed from all samples")


def binary(node: Node) -> list[Value]:
    """QLinearAdd and the like of com.microsoft: two tensors, each with a scale and a zero point."""
    node.require_whole(1, 2, 4, 5, 6, 7)
    _require_one(node, 1, 2, 4, 5, 6, 7)
    return [broadcast([node.input(0), node.input(3)], node.symbols)]


def unary(node: Node) -> list[Value]:
    """QLinearSigmoid and the like of com.microsoft."""
    node.require_whole(*range(1, len(node.inputs)))
    _require_one(node, *range(1, len(node.inputs)))
    value = node.input(0)
    return [moved(value, value.dims, value.axis)]


def softmax(node: Node) -> list[Value]:
    """QLinearSoftmax of com.microsoft."""
    node.require_whole(*range(1, len(node.inputs)))
    value = node.input(0)
    require(value.axis != node.axis(-1, value.rank), "it works along the batch")
    require(int(node.attributes.get("opset", 13)) >= 13, "it joins axes")
    return [moved(value, value.dims, value.axis)]


def global_pool(node: Node) -> list[Value]:
    """QLinearGlobalAveragePool of com.microsoft, channels first."""
    node.require_whole(*range(1, len(node.inputs)))
    value = node.input(0)
    require(value.axis <= 0 and not node.attributes.get("channels_last", 0), "its layout is other")
    return [moved(value, (*value.dims[:2], *(1 for _ in value.dims[2:])), value.axis)]


def _require_one(node: Node, *indices: int) -> None:
    for index in indices:
        value = node.maybe(index)
        if value is not None:
            require(all(size == 1 for size in value.dims), "its scales are many")
