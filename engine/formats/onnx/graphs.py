"""Utilities for graphs as the onnx package has them; imported where that package is.

For everybody in the core who takes models apart or changes them: plan, convert, repair, inference.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TypeAlias

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
)

Body: TypeAlias = GraphProto | FunctionProto

RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial",
     "Bernoulli")
)  # fmt: skip
"""Operators that give another result in each run."""

SMALL = 64
"""Elements of a constant that shape inference may look at: shapes and axes of other nodes."""


def reads(node: NodeProto) -> set[str]:
    """Return the names that a node needs, also those that its subgraphs take from outside."""
    names = {name for name in node.input if name}
    for graph in subgraphs(node):
        own = {info.name for info in graph.input} | constants(graph)
        own.update(name for inner in graph.node for name in inner.output)
        names |= {info.name for info in graph.output}.union(*map(reads, graph.node)) - own
    return names


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def bodies(model: ModelProto) -> Iterator[Body]:
    """Yield all that has nodes: the main graph first, functions, and the graphs inside nodes."""
    pending: list[Body] = [model.graph, *model.functions]
    for body in pending:
        yield body
        pending += [graph for node in body.node for graph in subgraphs(node)]


def tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor of a model that may lie in external data."""
    for body in bodies(model):
        if isinstance(body, GraphProto):
            yield from body.initializer
        for node in body.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    yield attribute.t
                yield from attribute.tensors


def constants(graph: GraphProto) -> set[str]:
    """Return the names of a graph's initializers; an input of such a name is none to a caller."""
    names = {tensor.name for tensor in graph.initializer}
    return names | {sparse.values.name for sparse in graph.sparse_initializer}


def inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """Return what a caller gives: the inputs that are not initializers too, in order."""
    known = constants(graph)
    return [info for info in graph.input if info.name not in known]


def is_small(tensor: TensorProto) -> bool:
    """Return whether a tensor is in the model and of a size that shape inference looks at."""
    return prod(tensor.dims) <= SMALL and tensor.data_location != TensorProto.EXTERNAL


def light(model: ModelProto) -> ModelProto:
    """Copy a model without the main graph's weights, which are most of its bytes."""
    copy = ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            copy_field(copy, field.name, value)
    for field, value in model.graph.ListFields():
        if field.name != "initializer":
            copy_field(copy.graph, field.name, value)
    return copy


def copy_field(message: ModelProto | GraphProto, name: str, value: object) -> None:
    """Copy a field's value into a message that does not have it yet."""
    if hasattr(value, "CopyFrom"):
        getattr(message, name).CopyFrom(value)
    elif hasattr(value, "extend"):
        getattr(message, name).extend(value)
    else:
        setattr(message, name, value)
