"""What is in a model, as the onnx package has it; imported where that is."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto


def reads(node: NodeProto) -> set[str]:
    """The names that a node needs, those that its subgraphs take from outside among them."""
    names = {name for name in node.input if name}
    for graph in subgraphs(node):
        own = {each.name for each in (*graph.input, *graph.initializer)}
        own |= {each.values.name for each in graph.sparse_initializer}
        own.update(name for inner in graph.node for name in inner.output)
        names |= {each.name for each in graph.output}.union(*map(reads, graph.node)) - own
    return names


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of a model that may lie in external data."""
    graphs = [proto.graph]
    nodes = [node for function in proto.functions for node in function.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            nodes += graph.node
            continue
        node = nodes.pop()
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors
        graphs += subgraphs(node)
