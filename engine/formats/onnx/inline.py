"""External data that is in memory, put into the model that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.errors import ModelError
from engine.formats.onnx import limits, schema, writer
from engine.formats.onnx.external import entries_of
from engine.formats.onnx.reading import dims, dtype_of
from engine.formats.onnx.writer import Buffer, Parts
from engine.formats.protobuf import Budget, fields, signed, spans
from engine.types import ModelSource


def inlined(source: ModelSource) -> ModelSource:
    """The model with all of `source.files` in its `data`; itself where there are none.

    `data` must have been checked, and its lengths be as short as protobuf's writers make them.
    Raises ModelError where that makes it larger than protobuf can.
    """
    if not source.files:
        return source
    assert source.data is not None, "what names files in memory is in memory itself"
    budget = Budget(limits.FIELDS)

    def tensor(view: memoryview) -> Parts:
        return _with_data(view, source, budget)

    def graph(view: memoryview) -> Parts:
        return _changed(view, schema.GRAPH_INITIALIZER, tensor, budget)

    parts = _changed(memoryview(source.data), schema.MODEL_GRAPH, graph, budget)
    size = sum(map(len, parts))
    if size > limits.MODEL_BYTES:
        raise ModelError(
            f"{source.name}: {size:,} bytes as one ONNX model, and protobuf's limit is "
            f"{limits.MODEL_BYTES:,}; use a backend that reads weights in memory, such as cpu",
            str(source.path or ""),
        )
    return replace(source, data=writer.joined(parts), files={})


def _changed(
    message: memoryview, key: int, change: Callable[[memoryview], Parts], budget: Budget
) -> Parts:
    """The message with each field of that key changed, the others as they are."""
    parts: Parts = []
    done = 0
    for found, first, past in spans(message, 0, len(message), budget):
        if found == key:
            inner = change(message[first:past])
            head = writer.head(key >> 3, past - first)
            parts.append(message[done : first - len(head)])
            parts.append(writer.head(key >> 3, sum(map(len, inner))))
            parts += inner
            done = past
    return [*parts, message[done:]]


def _with_data(view: memoryview, source: ModelSource, budget: Budget) -> Parts:
    """A tensor with its data in it; as it is where that is in no file in memory."""
    shape: list[int] = []
    name, number = b"", 0
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
        elif key == schema.TENSOR_EXTERNAL_DATA:
            entries.append(value)
    named = entries_of(entries, "a tensor", budget)
    held: Buffer | None = source.files.get(named.get("location", ""))
    if held is None:
        return [view]
    first = int(named.get("offset", "0"))
    data = memoryview(held)[first:]
    if "length" in named:
        data = data[: int(named["length"])]
    dtype = dtype_of(number, "a tensor")
    return writer.tensor_parts(writer.Tensor(name.decode(), dtype, tuple(shape), data))
