"""A segment as a model of its own, cut out of the whole with the onnx package."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto
from onnx.external_data_helper import uses_external_data

from engine.errors import ModelError
from engine.formats import source_of_part
from engine.formats.collectives import is_collective
from engine.formats.onnx.graphs import (
    RANDOM,
    constants,
    copy_field,
    inputs,
    reads,
    subgraphs,
    tensors,
)
from engine.formats.onnx.weights import with_weights_apart
from engine.formats.opened import OpenedSource
from engine.plan.partition import Graph, Node, Segment, reachable
from engine.types import ModelSource


class Whole:
    """A model to take segments from. proto: as read, with external data left where it is."""

    def __init__(self, source: ModelSource) -> None:
        source = with_weights_apart(source)  # parts refer to weights instead of copying them
        self.proto = read(source)
        self.graph = partition_graph(self.proto.graph)
        self._source = source
        self._folder = relocate(self.proto, source)

    def part(self, segment: Segment, types: Mapping[str, TypeProto]) -> OpenedSource:
        """Return the model of a segment.

        Initializers and functions that it needs are in it, those in external data by reference;
        opsets, names and symbolic dims are the whole model's. types: of every input and output.
        """
        whole = self.proto.graph
        part = ModelProto()
        for field, value in self.proto.ListFields():
            if field.name not in ("graph", "functions", "training_info"):
                copy_field(part, field.name, value)
        graph = part.graph
        graph.name = whole.name
        graph.node.extend(whole.node[index] for index in segment.nodes)
        needed = {name for index in segment.nodes for name in self.graph.nodes[index].reads}
        needed.update(segment.outputs)
        graph.initializer.extend(tensor for tensor in whole.initializer if tensor.name in needed)
        graph.sparse_initializer.extend(
            sparse for sparse in whole.sparse_initializer if sparse.values.name in needed
        )
        for names, values in ((segment.inputs, graph.input), (segment.outputs, graph.output)):
            for name in names:
                value = values.add(name=name)
                value.type.CopyFrom(types[name])
        outside = {*segment.inputs, *segment.outputs}
        inside = {name for index in segment.nodes for name in self.graph.nodes[index].writes}
        graph.value_info.extend(
            value for value in whole.value_info if value.name in inside - outside
        )
        part.functions.extend(_called(graph.node, self.proto.functions))
        return source_of_part(part.SerializeToString(), self._source, self._folder)


def read(source: ModelSource) -> ModelProto:
    """Read a checked model with the onnx package, external data left where it is."""
    try:
        if source.data is not None:
            return onnx.load_model_from_string(source.data)
        return onnx.load(str(source.path), load_external_data=False)
    except Exception as error:  # protobuf's and the file system's share no base
        raise ModelError(f"{source.name}: {type(error).__name__}: {error}", source.name) from error


def partition_graph(graph: GraphProto) -> Graph:
    """Return a main graph as it is partitioned."""
    return Graph(
        nodes=tuple(
            Node(
                frozenset(reads(node)),
                tuple(filter(None, node.output)),
                is_collective(node.op_type, node.domain),
            )
            for node in graph.node
        ),
        inputs=tuple(info.name for info in inputs(graph)),
        outputs=tuple(info.name for info in graph.output),
        constants=frozenset(constants(graph)),
    )


def reachable_names(source: ModelSource) -> Collection[str]:
    """Return the names on which an output depends, or a collective."""
    return reachable(Whole(source).graph)


def fixed_nodes(proto: ModelProto, graph: Graph) -> set[int]:
    """Return the nodes that give the same in each run: all that they read is constant.

    graph: the main graph. Nodes with bodies and calls of functions are not looked into.
    """
    functions = {(function.domain, function.name) for function in proto.functions}
    known, found = {*graph.constants}, set()
    for index, (node, info) in enumerate(zip(proto.graph.node, graph.nodes, strict=True)):
        if (
            info.reads <= known
            and not info.is_collective
            and node.op_type not in RANDOM
            and (node.domain, node.op_type) not in functions
            and not any(True for _ in subgraphs(node))
        ):
            found.add(index)
            known.update(info.writes)
    return found


def _called(nodes: Iterable[NodeProto], functions: Sequence[FunctionProto]) -> list[FunctionProto]:
    """Return the model's own functions that these nodes call, and those that they call in turn."""
    bodies: dict[tuple[str, str], list[NodeProto]] = defaultdict(list)  # of all overloads
    for function in functions:
        bodies[function.domain, function.name] += function.node
    called = set()
    pending = list(nodes) if bodies else []
    while pending:
        node = pending.pop()
        key = (node.domain, node.op_type)
        if key in bodies and key not in called:
            called.add(key)
            pending += bodies[key]
        pending += [inner for graph in subgraphs(node) for inner in graph.node]
    return [function for function in functions if (function.domain, function.name) in called]


def relocate(proto: ModelProto, source: ModelSource) -> Path | None:
    """Return the folder of the external data; locations that a link leads out of it are rewritten.

    Such data is found from the path of the whole model only (see `ModelSource.folder`), and what is
    made of it has none: it is given the folder that the links lead to.
    """
    if source.folder is None or source.path is None or source.data is not None:
        return source.folder
    external = [tensor for tensor in tensors(proto) if uses_external_data(tensor)]
    entries = [
        entry for tensor in external for entry in tensor.external_data if entry.key == "location"
    ]
    real = {entry.value: os.path.realpath(source.folder / entry.value) for entry in entries}
    inside = Path(os.path.realpath(source.folder))
    if all(Path(path).is_relative_to(inside) for path in real.values()):
        return source.folder
    folder = Path(os.path.realpath(source.path)).parent
    for entry in entries:
        entry.value = os.path.relpath(real[entry.value], folder)
    return folder
