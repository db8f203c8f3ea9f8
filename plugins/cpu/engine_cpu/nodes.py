"""All nodes of a model, those in subgraphs and functions too, read from its bytes without onnx.

The core lists the nodes of the main graph; what is nested is read here, and only where some bytes
of it say that it may matter.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from engine.host.lease import leased
from engine.model_bytes import Budget, NodeReader, ReadingBudget, fields, schema
from engine.types import DType, GraphInfo, ModelSource, NodeInfo
from engine_cpu.tensors import dtype_of

_FIELDS = 10_000_000  # the core has read the model within that


class Needles:
    """Bytes that a model is searched for, in one pass: names of operators, as a file has them.

    others: what else is looked for.
    """

    def __init__(self, operators: Iterable[str] = (), others: Sequence[bytes] = ()) -> None:
        texts = [re.escape(as_written(name)[1:]) for name in sorted(operators)]
        # Alternatives behind one byte that they have in common: that is what makes it fast.
        pattern = re.escape(bytes([schema.NODE_OP_TYPE])) + b"(?:%s)" % b"|".join(texts)
        self._pattern = re.compile(pattern, re.DOTALL) if texts else None
        self._others = others

    def are_in(self, part: memoryview) -> bool:
        """Return whether one of them is in a part of a model."""
        text = bytes(part)
        if any(other in text for other in self._others):
            return True
        return self._pattern is not None and self._pattern.search(text) is not None


NOTHING = Needles()


def as_written(text: str) -> bytes:
    """Encode NodeProto.op_type or AttributeProto.s as it stands in a file."""
    return bytes([schema.NODE_OP_TYPE, len(text)]) + text.encode()


@dataclass
class Body:
    """The nodes of one graph or function, in order.

    types: of its inputs and initializers, by name, where they are known. parts: each node's bytes.
    constants: the bytes of initializers. outer: what it stands in, whose names it reads.
    are_floats: what element_types.py has found out of values.
    """

    nodes: Sequence[NodeInfo]
    parts: Sequence[memoryview]
    types: Mapping[str, DType]
    constants: Mapping[str, memoryview]
    outer: Body | None = None
    producers: dict[str, NodeInfo] = field(default_factory=dict)
    are_floats: dict[str, bool | None] = field(default_factory=dict)

    def producer(self, name: str) -> NodeInfo | None:
        """Return the node of this body that makes a value."""
        if not self.producers:
            self.producers = {name: node for node in self.nodes for name in node.outputs}
        return self.producers.get(name)

    def constant(self, name: str) -> memoryview | None:
        """Return the bytes of an initializer or a Constant's tensor, here or outside."""
        if name in self.constants:
            return self.constants[name]
        node = self.producer(name)
        if node is not None:
            return self.tensor(node) if node.op_type == "Constant" else None
        return self.outer.constant(name) if self.outer and name not in self.types else None

    def tensor(self, node: NodeInfo) -> memoryview | None:
        """Return the bytes of the tensor that a Constant of this body holds."""
        budget = Budget(_FIELDS)
        for _, attribute in fields(self.parts[node.index], budget, {schema.NODE_ATTRIBUTE}):
            found = [tensor for _, tensor in fields(attribute, budget, {schema.ATTRIBUTE_T})]
            if found:
                return memoryview(found[0])
        return None


