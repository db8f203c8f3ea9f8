"""Decodes the messages of a .mindir file (proto2, package mind_ir) into small objects.

Field numbers stand beside the code that reads them. Unknown fields are passed over, because each
version of MindSpore adds some. Nothing of a weight is copied: a tensor keeps slices of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from engine.formats.wire import Budget, fields, signed, varints

FIELDS = 20_000_000
DEPTH = 64  # of nested attributes; a tuple of tuples takes one a level
NAME_BYTES = 1 << 20  # names of functions hold their whole history

# AttributeProto.AttributeType, beyond the element types 0..16
TENSOR, GRAPH, TENSORS, TUPLE, LIST, DICT = 17, 18, 19, 20, 21, 22
UMONAD, IOMONAD, NONE = 23, 24, 25
PRIMITIVECLOSURE, FUNCGRAPHCLOSURE, PARTIALCLOSURE, UNIONFUNCCLOSURE = 26, 27, 28, 29
TYPE_NULL, SCALAR = 36, 39
FLOAT, STRING, BOOL, DOUBLE = 1, 8, 9, 11


class Damaged(ValueError):
    """The file breaks a rule of the format. The message says which."""


@dataclass(slots=True)
class TensorProto:
    """dims, the element type by MindIR's number, and where the data is."""

    name: str = ""
    dims: list[int] = field(default_factory=list)
    data_type: int = 0
    raw: memoryview | None = None
    ref_key: str = ""
    location: str = ""
    offset: int = 0
    length: int | None = None
    compression: int = 0
    numbers: list[Any] | None = None  # of the typed fields that raw_data replaced


@dataclass(slots=True)
class AttributeProto:
    """A constant, a setting of a primitive, or the type that was inferred for a node."""

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
    """inputs and output by name; attributes stay encoded until somebody asks."""

    inputs: list[str]
    outputs: list[str]
    name: str
    op_type: str
    domain: str
    attributes: list[memoryview]
    budget: Budget

    @property
    def output(self) -> str:
        """Its one output."""
        return self.outputs[0] if self.outputs else self.name

    def view(self, name: str) -> memoryview | None:
        """The encoded attribute of that name."""
        wanted = name.encode()
        for view in self.attributes:
            # The name comes first in every file that a writer of protobuf makes.
            if len(view) > 1 and view[0] == 10 and view[1] == len(wanted):
                if view[2 : 2 + len(wanted)] == wanted:
                    return view
            elif attribute(view, self.budget).name == name:
                return view
        return None

    def attribute(self, name: str) -> AttributeProto | None:
        """The attribute of that name, decoded now."""
        view = self.view(name)
        return None if view is None else attribute(view, self.budget)

    def decoded(self) -> list[AttributeProto]:
        """Every attribute."""
        return [attribute(view, self.budget) for view in self.attributes]


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
    attributes: list[memoryview]
    budget: Budget

    def decoded(self) -> list[AttributeProto]:
        """Every setting but the names of inputs and outputs, which say nothing here."""
        return [
            attribute(view, self.budget)
            for view in self.attributes
            if bytes(view[2:14])[:11] != b"input_names" and bytes(view[2:14]) != b"output_names"
        ]


@dataclass(slots=True)
class ModelProto:
    """A whole file."""

    graph: GraphProto | None = None
    functions: dict[str, GraphProto] = field(default_factory=dict)
    primitives: dict[str, PrimitiveProto] = field(default_factory=dict)
    little_endian: bool = True
    producer: str = ""
    version: str = ""
    user_info: dict[str, str] = field(default_factory=dict)


def text(view: Any) -> str:
    """A name. Bytes that are no UTF-8 are damage."""
    if len(_view(view)) > NAME_BYTES:
        raise Damaged(f"a name of {len(view):,} bytes; at most {NAME_BYTES:,} are read")
    try:
        return str(view, "utf-8")
    except UnicodeDecodeError:
        raise Damaged(f"the name {bytes(view[:40])!r} is not UTF-8") from None


def model(view: memoryview) -> ModelProto:
    """Decode a file. Raises WireError and Damaged."""
    budget = Budget(FIELDS)
    found = ModelProto()
    for key, value in fields(_view(view), budget):
        number = key >> 3
        if number == 2:
            found.producer = text(value)
        elif number == 5:
            found.version = text(value)
        elif number == 7:
            if found.graph is not None:
                raise Damaged("two main graphs; expected one")
            found.graph = graph(value, budget)
        elif number == 8:
            function = graph(value, budget)
            if function.name in found.functions:
                raise Damaged(f"two functions are named {function.name!r}")
            found.functions[function.name] = function
        elif number == 10:
            found.little_endian = bool(_integer(value))
        elif number == 12:
            one = _primitive(value, budget)
            found.primitives[one.name] = one
        elif number == 14:
            entry = {1: "", 2: ""}
            for key, payload in fields(_view(value), budget):
                part = key >> 3
                if part in entry:
                    entry[part] = text(payload)
            found.user_info[entry[1]] = entry[2]
    if found.graph is None:
        raise Damaged("no graph in it")
    return found


