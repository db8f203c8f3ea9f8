"""Decode the protobuf messages of a .mindir file (proto2, package mind_ir): see messages.py.

Field numbers stand beside the code that reads them. Unknown fields are passed over, because each
version of MindSpore adds some. Nothing of a weight is copied: a tensor keeps slices of the file.
Attributes stay encoded, as byte ranges of the file, until they are read: most never are.

By hand, because classes that protobuf compiles copy every weight, take longer for the same file
(7.8 ms against 4.8 ms) and 26 ms to import, and would need MindSpore's schema, which differs from
version to version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.formats.protobuf import BYTES, VARINT, WireError, signed, spans
from engine.formats.protobuf import key as key_of
from engine_mindir.messages import (
    ATTRIBUTES,
    DEPTH,
    FUNCTIONS,
    NESTED_VALUES,
    NODE_INPUTS,
    NODES,
    PARAMETERS,
    PRIMITIVES,
    RANK,
    USER_INFO,
    VALUES,
    AttributeProto,
    DecodeError,
    GraphProto,
    ModelProto,
    NodeProto,
    PrimitiveProto,
    Source,
    Span,
    TensorProto,
    ValueProto,
    too_many,
)

# AttributeProto.AttributeType, beyond the element types 0..16
TENSOR, GRAPH, TENSORS, TUPLE, LIST, DICT = 17, 18, 19, 20, 21, 22
UMONAD, IOMONAD, NONE = 23, 24, 25
PRIMITIVECLOSURE, FUNCGRAPHCLOSURE, PARTIALCLOSURE, UNIONFUNCCLOSURE = 26, 27, 28, 29
TYPE_NULL, SCALAR = 36, 39
FLOAT, STRING, BOOL, DOUBLE = 1, 8, 9, 11


def model(view: memoryview) -> ModelProto:
    """Decode a file. Raises WireError and DecodeError."""
    source = Source(view)
    result = ModelProto(source)
    for key, first, past in source.fields((0, len(view))):
        number = key >> 3
        if number == 2:
            result.producer = source.text(first, past)
        elif number == 5:
            result.version = source.text(first, past)
        elif number == 7:
            if result.graph is not None:
                raise DecodeError("two main graphs; expected one")
            result.graph = graph(source, _span(first, past))
        elif number == 8:
            source.count(1, FUNCTIONS, "functions")
            function = graph(source, _span(first, past))
            if function.name in result.functions:
                raise DecodeError(f"two functions are named {function.name!r}")
            result.functions[function.name] = function
        elif number == 10:
            result.little_endian = bool(_integer(first, past))
        elif number == 12:
            source.count(1, PRIMITIVES, "primitives")
            primitive = _primitive(source, _span(first, past))
            result.primitives[primitive.name] = primitive
        elif number == 14:
            source.count(1, USER_INFO, "entries of user_info")
            entry = {1: "", 2: ""}
            for part, begin, end in source.fields(_span(first, past)):
                if part >> 3 in entry:
                    entry[part >> 3] = source.text(begin, end)
            result.user_info[entry[1]] = entry[2]
    if result.graph is None:
        raise DecodeError("no graph in it")
    return result


def graph(source: Source, span: Span) -> GraphProto:
    """Decode a function."""
    result = GraphProto()
    nodes = result.nodes
    for key, first, past in source.fields(span):
        number = key >> 3
        if number == 1:
            nodes.append(_node(source, _span(first, past)))
            if len(nodes) > NODES:
                raise too_many(NODES, "nodes")
        elif number == 2:
            result.name = source.text(first, past)
        elif number == 3:
            source.count(1, PARAMETERS, "parameters")
            result.parameters.append(tensor(source, _span(first, past)))
        elif number == 5:
            result.inputs.append(_value(source, _span(first, past)))
        elif number == 6:
            result.outputs.append(_value(source, _span(first, past)))
        elif number == 8:
            result.attributes.append(_span(first, past))
            if len(result.attributes) > ATTRIBUTES:
                raise too_many(ATTRIBUTES, "attributes of one graph")
    source.count(len(nodes), NODES, "nodes")
    return result


def _node(source: Source, span: Span) -> NodeProto:
    name = op_type = domain = ""
    inputs: list[str] = []
    output: str | None = None
    attributes: tuple[int, int, int] | None = None
    text = source.text
    for key, first, past in spans(source.data, span[0], span[1], source.budget):
        number = key >> 3
        if number == 1:
            inputs.append(text(first, past))
        elif number == 5 or number == 8:  # 8: where some files keep settings
            if attributes is None:
                attributes = (*_span(first, past), span[1])
        elif number == 2:
            output = text(first, past) if output is None else output
        elif number == 3:
            name = text(first, past)
        elif number == 4:
            op_type = text(first, past)
        elif number == 7:
            domain = text(first, past)
    if output is None:
        output = name
    source.count(len(inputs), NODE_INPUTS, "inputs of nodes")
    return NodeProto(source, name, op_type, domain, tuple(inputs), output, attributes)


def _primitive(source: Source, span: Span) -> PrimitiveProto:
    name = op_type = instance = ""
    for key, first, past in spans(source.data, span[0], span[1], source.budget, _TITLES):
        number = key >> 3
        if number == 1:
            name = source.text(first, past)
        elif number == 2:
            op_type = source.text(first, past)
        else:
            instance = source.text(first, past)
    return PrimitiveProto(name, op_type or instance or name.partition(":")[0], span)


def _value(source: Source, span: Span) -> ValueProto:
    result = ValueProto(source)
    tensors: list[TensorProto] = []
    source.count(1, VALUES, "inputs and outputs of functions")
    for key, first, past in source.fields(span):
        number = key >> 3
        if number == 1:
            result.name = source.text(first, past)
        elif number == 2:
            source.count(1, VALUES, "tensors of inputs and outputs")
            tensors.append(tensor(source, _span(first, past)))
        elif number == 5:
            result.structure = _span(first, past)
    result.tensors = tuple(tensors)
    return result


def tensor(source: Source, span: Span) -> TensorProto:
    """Decode a tensor's description; its data stays where it is."""
    dims: list[int] = []
    numbers: list[Any] = []
    name = ref_key = location = ""
    data_type = offset = compression = 0
    raw: memoryview | None = None
    length: int | None = None
    for key, first, past in spans(source.data, span[0], span[1], source.budget):
        if key == _DIM:
            dims.append(signed(first))
            if len(dims) > RANK:
                raise DecodeError(_TOO_MANY_DIMS)
            continue
        if key == _RAW_DATA:
            raw = source.view[first:past]
            continue
        number = key >> 3
        if number == 7:
            name = source.text(first, past)
        elif number == 2:
            data_type = _integer(first, past)
        elif number == 1:
            dims += _integers(source, key, first, past)
            if len(dims) > RANK:
                raise DecodeError(_TOO_MANY_DIMS)
        elif number == 9:
            raise DecodeError(_MISTYPED)
        elif number == 13:
            ref_key = source.text(first, past)
        elif number == 16:
            compression = _integer(first, past)
        elif number in (3, 10):
            numbers += _reals(source, first, past, number == 10)
        elif number in (4, 6):
            numbers += _integers(source, key, first, past)
        elif number == 11:
            numbers += [n & (1 << 64) - 1 for n in _integers(source, key, first, past)]
        elif number == 12:
            for part, begin, end in source.fields(_span(first, past)):
                if part >> 3 == 1:
                    location = source.text(begin, end)
                elif part >> 3 == 2:
                    offset = _integer(begin, end)
                elif part >> 3 == 3:
                    length = _integer(begin, end)
    return TensorProto(
        name, tuple(dims), data_type, raw, ref_key, location, offset, length, compression,
        numbers or (),
    )  # fmt: skip


