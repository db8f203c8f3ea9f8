"""1-D convolutions, and what is between them -> 2-D ones of images that are one row high.

ONNX Runtime has its own layout, and fuses activations and sums, only for 2-D convolutions. Values
between two of the nodes stay images; others become one and cease to be one by Unsqueeze and
Squeeze, which copy nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, helper

from engine_cpu.prepare.kind import attribute
from engine_cpu.rewrites import leaky_relu
from engine_cpu.rewrites.graph import Graph, Replacement, node
from engine_cpu.tensors import Array

REASON = "1-D convolutions, and what is between them, as 2-D ones"

_UNARY = ("Clip", "Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Identity")
_BINARY = ("Add", "Mul")
_POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
_AXES: dict[str, Any] = {"kernel_shape": [1], "strides": [1], "dilations": [1], "pads": [0, 0]}


def replace_all(graph: Graph, reason: str) -> None:
    """Replace all 1-D convolutions of a graph, and what can be between them."""
    if graph.opset < 7 or not any(_weights(graph, i) is not None for i in range(len(graph.nodes))):
        return
    images: dict[str, str] = {}  # values of nodes here, and their names as images
    found: dict[int, NodeProto] = {}
    for index, old in enumerate(graph.nodes):
        if not graph.are_free([index]):
            continue
        new = _convolution(graph, index) or _between(graph, index, images)
        if new is not None:
            images[old.output[0]] = graph.free_name()
            found[index] = new
    axes = graph.add(np.array([2], np.int64)) if graph.opset >= 13 else ""
    outside: dict[str, str] = {}  # values from elsewhere that are images by now
    for index, new in found.items():
        made: list[NodeProto] = []
        for place, name in enumerate(new.input):
            if name in images:
                new.input[place] = images[name]
            elif _is_value(graph, index, place):
                if name not in outside:
                    outside[name] = graph.free_name()
                    made.append(_reshaped("Unsqueeze", name, outside[name], axes))
                new.input[place] = outside[name]
        out = graph.nodes[index].output[0]
        new.output[0] = images[out]
        made.append(new)
        if out in graph.outputs or not found.keys() >= {*graph.readers(out)}:
            made.append(_reshaped("Squeeze", images[out], out, axes))
        graph.put(Replacement([index], made), reason)


def _reshaped(operator: str, x: str, out: str, axes: str) -> NodeProto:
    return node(operator, [x, axes], out) if axes else node(operator, [x], out, axes=[2])


def _weights(graph: Graph, index: int) -> Array | None:
    """Return the constant weights of a 1-D convolution; None for other nodes."""
    if not graph.is_a(index, "Conv"):
        return None
    weights = graph.floats(graph.nodes[index].input[1])
    return weights if weights is not None and weights.ndim == 3 and weights.size else None


def _convolution(graph: Graph, index: int) -> NodeProto | None:
    weights = _weights(graph, index)
    if weights is None:
        return None
    old = graph.nodes[index]
    shape = graph.shape(old.input[0])
    if shape is None or len(shape) != 3:
        return None
    # The kernel for images does not check this, and would read beyond its input.
    if shape[1] != weights.shape[1] * (attribute(old, "group") or 1):
        return None
    new = _copied(old)
    new.input[1] = graph.add(weights[:, :, None])
    return new


def _between(graph: Graph, index: int, images: dict[str, str]) -> NodeProto | None:
    """Return a node of images for one that reads some; None where it has to stay."""
    old = graph.nodes[index]
    if not any(name in images for name in old.input) or len(old.output) != 1:
        return None
    if graph.is_a(index, *_UNARY, *_POOLS):
        return _copied(old)
    if graph.is_a(index, "BatchNormalization") and graph.opset >= 9:
        return _copied(old)
    if graph.is_a(index, "PRelu"):
        replacement = leaky_relu.replace(graph, index)
        return None if replacement is None else _copied(replacement.new[0])
    if graph.is_a(index, *_BINARY):
        new = _copied(old)
        for place, name in enumerate(old.input):
            array = graph.floats(name)
            shape = graph.shape(name)
            if array is not None and array.ndim <= 3:
                if array.ndim > 1:
                    new.input[place] = graph.add(np.expand_dims(array, -2))
            elif name not in images and (shape is None or len(shape) != 3):
                return None
        return new
    return None


def _is_value(graph: Graph, index: int, place: int) -> bool:
    """Return True for an input that is a sequence, not a constant beside it."""
    old = graph.nodes[index]
    if graph.is_a(index, *_BINARY):
        return graph.floats(old.input[place]) is None
    return place == 0


def _copied(old: NodeProto) -> NodeProto:
    """Return a node of images for a node of sequences, of the same inputs and outputs."""
    new = NodeProto()
    new.CopyFrom(old)
    new.ClearField("name")
    for item in new.attribute:
        if item.name in _AXES:
            given = list(item.ints)
            row = _AXES[item.name]
            both = [0, given[0], 0, given[1]] if item.name == "pads" else [*row, *given]
            item.CopyFrom(helper.make_attribute(item.name, both))
    return new
