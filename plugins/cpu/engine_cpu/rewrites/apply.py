"""All patterns of a mode on one model. Needs onnx: imported only for models with candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from engine.types import ModelSource
from engine_cpu.prepare import read, relocate
from engine_cpu.prepared import NOTHING, Prepared
from engine_cpu.rewrites import (
    INPUTS,
    Pattern,
    affine,
    conv1d,
    gelu,
    hard_swish,
    inputs,
    leaky_relu,
    prelu,
    scales,
)
from engine_cpu.rewrites.graph import Graph, Replacement

_REPLACE: Mapping[str, tuple[Callable[[Graph, int], Replacement | None], str]] = {
    "affine": (affine.replace, affine.REASON),
    "gelu": (gelu.replace, gelu.REASON),
    "hard_swish": (hard_swish.replace, hard_swish.REASON),
    "leaky_relu": (leaky_relu.replace, leaky_relu.REASON),
    "prelu": (prelu.replace, prelu.REASON),
    "scales": (scales.replace, scales.REASON),
}


def rewrite(source: ModelSource, patterns: Sequence[Pattern]) -> Prepared:
    """Return a model with these patterns rewritten; nothing where none of them is in it."""
    model = read(source)
    if model.functions or not model.opset_import:
        return NOTHING
    assert source.graph is not None
    weights: set[str] = set()
    is_old = model.ir_version < inputs.LISTS  # then they are constants though they are listed
    if INPUTS in patterns or is_old:
        weights = inputs.make_constants(model, {spec.name for spec in source.graph.inputs})
    if is_old:
        model.ir_version, weights = inputs.LISTS, set()
    graph = Graph(model, source)
    for index, node in enumerate(graph.nodes):
        if not weights.isdisjoint(node.input):
            graph.note(index, f"rewritten: {inputs.REASON}")
    for pattern in patterns:
        if pattern is INPUTS:
            continue
        if pattern.name == "conv1d":
            conv1d.replace_all(graph, f"rewritten: {conv1d.REASON}")
            continue
        replace, reason = _REPLACE[pattern.name]
        for index in range(len(graph.nodes)):
            if graph.is_a(index, *pattern.operators) and graph.are_free([index]):
                replacement = replace(graph, index)
                if replacement is not None and graph.are_free(replacement.old):
                    graph.put(replacement, f"rewritten: {reason}")
    if not graph.leads:
        return NOTHING
    graph.write()
    folder = relocate(model, source)
    data = model.SerializeToString()
    return Prepared(data, folder, rewritten=graph.reasons, leads=graph.leads)
