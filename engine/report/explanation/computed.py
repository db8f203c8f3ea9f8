"""Values that follow from constants and sizes: how often a loop runs, which branch is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, helper
from onnx.reference import ReferenceEvaluator

from engine.formats.onnx.graphs import RANDOM, subgraphs
from engine.host.interrupts import pass_interrupt
from engine.report.explanation.tensors import Tensors
from engine.tensor.description import Array

_SIZES = frozenset(("Shape", "Size"))
_MOST_NODES = 200


def value_of(name: str, tensors: Tensors) -> Array | None:
    """Return a count, sizes or a condition of a graph; None where the value depends on data."""
    if name not in tensors.values:
        tensors.values[name] = _computed(name, tensors) if tensors.is_small(name) else None
    return tensors.values[name]


def _computed(name: str, tensors: Tensors) -> Array | None:
    """Return a value as onnx's reference computes it."""
    graph, feeds = GraphProto(name="values"), dict[str, Any]()
    pending, places, seen = [name], set[int](), set[str]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in tensors.constants:
            graph.initializer.append(tensors.constants[value])
            continue
        place = tensors.makers.get(value)
        if place is None or len(places) > _MOST_NODES or not _is_foldable(tensors, place):
            return None
        places.add(place)
        if tensors.nodes[place].op_type not in _SIZES:
            pending += filter(None, tensors.nodes[place].input)
    for place in sorted(places):
        node = graph.node.add()
        node.CopyFrom(tensors.nodes[place])
        if node.op_type in _SIZES:
            shape = tensors.sizes(node.input[0])
            if shape is None:
                return None
            node.input[0] = f"{node.input[0]}/sized"
            feeds[node.input[0]] = np.broadcast_to(np.zeros((), np.bool_), shape)
    for given in feeds:
        graph.input.add(name=given)
    graph.output.add(name=name)
    opsets = [helper.make_opsetid(domain, version) for domain, version in tensors.opsets.items()]
    model = ModelProto(ir_version=10, graph=graph, opset_import=opsets)
    try:
        [found] = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:  # operators raise whatever numpy raises
        pass_interrupt(error)
        return None
    return np.asarray(found)


def _is_foldable(tensors: Tensors, place: int) -> bool:
    """Return whether a node computes little, the same each time, from what its graph has."""
    node = tensors.nodes[place]
    return (
        node.domain in ("", "ai.onnx")
        and node.op_type not in RANDOM
        and not any(subgraphs(node))
        and all(map(tensors.is_small, filter(None, node.output)))
    )
