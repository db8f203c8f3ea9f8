"""x * (1 + erf(x / sqrt(2))) / 2 in the orders that ONNX Runtime does not know -> Gelu.

torch's newer exporter writes 0.5 * x first, and x * 0.7071 for the division. ONNX Runtime's own
fusion takes only the other order.
"""

from __future__ import annotations

import numpy as np

from engine_cpu.rewrites.graph import Graph, Replacement, node

REASON = "x * (1 + erf(x / sqrt(2))) / 2 as Gelu"

_CLOSE = 1e-6  # relative: sqrt(2) as tools round it


def replace(graph: Graph, index: int) -> Replacement | None:
    """Return Gelu for an Erf that is part of the pattern."""
    erf = graph.nodes[index]
    scaled = graph.maker(erf.input[0])
    if graph.opset < 9 or scaled is None or graph.only_reader(erf.input[0]) != index:
        return None
    x = _unscaled(graph, scaled)
    add = graph.only_reader(erf.output[0])
    if x is None or not graph.is_float(x) or add is None or not graph.is_a(add, "Add"):
        return None
    one = graph.number_beside(add, erf.output[0])
    if one is None or one[1] != 1:
        return None
    old = [scaled, index, add]
    is_half = has_x = False
    while not (is_half and has_x):
        name = graph.nodes[old[-1]].output[0]
        product = graph.only_reader(name)
        if product is None or not graph.is_a(product, "Mul"):
            return None
        factor = graph.number_beside(product, name)
        other = next((text for text in graph.nodes[product].input if text != name), name)
        if factor is not None and factor[1] == 0.5 and not is_half:
            is_half = True
        elif other == x and not has_x:
            has_x = True
        elif not (is_half or has_x) and (half := _half(graph, other, x, product)) is not None:
            is_half = has_x = True
            old.append(half)
        else:
            return None
        old.append(product)
    out = graph.nodes[old[-1]].output[0]
    return Replacement(old, [node("Gelu", [x], out, domain="com.microsoft")])


def _unscaled(graph: Graph, index: int) -> str | None:
    """Return what a node divides by the square root of 2."""
    found = graph.number_beside(index, None)
    if found is None:
        return None
    x, number = found
    if graph.is_a(index, "Div"):
        is_root = graph.nodes[index].input[0] == x and np.isclose(number, 2**0.5, _CLOSE, 0)
    else:
        is_root = graph.is_a(index, "Mul") and np.isclose(number, 2**-0.5, _CLOSE, 0)
    return x if is_root else None


def _half(graph: Graph, name: str, x: str, reader: int) -> int | None:
    """Return the node that makes x / 2 for one reader alone."""
    maker = graph.maker(name)
    if maker is None or not graph.is_a(maker, "Mul") or graph.only_reader(name) != reader:
        return None
    found = graph.number_beside(maker, x)
    return maker if found is not None and found[1] == 0.5 else None