def view_of(source: ModelSource) -> memoryview:
    """Return a model's bytes, mapped where they are a file."""
    if source.data is not None:
        return memoryview(source.data)
    with open(str(source.path), "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


@contextmanager
def held_still(source: ModelSource) -> Iterator[None]:
    """Read a model in this block, which a mapped file is not written to meanwhile."""
    # The bytes of a small file are here.
    is_mapped = source.data is None and source.path is not None
    with leased(str(source.path)) if is_mapped else nullcontext():
        yield


def bodies_of(model: memoryview, graph: GraphInfo, needles: Needles) -> Iterator[Body]:
    """Yield the main graph, then each function and subgraph that has one of `needles` in it.

    Raises ValueError where the bytes are not what the core has read.
    """
    budget = ReadingBudget(len(model))
    reader = NodeReader(budget)
    types = {spec.name: spec.dtype for spec in graph.inputs}
    types.update((parameter.name, parameter.dtype) for parameter in graph.parameters)
    wanted = {schema.GRAPH_NODE, schema.GRAPH_INITIALIZER}
    for tag, part in fields(model, budget, {schema.MODEL_GRAPH, schema.MODEL_FUNCTIONS}):
        if tag == schema.MODEL_FUNCTIONS:
            if needles.are_in(part):
                nodes = [p for _, p in fields(part, budget, {schema.FUNCTION_NODE})]
                yield from _with_inner(Body(_read(nodes, reader), nodes, {}, {}), reader, needles)
            continue
        found = list(fields(part, budget, wanted))
        nodes = [payload for tag, payload in found if tag == schema.GRAPH_NODE]
        constants = _constants(found, budget)
        yield from _with_inner(Body(graph.nodes, nodes, types, constants), reader, needles)


def bodies_in(model: memoryview, needles: Needles) -> Iterator[Body]:
    """Yield the main graph of a model that the core has not read, and subgraphs, without functions.

    needles: see bodies_of.
    """
    reader = NodeReader(ReadingBudget(len(model)))
    for _, part in fields(model, Budget(_FIELDS), {schema.MODEL_GRAPH}):
        yield from _with_inner(_subgraph(part, None, reader), reader, needles)


def _with_inner(body: Body, reader: NodeReader, needles: Needles) -> Iterator[Body]:
    """Yield a body and those inside of it."""
    yield body
    for node, part in zip(body.nodes, body.parts, strict=True):
        # Of the core's nodes, a graph among the attributes reads as None.
        if None not in node.attributes.values() or not needles.are_in(part):
            continue
        for attribute in reader.read(part, node.index).attributes:
            for tag, payload in attribute.nested:
                if tag in (schema.ATTRIBUTE_G, schema.ATTRIBUTE_GRAPHS):
                    yield from _with_inner(_subgraph(payload, body, reader), reader, needles)


def _subgraph(graph: memoryview, outer: Body | None, reader: NodeReader) -> Body:
    budget = Budget(_FIELDS)
    wanted = {schema.GRAPH_NODE, schema.GRAPH_INITIALIZER, schema.GRAPH_INPUT}
    found = list(fields(graph, budget, wanted))
    nodes = [payload for tag, payload in found if tag == schema.GRAPH_NODE]
    constants = _constants(found, budget)
    types = {name: kind for name, part in constants.items() if (kind := dtype_of(part))}
    for tag, payload in found:
        if tag == schema.GRAPH_INPUT:
            name, kind = _input(payload, budget)
            if kind is not None:
                types[name] = kind
    return Body(_read(nodes, reader), nodes, types, constants, outer)


def _read(parts: Sequence[memoryview], reader: NodeReader) -> list[NodeInfo]:
    return [reader.read(part, index).info for index, part in enumerate(parts)]


def _constants(found: Sequence[tuple[int, memoryview]], budget: Budget) -> dict[str, memoryview]:
    return {
        str(name, "utf-8"): payload
        for tag, payload in found
        if tag == schema.GRAPH_INITIALIZER
        for _, name in fields(payload, budget, {schema.TENSOR_NAME})
    }


def _input(value: memoryview, budget: Budget) -> tuple[str, DType | None]:
    name, kind = "", None
    for tag, payload in fields(value, budget):
        if tag == schema.VALUE_INFO_NAME:
            name = str(payload, "utf-8")
        elif tag == schema.VALUE_INFO_TYPE:
            for inner, tensor in fields(payload, budget):
                if inner == schema.TYPE_TENSOR_TYPE:
                    for last, number in fields(tensor, budget):
                        if last == schema.TYPE_TENSOR_ELEM_TYPE:
                            kind = DType.from_onnx(number)
    return name, kind
