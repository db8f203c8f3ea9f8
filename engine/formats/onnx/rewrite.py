"""Changes a serialized model message by message: what is not changed is neither parsed nor copied.

The parts of the result are slices of the original until they are joined. That is how weights are
put into a model, taken out of it, and turned into inputs, without the onnx package and at any size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from engine.formats.onnx import schema, writer
from engine.formats.onnx.external import entries_of
from engine.formats.onnx.reading import dims, dtype_of
from engine.formats.onnx.writer import Parts
from engine.formats.protobuf import BYTES, VARINT, Budget, fields, signed
from engine.types import DType

Change: TypeAlias = "Callable[[memoryview], Parts | None]"
"""Gives the payload that a field is to have instead; None drops the field."""


def changed(message: memoryview, changes: Mapping[int, Change], budget: Budget) -> Parts:
    """Return the message with each field whose key is in `changes` changed, the others as they are.

    Keys and lengths are written anew: as short as they can be, whoever wrote the message.
    """
    parts: Parts = []
    for key, payload in fields(message, budget):
        number, wire = key >> 3, key & 7
        if wire == BYTES:
            change = changes.get(key)
            inner: Parts | None = [payload] if change is None else change(payload)
            if inner is not None:
                parts.append(writer.head(number, sum(map(len, inner))))
                parts += inner
        elif wire == VARINT:
            parts.append(writer.number(number, payload))
        else:
            parts += [writer.varint(key), payload]
    return parts


def entry(key: int, name: str, value: str) -> bytes:
    """Return a StringStringEntryProto as a field. key: the field's, as in `schema`."""
    texts = name.encode(), value.encode()
    inner = b"".join(writer.head(number, len(text)) + text for number, text in enumerate(texts, 1))
    return writer.head(key >> 3, len(inner)) + inner


class StoredTensor(NamedTuple):
    """A TensorProto as far as its data goes. entries: its external_data, {} for none."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    raw: memoryview | None
    entries: Mapping[str, str]


def stored_tensor(view: memoryview, budget: Budget) -> StoredTensor:
    """Read a TensorProto of a model that has been checked."""
    shape: list[int] = []
    name, number = b"", 0
    raw: memoryview | None = None
    entries = []
    for key, value in fields(view, budget):
        if key == schema.TENSOR_DIMS:
            shape.append(signed(value))
        elif key == schema.TENSOR_DIMS_PACKED:
            shape += dims(value, budget)
        elif key == schema.TENSOR_DATA_TYPE:
            number = value
        elif key == schema.TENSOR_NAME:
            name = bytes(value)
        elif key == schema.TENSOR_RAW_DATA:
            raw = value
        elif key == schema.TENSOR_EXTERNAL_DATA:
            entries.append(value)
    return StoredTensor(
        name.decode(),
        dtype_of(number, "a tensor"),
        tuple(shape),
        raw,
        entries_of(entries, "a tensor", budget),
    )
