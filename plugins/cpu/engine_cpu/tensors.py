"""Elements of a TensorProto, read from its bytes without onnx, however they are written.

Writers differ: `raw_data`, packed or single numbers of a field by type, or a file of its own.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from engine.model_bytes import Budget, fields, schema
from engine.types import DType, ModelSource

_FIELDS = 10_000_000  # the core has read the model within that
_SMALL_BYTES = 4096
_MOST_BYTES = 64 << 20  # of a tensor whose elements are wanted
_INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_FIXED = {
    schema.TENSOR_FLOAT_DATA: "<f4",
    schema.TENSOR_FLOAT_DATA_PACKED: "<f4",
    schema.TENSOR_DOUBLE_DATA: "<f8",
    schema.TENSOR_DOUBLE_DATA_PACKED: "<f8",
}
_NUMBERS = frozenset({
    schema.TENSOR_INT32_DATA, schema.TENSOR_INT64_DATA, schema.TENSOR_UINT64_DATA,
})  # fmt: skip
_PACKED = frozenset({
    schema.TENSOR_INT32_DATA_PACKED, schema.TENSOR_INT64_DATA_PACKED,
    schema.TENSOR_UINT64_DATA_PACKED,
})  # fmt: skip

Array: TypeAlias = np.ndarray[Any, Any]


def dtype_of(tensor: memoryview) -> DType | None:
    """Return a TensorProto's element type."""
    found = fields(tensor, Budget(_FIELDS))
    numbers = [value for tag, value in found if tag == schema.TENSOR_DATA_TYPE]
    return DType.from_onnx(numbers[-1]) if numbers else None


def is_empty(tensor: memoryview) -> bool:
    """Return True for a TensorProto of no elements."""
    return 0 in dims_of(tensor)


def has_axes(tensor: memoryview) -> bool:
    """Return True for a TensorProto that is no scalar."""
    return bool(dims_of(tensor))


def dims_of(tensor: memoryview) -> list[int]:
    """Return a TensorProto's sizes."""
    dims: list[int] = []
    for tag, payload in fields(tensor, Budget(_FIELDS)):
        if tag == schema.TENSOR_DIMS:
            dims.append(payload)
        elif tag == schema.TENSOR_DIMS_PACKED:
            dims += _varints(payload).tolist()
    return dims


def integers_of(tensor: memoryview) -> list[int] | None:
    """Return a TensorProto's elements; None where they are not integers, many, or elsewhere."""
    if len(tensor) > _SMALL_BYTES:
        return None
    array = array_of(tensor)
    return None if array is None or array.dtype.kind not in "iu" else [int(x) for x in array]


def array_of(
    tensor: memoryview, source: ModelSource | None = None, maps: bool = False
) -> Array | None:
    """Return a TensorProto's elements, flat; None where they are no numbers, or out of reach.

    source: the model, where external data is to be looked for. maps: map external data of more than
    64 MiB, from a file that nobody writes to; without it such data is out of reach. bfloat16 comes
    as float32.
    """
    kind = dtype_of(tensor)
    if kind is None or kind.value not in _INTEGERS | _FLOATS:
        return None
    raw, entries, parts, is_external = None, dict[str, str](), list[Array](), False
    for tag, payload in fields(tensor, Budget(_FIELDS)):
        if tag == schema.TENSOR_RAW_DATA:
            raw = payload
        elif tag == schema.TENSOR_DATA_LOCATION:
            is_external = bool(payload)
        elif tag == schema.TENSOR_EXTERNAL_DATA:
            key, value = _entry(payload)
            entries[key] = value
        elif tag in _FIXED:
            parts.append(np.frombuffer(payload, _FIXED[tag]))
        elif tag in _PACKED:
            parts.append(_varints(payload))
        elif tag in _NUMBERS:
            parts.append(np.array([payload], np.uint64))
    if is_external:
        raw = None if source is None else _external(entries, source, maps)
        if raw is None:
            return None
    if raw is not None:
        return _from_raw(raw, kind)
    return _from_numbers(np.concatenate(parts) if parts else np.empty(0, np.uint64), kind)


def _from_raw(raw: memoryview | bytes, kind: DType) -> Array | None:
    name = "uint16" if kind is DType.BFLOAT16 else kind.value
    dtype = np.dtype(name).newbyteorder("<")
    if len(raw) % dtype.itemsize:
        return None
    return _widened(np.frombuffer(raw, dtype), kind)


def _from_numbers(numbers: Array, kind: DType) -> Array:
    """Return elements that are written as numbers of a field; halves are, by their bits."""
    if numbers.dtype.kind == "f":
        return numbers
    if kind in (DType.FLOAT16, DType.BFLOAT16):
        bits = numbers.astype(np.uint16)
        return bits.view(np.float16) if kind is DType.FLOAT16 else _widened(bits, kind)
    return numbers.astype(np.int64).astype(kind.value)


def _widened(array: Array, kind: DType) -> Array:
    if kind is not DType.BFLOAT16:
        return array
    return (array.astype(np.uint32) << 16).view(np.float32)


def _varints(packed: memoryview) -> Array:
    """Return the varints of a packed field."""
    encoded = np.frombuffer(packed, np.uint8)
    lasts = np.flatnonzero(encoded < 128)
    if not len(lasts):
        return np.empty(0, np.uint64)
    firsts = np.concatenate([[0], lasts[:-1] + 1])
    if int((lasts - firsts).max()) > 9:
        raise ValueError("a varint of more than 64 bits")
    values = np.zeros(len(lasts), np.uint64)
    for place in range(int((lasts - firsts).max()) + 1):
        index = firsts + place
        digits = np.where(index <= lasts, encoded[np.minimum(index, lasts)] & 127, 0)
        values |= digits.astype(np.uint64) << np.uint64(7 * place)
    return values


def _entry(payload: memoryview) -> tuple[str, str]:
    key = value = ""
    for tag, text in fields(payload, Budget(_FIELDS)):
        if tag == schema.STRING_STRING_ENTRY_KEY:
            key = str(text, "utf-8")
        elif tag == schema.STRING_STRING_ENTRY_VALUE:
            value = str(text, "utf-8")
    return key, value


def _external(
    entries: dict[str, str], source: ModelSource, maps: bool
) -> memoryview | bytes | None:
    """Return a tensor's external data; where it lies the core has checked."""
    location, start = entries.get("location", ""), int(entries.get("offset", "0"))
    length = int(entries["length"]) if "length" in entries else None
    held = source.files.get(location)
    if held is not None:
        return memoryview(held)[start : None if length is None else start + length]
    if source.folder is None:
        return None
    with open(Path(source.folder) / location, "rb") as file:
        size = os.fstat(file.fileno()).st_size - start if length is None else length
        if size > _MOST_BYTES:
            if not maps:
                return None
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            return mapped[start : start + size]
        file.seek(start)
        return file.read(size)