def graph(view: memoryview, budget: Budget) -> GraphProto:
    """Decode a function."""
    found = GraphProto()
    for key, value in fields(_view(view), budget):
        number = key >> 3
        if number == 1:
            found.nodes.append(_node(value, budget))
        elif number == 2:
            found.name = text(value)
        elif number == 3:
            found.parameters.append(tensor(value, budget))
        elif number == 5:
            found.inputs.append(_value(value, budget))
        elif number == 6:
            found.outputs.append(_value(value, budget))
    return found


def _node(view: memoryview, budget: Budget) -> NodeProto:
    node = NodeProto([], [], "", "", "", [], budget)
    for key, value in fields(_view(view), budget):
        number = key >> 3
        if number == 1:
            node.inputs.append(text(value))
        elif number == 2:
            node.outputs.append(text(value))
        elif number == 3:
            node.name = text(value)
        elif number == 4:
            node.op_type = text(value)
        elif number == 5:
            node.attributes.append(_view(value))
        elif number == 7:
            node.domain = text(value)
        elif number == 8:
            node.attributes.append(_view(value))  # where some files keep settings
    return node


def _primitive(view: memoryview, budget: Budget) -> PrimitiveProto:
    name = op_type = instance = ""
    attributes = []
    for key, value in fields(_view(view), budget):
        number = key >> 3
        if number == 1:
            name = text(value)
        elif number == 2:
            op_type = text(value)
        elif number == 3:
            attributes.append(_view(value))
        elif number == 4:
            instance = text(value)
    return PrimitiveProto(name, op_type or instance or name.partition(":")[0], attributes, budget)


def _value(view: memoryview, budget: Budget) -> ValueProto:
    found = ValueProto()
    for key, value in fields(_view(view), budget):
        number = key >> 3
        if number == 1:
            found.name = text(value)
        elif number == 2:
            found.tensors.append(tensor(value, budget))
        elif number == 4:
            found.denotation = text(value)
        elif number == 5:
            found.structure = attribute(value, budget)
    return found


def tensor(view: memoryview, budget: Budget) -> TensorProto:
    """Decode a tensor's description; its data stays where it is."""
    found = TensorProto()
    for key, value in fields(_view(view), budget):
        number, wire = key >> 3, key & 7
        if number == 1:
            found.dims += map(signed, _integers(wire, value, budget))
            if len(found.dims) > 64:
                raise Damaged("a tensor of more than 64 dims")
        elif number == 2:
            found.data_type = _integer(value)
        elif number == 7:
            found.name = text(value)
        elif number == 9:
            found.raw = _view(value)
        elif number in (3, 10):
            found.numbers = _numbers(found) + _reals(wire, value, "f" if number == 3 else "d")
        elif number in (4, 6):
            found.numbers = _numbers(found) + [signed(n) for n in _integers(wire, value, budget)]
        elif number == 11:
            found.numbers = _numbers(found) + list(_integers(wire, value, budget))
        elif number == 12:
            for key, payload in fields(_view(value), budget):
                part = key >> 3
                if part == 1:
                    found.location = text(payload)
                elif part == 2:
                    found.offset = _integer(payload)
                elif part == 3:
                    found.length = _integer(payload)
        elif number == 13:
            found.ref_key = text(value)
        elif number == 16:
            found.compression = _integer(value)
    return found


def _numbers(proto: TensorProto) -> list[Any]:
    return proto.numbers if proto.numbers is not None else []


def attribute(view: memoryview, budget: Budget, depth: int = 0) -> AttributeProto:
    """Decode an attribute and what is nested in it."""
    if depth > DEPTH:
        raise Damaged(f"a constant is nested more than {DEPTH} levels deep")
    found = AttributeProto()
    for key, value in fields(_view(view), budget):
        number, wire = key >> 3, key & 7
        if number == 1:
            found.name = text(value)
        elif number == 2:
            (found.f,) = struct.unpack("<f", _view(value, 4))
        elif number == 3:
            found.i = _integer(value)
        elif number == 4:
            (found.d,) = struct.unpack("<d", _view(value, 8))
        elif number == 5:
            found.s = bytes(_view(value))
        elif number == 8:
            found.floats += _reals(wire, value, "f")
        elif number == 9:
            found.floats += _reals(wire, value, "d")
        elif number == 10:
            found.ints += [signed(n) for n in _integers(wire, value, budget)]
        elif number == 11:
            found.strings.append(bytes(_view(value)))
        elif number == 6 or number == 12:
            found.tensors.append(tensor(value, budget))
        elif number == 15:
            found.form = text(value)
        elif number == 16:
            found.type = _integer(value)
        elif number == 17:
            found.values.append(attribute(value, budget, depth + 1))
    return found


_MISTYPED = "a field of another type than its number means"


def _view(value: Any, length: int | None = None) -> memoryview:
    if not isinstance(value, memoryview) or (length is not None and len(value) != length):
        raise Damaged(_MISTYPED)
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, int):
        raise Damaged(_MISTYPED)
    return signed(value)


def _integers(wire: int, value: Any, budget: Budget) -> Iterable[int]:
    if wire == 0:
        return (int(value),)
    if wire == 2:
        return varints(value, budget)
    raise Damaged(_MISTYPED)


def _reals(wire: int, value: Any, code: str) -> list[float]:
    size = 4 if code == "f" else 8
    if not isinstance(value, memoryview) or len(value) % size:
        raise Damaged(_MISTYPED)
    return list(struct.unpack(f"<{len(value) // size}{code}", value))
