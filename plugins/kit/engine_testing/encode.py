"""Writes protobuf and ONNX by hand, right or wrong: what a hostile file needs and onnx refuses."""

from __future__ import annotations

from collections.abc import Iterable

FLOAT, INT64, STRING = 1, 7, 8


def field(number: int, value: int | str | bytes, wire: int | None = None) -> bytes:
    """One field: an int as a varint, text and bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3 | (wire or 0)) + varint(value)
    body = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | (2 if wire is None else wire)) + varint(len(body)) + body


def varint(value: int) -> bytes:
    """A protobuf varint; negative numbers as int64."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def many(number: int, values: Iterable[int | str | bytes]) -> bytes:
    """A repeated field."""
    return b"".join(field(number, value) for value in values)


def tensor(
    name: str,
    dims: Iterable[int],
    raw: bytes | None = None,
    dtype: int = FLOAT,
    external: dict[str, str] | None = None,
    extra: bytes = b"",
) -> bytes:
    """A TensorProto. external: entries of external data."""
    body = many(1, dims) + field(2, dtype) + field(8, name)
    if raw is not None:
        body += field(9, raw)
    if external is not None:
        body += many(13, [field(1, k) + field(2, v) for k, v in external.items()]) + field(14, 1)
    return body + extra


def ints(name: str, *values: int) -> bytes:
    """An int64 tensor of one dim."""
    raw = b"".join(value.to_bytes(8, "little", signed=True) for value in values)
    return tensor(name, [len(values)], raw, INT64)


def floats(name: str, count: int = 1) -> bytes:
    """A float32 tensor of one dim, all zero."""
    return tensor(name, [count], bytes(4 * count))


def type_of(dims: Iterable[int | str] = ("n",), dtype: int = FLOAT) -> bytes:
    """A TypeProto of a tensor."""
    shape = b"".join(
        field(1, field(1, dim) if isinstance(dim, int) else field(2, dim)) for dim in dims
    )
    return field(1, field(1, dtype) + field(2, shape))


def value(name: str, kind: bytes | None = None) -> bytes:
    """A ValueInfoProto, float32 of one symbolic dim unless `kind` is given."""
    return field(1, name) + field(2, type_of() if kind is None else kind)


def node(
    op: str,
    inputs: Iterable[str],
    outputs: Iterable[str],
    attributes: Iterable[bytes] = (),
    domain: str = "",
    name: str = "",
) -> bytes:
    """A NodeProto."""
    body = many(1, inputs) + many(2, outputs) + (field(3, name) if name else b"")
    return body + field(4, op) + many(5, attributes) + (field(7, domain) if domain else b"")


def attribute(name: str, number: int, content: int | str | bytes, kind: int) -> bytes:
    """An AttributeProto. number: the field of `content`; kind: its AttributeType."""
    return field(1, name) + field(number, content) + field(20, kind)


def graph(
    nodes: Iterable[bytes],
    inputs: Iterable[bytes] = (),
    outputs: Iterable[bytes] = (),
    initializers: Iterable[bytes] = (),
    extra: bytes = b"",
) -> bytes:
    """A GraphProto."""
    body = many(1, nodes) + field(2, "g") + many(5, initializers)
    return body + many(11, inputs) + many(12, outputs) + extra


def function(
    name: str, nodes: Iterable[bytes], inputs: Iterable[str], outputs: Iterable[str]
) -> bytes:
    """A FunctionProto of domain "f"."""
    body = field(1, name) + many(4, inputs) + many(5, outputs) + many(7, nodes)
    return body + many(9, [opset(17), opset(1, "f")]) + field(10, "f")


def opset(version: int, domain: str = "") -> bytes:
    """An OperatorSetIdProto."""
    return field(1, domain) + field(2, version)


def model(
    body: bytes, ir_version: int = 8, opsets: Iterable[bytes] = (), extra: bytes = b""
) -> bytes:
    """A ModelProto around a graph."""
    versions = list(opsets) or [opset(17)]
    return field(1, ir_version) + field(2, "hostile") + field(7, body) + many(8, versions) + extra


def chain(*nodes: bytes, initializers: Iterable[bytes] = (), extra: bytes = b"") -> bytes:
    """A model from "x" to "y"."""
    return model(graph(nodes, [value("x")], [value("y")], initializers), extra=extra)


def valid() -> bytes:
    """A small model that is in order: y = x + w."""
    return chain(node("Add", ["x", "w"], ["y"], name="add"), initializers=[floats("w")])
