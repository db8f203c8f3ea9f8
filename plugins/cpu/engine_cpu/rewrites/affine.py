"""Constant scales and shifts beside a Conv -> part of its weights and bias.

ONNX Runtime does so for a product or a sum with [1, C, 1, 1] right after a Conv. A product with one
number, as tools for learned scales write it, it computes by itself, in another layout than the
convolutions'. Here chains of Mul, Add, Sub and Div go into the Conv before or after them. A shift
goes into a Conv after it only where that has no padding, which is not shifted, and where it is so
small that the Conv's sums keep their digits. A scale beside no
Conv is left to scales.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from onnx import NodeProto

from engine_cpu.prepare.kind import attribute
from engine_cpu.rewrites.graph import Graph, Replacement
from engine_cpu.tensors import Array

REASON = "scales and shifts as part of the Conv beside them"

_OPERATORS = ("Mul", "Add", "Sub", "Div")
_SMALLEST, _LARGEST = 1e-30, 1e30  # beyond, products of weights lose digits
# The largest shift before a Conv: what a larger one leaves of large inputs is mostly rounding
# where the Conv's sums take it away.
_FARTHEST = 8.0


class Step(NamedTuple):
    """A node that computes scale * x + shift for each channel.

    is_bias: of its own number for each, which ONNX Runtime puts into a Conv before it by itself.
    """

    x: str
    scale: Array
    shift: Array
    is_bias: bool = False


def replace(graph: Graph, index: int) -> Replacement | None:
    """Return a Conv with what is before and after it, where that is constant."""
    conv = graph.nodes[index]
    weights = graph.floats(conv.input[1])
    if graph.opset < 7 or weights is None or weights.ndim != 4 or not weights.size:
        return None
    has_bias = len(conv.input) > 2 and bool(conv.input[2])
    given = graph.floats(conv.input[2]) if has_bias else np.zeros(len(weights), np.float32)
    group = attribute(conv, "group") or 1
    if given is None or given.shape != (len(weights),) or len(weights) % group:
        return None
    values, bias = weights.astype(np.float64), given.astype(np.float64)
    before, x, steps = _before(graph, index, weights.shape[1] * group)
    for step in steps:  # from the Conv backwards
        channels = (group, 1, weights.shape[1], 1, 1)
        grouped = values.reshape(group, -1, *weights.shape[1:])
        bias = bias + (grouped * step.shift.reshape(channels)).sum((2, 3, 4)).reshape(-1)
        values = (grouped * step.scale.reshape(channels)).reshape(weights.shape)
    after, steps = _after(graph, index, len(weights))
    for step in steps:
        values = values * step.scale[:, None, None, None]
        bias = bias * step.scale + step.shift
    if not before and all(step.is_bias for step in steps):
        return None
    if not (is_fit(values) and is_fit(bias)):
        return None
    new = NodeProto()
    new.CopyFrom(conv)
    names = [graph.add(array.astype(np.float32)) for array in (values, bias)]
    new.input[:] = [x, *names]
    old = [*before, index, *after]
    new.output[0] = graph.nodes[old[-1]].output[0]
    return Replacement(old, [new])


def is_fit(values: Array) -> bool:
    """Return True for numbers of which float32 keeps the digits."""
    sizes = np.abs(values[values != 0])
    return bool(np.isfinite(values).all() and ((sizes > _SMALLEST) & (sizes < _LARGEST)).all())


def _before(graph: Graph, index: int, channels: int) -> tuple[list[int], str, list[Step]]:
    """Return the nodes before a Conv that go into it, in order, what they read, and their steps."""
    conv = graph.nodes[index]
    is_padded = any(attribute(conv, "pads") or ()) or attribute(conv, "auto_pad") not in (
        None, b"NOTSET", b"VALID",
    )  # fmt: skip
    found: list[int] = []
    steps: list[Step] = []
    scale, shift = np.ones(channels), np.zeros(channels)  # of all steps together
    name, reader = conv.input[0], index
    while graph.only_reader(name) == reader:
        maker = graph.maker(name)
        if maker is None or not graph.are_free([maker]):
            break
        if graph.is_a(maker, "Identity"):
            name = graph.nodes[maker].input[0]
        else:
            step = step_of(graph, maker, channels, None)
            if step is None or (is_padded and step.shift.any()) or _ends_gelu(graph, step):
                break
            shift, scale = shift + scale * step.shift, scale * step.scale
            if not (np.abs(shift) <= _FARTHEST).all():
                break
            steps.append(step)
            name = step.x
        found.insert(0, maker)
        reader = maker
    while found and graph.is_a(found[0], "Identity"):
        name = graph.nodes[found.pop(0)].output[0]
    return found, name, steps


def _after(graph: Graph, index: int, channels: int) -> tuple[list[int], list[Step]]:
    """Return the nodes after a Conv that go into it, in order, and their steps."""
    found: list[int] = []
    steps: list[Step] = []
    name = graph.nodes[index].output[0]
    while (reader := graph.only_reader(name)) is not None and graph.are_free([reader]):
        if not graph.is_a(reader, "Identity"):
            step = step_of(graph, reader, channels, name)
            if step is None:
                break
            steps.append(step)
        found.append(reader)
        name = graph.nodes[reader].output[0]
    while found and graph.is_a(found[-1], "Identity"):
        found.pop()
    return found, steps


def _ends_gelu(graph: Graph, step: Step) -> bool:
    """Return True for half a product: ONNX Runtime may know it for the end of a Gelu."""
    return bool((step.scale == 0.5).all()) and graph.is_a(graph.maker(step.x), "Mul")


def step_of(graph: Graph, index: int, channels: int, name: str | None) -> Step | None:
    """Return what a node does to an image; None for any but a constant scale or shift.

    name: of the image, which a Conv makes; None for any of so many channels.
    """
    if not graph.is_a(index, *_OPERATORS):
        return None
    node = graph.nodes[index]
    for place, x in enumerate(node.input):
        array = graph.floats(node.input[1 - place])
        if array is None or x not in (name, None if name else x) or array.ndim > 4:
            continue
        if array.size != 1 and array.shape not in ((channels, 1, 1), (1, channels, 1, 1)):
            continue
        shape = graph.shape(x)
        if name is None and (shape is None or len(shape) != 4 or shape[1] != channels):
            continue
        step = _of(node.op_type, place, x, np.broadcast_to(array.reshape(-1), (channels,)))
        is_bias = node.op_type == "Add" and array.ndim >= 3 and array.size == channels
        return step and step._replace(is_bias=is_bias)
    return None


def _of(operator: str, place: int, x: str, given: Array) -> Step | None:
    """Return a step. place: of the image among the two inputs. given: for each channel."""
    value = given.astype(np.float64)
    one, zero = np.ones_like(value), np.zeros_like(value)
    if operator == "Mul":
        return Step(x, value, zero)
    if operator == "Add":
        return Step(x, one, value)
    if operator == "Sub":
        return Step(x, one, -value) if place == 0 else Step(x, -one, value)
    if place == 0 and value.all():
        return Step(x, one / value, zero)
    return None