# -------------------------------------------------------------------------------------- attributes


def attribute_spans(node: NodeProto) -> Iterator[Span]:
    """Yield where each attribute of a node is."""
    if node.attributes is None:
        return
    start, rest, end = node.attributes
    yield start, rest
    number = 1
    for key, first, past in spans(node.source.data, rest, end, node.source.budget):
        if key >> 3 == 5 or key >> 3 == 8:
            number += 1
            if number > ATTRIBUTES:
                raise too_many(ATTRIBUTES, "attributes of one node")
            yield _span(first, past)


def attribute_at(node: NodeProto, name: str) -> Span | None:
    """Return the position of the node's attribute of that name."""
    for span in attribute_spans(node):
        if name_at(node.source, span) == name:
            return span
    return None


def attributes_of(node: NodeProto) -> Iterator[AttributeProto]:
    """Yield every attribute of a node."""
    return (attribute(node.source, span) for span in attribute_spans(node))


def settings_of(source: Source, primitive: PrimitiveProto) -> dict[str, Span]:
    """Return the positions of a primitive's attributes by name."""
    result: dict[str, Span] = {}
    for key, first, past in source.fields(primitive.span):
        if key >> 3 == 3:
            span = _span(first, past)
            result[name_at(source, span)] = span
            if len(result) > ATTRIBUTES:
                raise too_many(ATTRIBUTES, "attributes of one primitive")
    return result


def name_at(source: Source, span: Span) -> str:
    """Return the name of an attribute, without decoding the rest of it."""
    first = span[0] + 2
    if first < span[1]:
        key, length = source.data[span[0] : first]
        # The name comes first in every file that a writer of protobuf makes.
        if key == _NAME and length < 128 and first + length <= span[1]:
            return source.text(first, first + length)
    name = ""
    for key, first, past in source.fields(span):
        if key >> 3 == 1:
            name = source.text(first, past)
    return name


