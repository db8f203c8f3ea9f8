"""Decode the protobuf messages of a .mindir file (proto2, package mind_ir) into small objects.

Field numbers stand beside the code that reads them. Unknown fields are passed over, because each
version of MindSpore adds some. Nothing of a weight is copied: a tensor keeps slices of the file.
Attributes stay encoded, as byte ranges of the file, until they are read: most never are.

By hand, because classes that protobuf compiles copy every weight, take longer for the same file
(7.8 ms against 4.8 ms) and 26 ms to import, and would need MindSpore's schema, which differs from
version to version.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from engine.formats.protobuf import BYTES, VARINT, Budget, Data, signed, spans, varints
from engine.formats.protobuf import key as key_of

FIELDS = 20_000_000
RANK = 64  # axes of a tensor
DEPTH = 64  # of nested attributes; a tuple of tuples takes one a level
NAME_BYTES = 1 << 20  # names of functions hold their whole history

# AttributeProto.AttributeType, beyond the element types 0..16
TENSOR, GRAPH, TENSORS, TUPLE, LIST, DICT = 17, 18, 19, 20, 21, 22
UMONAD, IOMONAD, NONE = 23, 24, 25
PRIMITIVECLOSURE, FUNCGRAPHCLOSURE, PARTIALCLOSURE, UNIONFUNCCLOSURE = 26, 27, 28, 29
TYPE_NULL, SCALAR = 36, 39
FLOAT, STRING, BOOL, DOUBLE = 1, 8, 9, 11


class DecodeError(ValueError):
    """The file breaks a rule of the format. The message says which."""


Span: TypeAlias = tuple[int, int]
"""Byte range of an encoded message in the file: start, end."""


class Source:
    """The file that messages are decoded from, with the number of fields that may still be read.

    view: all of it. data: the same, but where possible what the view is of: see `wire.spans`.
    names, types, settings: texts and what encoded attributes turned out to say, by their bytes,
    because nodes repeat each other.
    """

    __slots__ = ("budget", "data", "names", "settings", "types", "view")

    def __init__(self, view: memoryview) -> None:
        self.names: dict[Any, str] = {}
        self.types: dict[bytes, Any] = {}
        self.settings: dict[bytes, Any] = {}
        self.view = view
        self.data: Data = view
        if isinstance(view.obj, bytes | mmap.mmap) and len(view.obj) == len(view):
            self.data = view.obj
        self.budget = Budget(FIELDS)

    def fields(self, span: Span) -> Iterator[tuple[int, int, int]]:
        """Return the fields of a message: see `wire.spans`."""
        return spans(self.data, span[0], span[1], self.budget)

    def text(self, first: int, past: int) -> str:
        """Decode a name. Raises DecodeError where it is too long or no UTF-8."""
        if past < 0:
            raise DecodeError(_MISTYPED)
        if past - first > NAME_BYTES:
            raise DecodeError(f"a name of {past - first:,} bytes; at most {NAME_BYTES:,} are read")
        encoded = self.data[first:past]
        name = self.names.get(encoded)
        if name is None:
            try:
                name = self.names[encoded] = str(encoded, "utf-8")
            except UnicodeDecodeError:
                shown = bytes(encoded[:40])
                raise DecodeError(f"the name {shown!r} is not UTF-8") from None
        return name


@dataclass(slots=True)
class TensorProto:
    """A tensor: name, dims, element type by MindIR's number, and the location of its data."""

    name: str
    dims: list[int]
    data_type: int
    raw: memoryview | None
    ref_key: str
    location: str
    offset: int
    length: int | None
    compression: int
    numbers: list[Any]  # of the typed fields that raw_data replaced


@dataclass(slots=True)
class AttributeProto:
    """An attribute: a constant, a setting of a primitive, or the type inferred for a node."""

    name: str = ""
    type: int = 0
    f: float = 0.0
    i: int = 0
    d: float = 0.0
    s: bytes = b""
    ints: list[int] = field(default_factory=list)
    floats: list[float] = field(default_factory=list)
    strings: list[bytes] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)
    values: list[AttributeProto] = field(default_factory=list)
    form: str = ""  # ref_attr_name: how older files say what the value is


@dataclass(slots=True)
class NodeProto:
    """A node: its inputs and its one output by name; attributes encoded."""

    source: Source
    name: str
    op_type: str
    domain: str
    inputs: list[str]
    output: str
    attributes: list[Span]

    def attribute_at(self, name: str) -> Span | None:
        """Return the position of the attribute of that name."""
        for span in self.attributes:
            if name_at(self.source, span) == name:
                return span
        return None

    def attribute(self, name: str) -> AttributeProto | None:
        """Return the attribute of that name, decoded now."""
        span = self.attribute_at(name)
        return None if span is None else attribute(self.source, span)

    def decoded(self) -> list[AttributeProto]:
        """Return every attribute."""
        return [attribute(self.source, span) for span in self.attributes]


@dataclass(slots=True)
class ValueProto:
    """A graph's input or output. tensors: its types; structure: for tuples and monads."""

    name: str = ""
    tensors: list[TensorProto] = field(default_factory=list)
    denotation: str = ""
    structure: AttributeProto | None = None


