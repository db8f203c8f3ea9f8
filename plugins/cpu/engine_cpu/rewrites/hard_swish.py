"""x * clip(x + 3, 0, 6) / 6 -> x * HardSigmoid(x), as HardSwish is written before opset 14.

ONNX Runtime fuses HardSigmoid, and its product with x, into a Conv before them. Without x, clip(x +
3, 0, 6) / 6 -> HardSigmoid. The division may be a product with 1/6, and come before the product
with x. Above 5e37 the original overflows, and this does not.
"""

from __future__ import annotations

import numpy as np

from engine_cpu.prepare.kind import attribute
from engine_cpu.rewrites.graph import Graph, Replacement, node

REASON = "clip(x + 3, 0, 6) / 6 as HardSigmoid"


def replace(graph: Graph, index: int) -> Replacement | None:
    """Return HardSigmoid for a Clip that is part of the pattern."""
    if graph.opset < 7 or _limits(graph, index) != (0, 6):
        return None
    clip = graph.nodes[index]
    add = graph.maker(clip.input[0])
    if add is None or not graph.is_a(add, "Add") or graph.only_reader(clip.input[0]) != index:
        return None
    three = graph.number_beside(add, None)
    if three is None or three[1] != 3:
        return None
    x = three[0]
    old = [add, index]
    reader = graph.only_reader(clip.output[0])
    is_scaled = is_swish = False
    while reader is not None and not (is_scaled and is_swish):
        name = graph.nodes[old[-1]].output[0]
        if not is_scaled and _is_sixth(graph, reader, name):
            is_scaled = True
        elif not is_swish and graph.is_a(reader, "Mul") and x in graph.nodes[reader].input:
            is_swish = True
        else:
            break
        old.append(reader)
        reader = graph.only_reader(graph.nodes[reader].output[0])
    if not is_scaled:
        return None
    out = graph.nodes[old[-1]].output[0]
    gate = graph.free_name() if is_swish else out
    new = [node("HardSigmoid", [x], gate, alpha=1 / 6, beta=0.5)]
    return Replacement(old, [*new, node("Mul", [x, gate], out)] if is_swish else new)


def _limits(graph: Graph, index: int) -> tuple[object, object]:
    clip = graph.nodes[index]
    if graph.opset < 11:
        return attribute(clip, "min"), attribute(clip, "max")
    names = [*clip.input[1:], "", ""][:2]
    arrays = [graph.floats(name) for name in names]
    low, high = (None if array is None or array.ndim else array.item() for array in arrays)
    return low, high


def _is_sixth(graph: Graph, index: int, name: str) -> bool:
    """Return True for a node that divides a value by 6."""
    found = graph.number_beside(index, name)
    if found is None:
        return False
    if graph.is_a(index, "Div"):
        return bool(found[1] == 6) and graph.nodes[index].input[0] == name
    return graph.is_a(index, "Mul") and bool(found[1] == np.float32(1 / 6))
