"""PRelu with one slope for all -> LeakyRelu, which ONNX Runtime fuses into the Conv before it.

Bit-equal: both kernels multiply what is below zero by the slope, and give the rest as it is.
"""

from __future__ import annotations

from engine_cpu.rewrites.graph import Graph, Replacement, node

REASON = "PRelu with one slope as LeakyRelu"


def replace(graph: Graph, index: int) -> Replacement | None:
    """Return LeakyRelu for a PRelu whose slope is a finite float32 constant, the same for all."""
    old = graph.nodes[index]
    slopes = graph.floats(old.input[1])
    if graph.opset < 7 or slopes is None or not slopes.size:
        return None
    if not (graph.is_float(old.input[0]) and graph.keeps_shape(old.input[0], slopes)):
        return None
    bits = slopes.reshape(-1).view("u4")
    if (bits != bits[0]).any() or not abs(slopes.reshape(-1)[0]) < float("inf"):
        return None
    slope = float(slopes.reshape(-1)[0])
    return Replacement([index], [node("LeakyRelu", [old.input[0]], old.output[0], alpha=slope)])
