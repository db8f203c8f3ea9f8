"""Files that break a rule of ONNX and still say clearly what they mean, made to keep it.

Done after everything else has been checked, with the onnx package, so that every runtime gets the
same regular model: some take such files as they are, some do not.
"""

from __future__ import annotations

from collections.abc import MutableSequence

from onnx import GraphProto, ModelProto, NodeProto

from engine.formats.onnx.graphs import reads, subgraphs
from engine.formats.onnx.infer import is_known, types_of
from engine.formats.onnx.order import in_order


def repaired(view: memoryview) -> bytes:
    """Return a model's bytes with nodes in order, repeated initializers once, outputs typed.

    A fault that cannot be repaired stays: reading the result says so.
    """
    model = ModelProto.FromString(bytes(view))
    for function in model.functions:
        _sort(function.node)
    _repair(model.graph)
    untyped = [info for info in model.graph.output if not is_known(info.type)]
    if untyped:
        types = types_of(model, [info.name for info in untyped], guess=False, data_prop=False)
        for output in untyped:
            if output.name in types:
                output.type.CopyFrom(types[output.name])
    return bytes(model.SerializeToString())


def _repair(graph: GraphProto) -> None:
    for node in graph.node:
        for inner in subgraphs(node):
            _repair(inner)
    _sort(graph.node)
    seen: set[str] = set()
    for index in range(len(graph.initializer) - 1, -1, -1):
        name = graph.initializer[index].name
        if name in seen:
            del graph.initializer[index]
        seen.add(name)


def _sort(nodes: MutableSequence[NodeProto]) -> None:
    """Put nodes behind those whose outputs they read, else in the order in which they were."""
    producers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    order = in_order(
        {
            index: {producers[name] for name in reads(node) if name in producers}
            for index, node in enumerate(nodes)
        }
    )
    if order != sorted(order):
        moved = [NodeProto.FromString(nodes[index].SerializeToString()) for index in order]
        del nodes[:]
        nodes.extend(moved)
