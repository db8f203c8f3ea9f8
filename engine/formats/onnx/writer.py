"""Writes ONNX: plain values in, the bytes of a ModelProto out.

Tensors' data are any buffers and are copied once, into the result, or computed one by one when
their turn comes; tensors whose bytes lie in a file are written as external data and not read at
all. Nothing is checked here: `onnx.graph_info` and the reader are for that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from typing import TypeAlias

from engine.types import Dim, DType

_NUMBERS = {dtype: dtype.onnx for dtype in DType}
IR_VERSION = 10  # the one that came with operator set 21

Buffer: TypeAlias = "bytes | memoryview"
Parts: TypeAlias = "list[Buffer]"


@dataclass(frozen=True, slots=True)
class External:
    """Place of a tensor's bytes: a file relative to the model's folder, and bytes of it."""

    location: str
    offset: int
    length: int


@dataclass(slots=True)
class Tensor:
    """A constant. data: its elements in C order, little endian."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    data: Buffer | External

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return self.data.length if isinstance(self.data, External) else len(self.data)


@dataclass(slots=True)
class ValueInfo:
    """The declared type of a value. shape: None where the rank is open, a dim None likewise."""

    name: str
    dtype: DType
    shape: tuple[Dim, ...] | None


Attribute: TypeAlias = (
    "int | float | str | Tensor | Graph | Sequence[int] | Sequence[float] | Sequence[str]"
)


@dataclass(slots=True)
class Node:
    """One operator. An attribute that is an empty sequence is written as no integers."""

    op_type: str
    inputs: list[str]
    outputs: list[str]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    name: str = ""
    domain: str = ""


@dataclass(slots=True)
class Graph:
    """A graph, or the body of a control flow node."""

    name: str
    nodes: list[Node] = field(default_factory=list)
    inputs: list[ValueInfo] = field(default_factory=list)
    outputs: list[ValueInfo] = field(default_factory=list)
    initializers: list[Tensor] = field(default_factory=list)


def model_bytes(
    graph: Graph,
    opsets: Mapping[str, int],
    producer: str = "",
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Serialize a whole model."""
    parts: Parts = [number(1, IR_VERSION)]
    if producer:
        parts.append(_text(2, producer))
    _message(parts, 7, _graph(graph))
    for domain, version in opsets.items():
        parts.append(_bytes(8, _text(1, domain) + number(2, version)))
    for name, value in (metadata or {}).items():
        parts.append(_bytes(14, _text(1, name) + _text(2, value)))
    return joined(parts)


def _graph(graph: Graph) -> Parts:
    parts: Parts = [_bytes(1, _node(node)) for node in graph.nodes]
    parts.append(_text(2, graph.name))
    for tensor in graph.initializers:
        _message(parts, 5, tensor_parts(tensor))
    parts += [_bytes(11, value_info(value)) for value in graph.inputs]
    parts += [_bytes(12, value_info(value)) for value in graph.outputs]
    return parts


def _node(node: Node) -> bytes:
    parts = [_text(1, name) for name in node.inputs]
    parts += [_text(2, name) for name in node.outputs]
    if node.name:
        parts.append(_text(3, node.name))
    parts.append(_text(4, node.op_type))
    parts += [_bytes(5, _attribute(name, value)) for name, value in node.attributes.items()]
    if node.domain:
        parts.append(_text(7, node.domain))
    return b"".join(parts)


def _attribute(name: str, value: Attribute) -> bytes:
    head = _text(1, name)
    if isinstance(value, int):
        return head + number(3, value) + number(20, 2)
    if isinstance(value, float):
        return head + b"\x15" + struct.pack("<f", value) + number(20, 1)
    if isinstance(value, str):
        return head + _text(4, value) + number(20, 3)
    if isinstance(value, Tensor):
        return head + _bytes(5, joined(tensor_parts(value))) + number(20, 4)
    if isinstance(value, Graph):
        return head + _bytes(6, joined(_graph(value))) + number(20, 5)
    if value and isinstance(value[0], str):
        return head + b"".join(_text(9, str(item)) for item in value) + number(20, 8)
    if value and isinstance(value[0], float):
        packed = struct.pack(f"<{len(value)}f", *value)
        return head + _bytes(7, packed) + number(20, 6)
    integers = tuple(map(int, value))
    return head + (_few(integers) if len(integers) < 10 else _integers(integers))


def _integers(values: tuple[int, ...]) -> bytes:
    return _bytes(8, b"".join(map(varint, values))) + number(20, 7)


_few = lru_cache(1024)(_integers)  # strides and pads: the same for node after node


def tensor_parts(tensor: Tensor) -> Parts:
    """Return a TensorProto."""
    dims = b"".join(number(1, dim) for dim in tensor.shape)
    parts: Parts = [
        dims,
        number(2, _NUMBERS[tensor.dtype]),
        _text(8, tensor.name),
    ]
    if isinstance(tensor.data, External):
        for name, value in (
            ("location", tensor.data.location),
            ("offset", str(tensor.data.offset)),
            ("length", str(tensor.data.length)),
        ):
            parts.append(_bytes(13, _text(1, name) + _text(2, value)))
        parts.append(number(14, 1))
    else:
        parts += [head(9, len(tensor.data)), tensor.data]
    return parts


def value_info(value: ValueInfo) -> bytes:
    """Return a ValueInfoProto."""
    kind = number(1, _NUMBERS[value.dtype])
    if value.shape is not None:
        kind += _bytes(2, b"".join(_bytes(1, _dim(dim)) for dim in value.shape))
    return _text(1, value.name) + _bytes(2, _bytes(1, kind))


def _dim(dim: Dim) -> bytes:
    if dim is None:
        return b""
    return _text(2, dim) if isinstance(dim, str) else number(1, dim)


def joined(parts: Parts) -> bytes:
    """Join the parts, copying each once."""
    # As long as it will be: it never grows, and what it holds is given out without a copy.
    written = BytesIO(bytes(sum(map(len, parts))))
    for part in parts:
        written.write(part)
    return written.getvalue()


def _message(parts: Parts, field: int, inner: Iterable[Buffer]) -> None:
    inner = list(inner)
    parts.append(head(field, sum(map(len, inner))))
    parts += inner


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())


def _bytes(field: int, data: bytes) -> bytes:
    return head(field, len(data)) + data


@lru_cache(8192)
def head(field: int, length: int) -> bytes:
    """Return what stands before the bytes of a field."""
    return varint(field << 3 | 2) + varint(length)


@lru_cache(1024)
def number(field: int, value: int) -> bytes:
    """Return a field that is a number."""
    return varint(field << 3) + varint(value)


_SMALL = [bytes((value,)) for value in range(128)]


def varint(value: int) -> bytes:
    """Encode a number, a negative one in ten bytes as protobuf has it."""
    if 0 <= value < 128:
        return _SMALL[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