def attribute(source: Source, span: Span) -> AttributeProto:
    """Decode an attribute and what is nested in it."""
    return _attribute(source, span, 0, [NESTED_VALUES])


def _attribute(source: Source, span: Span, depth: int, room: list[int]) -> AttributeProto:
    """Decode an attribute. room: how many more may be nested in the one that is being decoded."""
    if depth > DEPTH:
        raise DecodeError(f"a constant is nested more than {DEPTH} levels deep")
    room[0] -= 1
    if room[0] < 0:
        raise too_many(NESTED_VALUES, "values in one constant")
    result = AttributeProto()
    ints: list[int] = []
    floats: list[float] = []
    strings: list[bytes] = []
    tensors: list[TensorProto] = []
    values: list[AttributeProto] = []
    for key, first, past in source.fields(span):
        number = key >> 3
        if number == 1:
            result.name = source.text(first, past)
        elif number == 2:
            (result.f,) = struct.unpack("<f", _fixed(source, first, past, 4))
        elif number == 3:
            result.i = _integer(first, past)
        elif number == 4:
            (result.d,) = struct.unpack("<d", _fixed(source, first, past, 8))
        elif number == 5:
            result.s = _bytes(source, first, past)
        elif number in (8, 9):
            floats += _reals(source, first, past, number == 9)
        elif number == 10:
            ints += _integers(source, key, first, past)
        elif number == 11:
            strings.append(_bytes(source, first, past))
        elif number == 6 or number == 12:
            room[0] -= 1
            if room[0] < 0:
                raise too_many(NESTED_VALUES, "values in one constant")
            tensors.append(tensor(source, _span(first, past)))
        elif number == 15:
            result.form = source.text(first, past)
        elif number == 16:
            result.type = _integer(first, past)
        elif number == 17:
            values.append(_attribute(source, _span(first, past), depth + 1, room))
    # Most of these are empty: the empty tuple is one object for all.
    result.ints, result.floats, result.strings = ints or (), floats or (), strings or ()
    result.tensors, result.values = tensors or (), values or ()
    return result


# ------------------------------------------------------------------------------------- wire types

_NAME = key_of(1, BYTES)  # of an AttributeProto
_DIM, _RAW_DATA = key_of(1, VARINT), key_of(9, BYTES)  # of a TensorProto
_TITLES = frozenset(key_of(number, BYTES) for number in (1, 2, 4))  # of a PrimitiveProto
_TOO_MANY_DIMS = f"a tensor of more than {RANK} dims"
_MISTYPED = "a field of another type than its number means"
_CHUNK = 1 << 16  # bytes of packed integers that are decoded at once; bounds the temporary arrays


def _span(first: int, past: int) -> Span:
    if past < 0:
        raise DecodeError(_MISTYPED)
    return first, past


def _bytes(source: Source, first: int, past: int) -> bytes:
    return bytes(source.data[slice(*_span(first, past))])


def _fixed(source: Source, first: int, past: int, length: int) -> bytes:
    if past - first != length:
        raise DecodeError(_MISTYPED)
    return _bytes(source, first, past)


def _integer(first: int, past: int) -> int:
    if past >= 0:
        raise DecodeError(_MISTYPED)
    return signed(first)


def _integers(source: Source, key: int, first: int, past: int) -> list[int]:
    if past < 0:
        return [signed(first)]
    if key & 7 != 2:
        raise DecodeError(_MISTYPED)
    return _packed_integers(source.view[first:past])


def _packed_integers(packed: memoryview) -> list[int]:
    """Decode a packed field of int64. Raises WireError."""
    data = np.frombuffer(packed, np.uint8)
    result: list[int] = []
    start = 0
    while start < len(data):
        stop = min(start + _CHUNK, len(data))
        ends = np.flatnonzero(data[start:stop] < 128) + start
        if not len(ends):
            raise WireError("the end comes within a varint", packed, len(data) - 1)
        starts = np.concatenate(([start], ends[:-1] + 1))
        lengths = ends - starts + 1
        longest = int(lengths.max())
        if longest > 10:
            position = int(starts[int(lengths.argmax())])
            raise WireError("a varint of more than 64 bits", packed, position)
        numbers = np.zeros(len(ends), np.uint64)
        for place in range(longest):
            reached = lengths > place
            part = data[starts[reached] + place].astype(np.uint64) & np.uint64(127)
            if place == 9 and part.max() > 1:
                raise WireError("a varint of more than 64 bits", packed, start)
            numbers[reached] |= part << np.uint64(7 * place)
        result += numbers.view(np.int64).tolist()
        start = int(ends[-1]) + 1
    return result


def _reals(source: Source, first: int, past: int, double: bool) -> list[float]:
    data = _bytes(source, first, past)
    size, code = (8, "d") if double else (4, "f")
    if len(data) % size:
        raise DecodeError(_MISTYPED)
    return list(struct.unpack(f"<{len(data) // size}{code}", data))