@dataclass(slots=True)
class GraphProto:
    """A function: the main graph or one that it calls."""

    name: str = ""
    nodes: list[NodeProto] = field(default_factory=list)
    parameters: list[TensorProto] = field(default_factory=list)
    inputs: list[ValueProto] = field(default_factory=list)
    outputs: list[ValueProto] = field(default_factory=list)


@dataclass(slots=True)
class PrimitiveProto:
    """An operator and its settings, encoded; all nodes that name it share them."""

    name: str
    op_type: str
    attributes: list[Span]


@dataclass(slots=True)
class ModelProto:
    """A whole file."""

    source: Source
    graph: GraphProto | None = None
    functions: dict[str, GraphProto] = field(default_factory=dict)
    primitives: dict[str, PrimitiveProto] = field(default_factory=dict)
    little_endian: bool = True
    producer: str = ""
    version: str = ""
    user_info: dict[str, str] = field(default_factory=dict)


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
            function = graph(source, _span(first, past))
            if function.name in result.functions:
                raise DecodeError(f"two functions are named {function.name!r}")
            result.functions[function.name] = function
        elif number == 10:
            result.little_endian = bool(_integer(first, past))
        elif number == 12:
            primitive = _primitive(source, _span(first, past))
            result.primitives[primitive.name] = primitive
        elif number == 14:
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
    for key, first, past in source.fields(span):
        number = key >> 3
        if number == 1:
            result.nodes.append(_node(source, _span(first, past)))
        elif number == 2:
            result.name = source.text(first, past)
        elif number == 3:
            result.parameters.append(tensor(source, _span(first, past)))
        elif number == 5:
            result.inputs.append(_value(source, _span(first, past)))
        elif number == 6:
            result.outputs.append(_value(source, _span(first, past)))
    return result


def _node(source: Source, span: Span) -> NodeProto:
    name = op_type = domain = ""
    inputs: list[str] = []
    output: str | None = None
    attributes: list[Span] = []
    text = source.text
    for key, first, past in spans(source.data, span[0], span[1], source.budget):
        number = key >> 3
        if number == 1:
            inputs.append(text(first, past))
        elif number == 5 or number == 8:  # 8: where some files keep settings
            attributes.append(_span(first, past))
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
    return NodeProto(source, name, op_type, domain, inputs, output, attributes)


def _primitive(source: Source, span: Span) -> PrimitiveProto:
    name = op_type = instance = ""
    attributes = []
    for key, first, past in source.fields(span):
        number = key >> 3
        if number == 1:
            name = source.text(first, past)
        elif number == 2:
            op_type = source.text(first, past)
        elif number == 3:
            attributes.append(_span(first, past))
        elif number == 4:
            instance = source.text(first, past)
    return PrimitiveProto(name, op_type or instance or name.partition(":")[0], attributes)


def _value(source: Source, span: Span) -> ValueProto:
    result = ValueProto()
    for key, first, past in source.fields(span):
        number = key >> 3
        if number == 1:
            result.name = source.text(first, past)
        elif number == 2:
            result.tensors.append(tensor(source, _span(first, past)))
        elif number == 4:
            result.denotation = source.text(first, past)
        elif number == 5:
            result.structure = attribute(source, _span(first, past))
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
        name, dims, data_type, raw, ref_key, location, offset, length, compression, numbers
    )


def name_at(source: Source, span: Span) -> str:
    """Return the name of an attribute, without decoding the rest of it."""
    first = span[0] + 2
    if first < span[1]:
        key, length = source.data[span[0] : first]
        # The name comes first in every file that a writer of protobuf makes.
        if key == _NAME and length < 128 and first + length <= span[1]:
            return source.text(first, first + length)
    return attribute(source, span).name


def attribute(source: Source, span: Span, depth: int = 0) -> AttributeProto:
    """Decode an attribute and what is nested in it."""
    if depth > DEPTH:
        raise DecodeError(f"a constant is nested more than {DEPTH} levels deep")
    result = AttributeProto()
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
            result.floats += _reals(source, first, past, number == 9)
        elif number == 10:
            result.ints += _integers(source, key, first, past)
        elif number == 11:
            result.strings.append(_bytes(source, first, past))
        elif number == 6 or number == 12:
            result.tensors.append(tensor(source, _span(first, past)))
        elif number == 15:
            result.form = source.text(first, past)
        elif number == 16:
            result.type = _integer(first, past)
        elif number == 17:
            result.values.append(attribute(source, _span(first, past), depth + 1))
    return result


_NAME = key_of(1, BYTES)  # of an AttributeProto
_DIM, _RAW_DATA = key_of(1, VARINT), key_of(9, BYTES)  # of a TensorProto
_TOO_MANY_DIMS = f"a tensor of more than {RANK} dims"
_MISTYPED = "a field of another type than its number means"


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
    return [signed(n) for n in varints(source.view[first:past], source.budget)]


def _reals(source: Source, first: int, past: int, double: bool) -> list[float]:
    data = _bytes(source, first, past)
    size, code = (8, "d") if double else (4, "f")
    if len(data) % size:
        raise DecodeError(_MISTYPED)
    return list(struct.unpack(f"<{len(data) // size}{code}", data))
