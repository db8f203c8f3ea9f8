"""The messages of a .mindir as small objects, and the file that they are decoded from.

They are what decode.py makes of the file's bytes: slots, and tuples where most are empty, because
a file may hold some hundred thousand of them. Attributes stay encoded until they are read.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from engine.formats.protobuf import Budget, Data, spans

# Limits on what is decoded, far above any real file: a network of 61 layers with 256 experts each
# has some 150,000 nodes and 50,000 parameters.
NODES = 200_000  # of all functions together, as are the next two
PARAMETERS = 100_000
VALUES = 100_000  # inputs and outputs of functions, and their tensors
FUNCTIONS = 20_000
PRIMITIVES = 200_000
NODE_INPUTS = 1_000_000
ATTRIBUTES = 10_000  # of one node or primitive
NESTED_VALUES = 100_000  # in one attribute, tensors among them
USER_INFO = 10_000
RANK = 64  # axes of a tensor
DEPTH = 64  # of nested attributes; a tuple of tuples takes one a level
NAME_BYTES = 1 << 20  # names of functions hold their whole history

# Fields that are looked at: so many, and more in larger files. A node takes some forty fields and
# 600 to 1,000 bytes.
FIELDS = 500_000
BYTES_PER_FIELD = 12

Span: TypeAlias = tuple[int, int]
"""Byte range of an encoded message in the file: start, end."""

UNREAD = object()
"""The type of a node that has not been decoded yet."""


class DecodeError(ValueError):
    """The file breaks a rule of the format. The message says which."""


def too_many(limit: int, what: str) -> DecodeError:
    """Return the error for a count beyond its limit. what: of what there are too many."""
    return DecodeError(f"more than {limit:,} {what}, which is beyond any real model")


class Source:
    """The file that messages are decoded from, with the number of fields that may still be read.

    view: all of it. data: the same, but where possible what the view is of: see `protobuf.spans`.
    types, settings: what encoded attributes turned out to say, by their bytes, because nodes
    repeat each other. has_other_shapes: inputs are to have other sizes than the file fixes, so
    those that it says of nodes' results do not hold.
    """

    __slots__ = (
        "_counts", "_names", "budget", "data", "has_other_shapes", "settings", "types", "view",
    )  # fmt: skip

    def __init__(self, view: memoryview) -> None:
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self.types: dict[bytes, Any] = {}
        self.settings: dict[bytes, Any] = {}
        self.has_other_shapes = False
        self.view = view
        self.data: Data = view
        if isinstance(view.obj, bytes | mmap.mmap) and len(view.obj) == len(view):
            self.data = view.obj
        self.budget = Budget(FIELDS + len(view) // BYTES_PER_FIELD)

    def fields(self, span: Span) -> Iterator[tuple[int, int, int]]:
        """Return the fields of a message: see `protobuf.spans`."""
        return spans(self.data, span[0], span[1], self.budget)

    def count(self, number: int, limit: int, what: str) -> None:
        """Count `number` more of the file's messages. Raises DecodeError above the limit."""
        total = self._counts.get(what, 0) + number
        if total > limit:
            raise too_many(limit, what)
        self._counts[what] = total

    def text(self, first: int, past: int) -> str:
        """Decode a name. Raises DecodeError where it is too long or no UTF-8."""
        if past < 0:
            raise DecodeError("a field of another type than its number means")
        if past - first > NAME_BYTES:
            raise DecodeError(f"a name of {past - first:,} bytes; at most {NAME_BYTES:,} are read")
        encoded = self.data[first:past]
        try:
            name = str(encoded, "utf-8")
        except UnicodeDecodeError:
            shown = bytes(encoded[:40])
            raise DecodeError(f"the name {shown!r} is not UTF-8") from None
        return self._names.setdefault(name, name)  # what is named is read elsewhere by that name


@dataclass(slots=True)
class TensorProto:
    """A tensor: name, dims, element type by MindIR's number, and the location of its data."""

    name: str
    dims: Sequence[int]
    data_type: int
    raw: memoryview | None
    ref_key: str
    location: str
    offset: int
    length: int | None
    compression: int
    numbers: Sequence[Any]  # of the typed fields that raw_data replaced


@dataclass(slots=True)
class AttributeProto:
    """An attribute: a constant, a setting of a primitive, or the type inferred for a node."""

    name: str = ""
    type: int = 0
    f: float = 0.0
    i: int = 0
    d: float = 0.0
    s: bytes = b""
    ints: Sequence[int] = ()
    floats: Sequence[float] = ()
    strings: Sequence[bytes] = ()
    tensors: Sequence[TensorProto] = ()
    values: Sequence[AttributeProto] = ()
    form: str = ""  # ref_attr_name: how older files say what the value is


@dataclass(slots=True)
class NodeProto:
    """A node: its inputs and its one output by name; attributes encoded.

    attributes: where the first one is, and where the node ends. abstract: the type of its result,
    once it has been decoded: see `constants.abstract_of`.
    """

    source: Source
    name: str
    op_type: str
    domain: str
    inputs: Sequence[str]
    output: str
    attributes: tuple[int, int, int] | None
    abstract: Any = UNREAD


@dataclass(slots=True)
class ValueProto:
    """A graph's input or output. tensors: its types; structure: for tuples and monads, encoded."""

    source: Source
    name: str = ""
    tensors: Sequence[TensorProto] = ()
    structure: Span | None = None


@dataclass(slots=True)
class GraphProto:
    """A function: the main graph or one that it calls. attributes: of the graph, encoded."""

    name: str = ""
    nodes: list[NodeProto] = field(default_factory=list)
    parameters: list[TensorProto] = field(default_factory=list)
    inputs: list[ValueProto] = field(default_factory=list)
    outputs: list[ValueProto] = field(default_factory=list)
    attributes: list[Span] = field(default_factory=list)


@dataclass(slots=True)
class PrimitiveProto:
    """An operator and where it is, settings included; all nodes that name it share them."""

    name: str
    op_type: str
    span: Span


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
