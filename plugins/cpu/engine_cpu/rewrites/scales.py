"""Constant scales and shifts of an image that are beside no Conv -> a depthwise Conv.

It keeps ONNX Runtime's layout of convolutions, which products with one number end. Where the layout
has ended anyway, it costs more than it saves: 0.74 in one model, 1.11 in another.
"""

from __future__ import annotations

import numpy as np

from engine_cpu.rewrites.affine import Step, is_fit, step_of
from engine_cpu.rewrites.graph import Graph, Replacement, node

REASON = "scales and shifts as a depthwise Conv"

_BLOCK = 8  # channels of an image in ONNX Runtime's layout


def replace(graph: Graph, index: int) -> Replacement | None:
    """Return a Conv for a node that scales or shifts an image, and those after it that do."""
    if graph.opset < 7:
        return None
    old, steps = [index], list[Step]()
    for x in graph.nodes[index].input:
        shape = graph.shape(x)
        if graph.floats(x) is not None or shape is None or len(shape) != 4:
            continue
        channels = shape[1]
        if not channels or channels % _BLOCK or not graph.is_float(x):
            return None
        step = step_of(graph, index, channels, None)
        if step is None or step.x != x or not graph.has_pixels(x):
            return None
        steps.append(step)
        break
    if not steps:
        return None
    channels = len(steps[0].scale)
    while True:
        name = graph.nodes[old[-1]].output[0]
        reader = graph.only_reader(name)
        step = None
        if reader is not None and graph.are_free([reader]):
            step = step_of(graph, reader, channels, name)
        if reader is None or step is None:
            break
        steps.append(step)
        old.append(reader)
    scale, shift = np.ones(channels), np.zeros(channels)
    for step in steps:
        scale, shift = step.scale * scale, step.scale * shift + step.shift
    if not (is_fit(scale) and is_fit(shift)):
        return None
    weights = graph.add(scale.astype(np.float32).reshape(channels, 1, 1, 1))
    bias = graph.add(shift.astype(np.float32))
    out = graph.nodes[old[-1]].output[0]
    inputs = [steps[0].x, weights, bias]
    return Replacement(old, [node("Conv", inputs, out, group=channels, kernel_shape=[1, 1])])
