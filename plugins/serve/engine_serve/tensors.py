"""Values on the wire: raw little-endian bytes, lists of JSON, and BYTES with their lengths."""

from __future__ import annotations

import math
import struct
import sys
from typing import Any, TypeAlias

import numpy as np

from engine_serve.datatypes import BYTES, numpy_of
from engine_serve.errors import RequestError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Raw: TypeAlias = bytes | bytearray | memoryview

_LENGTH = struct.Struct("<I")
_MOST_AXES = 64  # numpy's limit
_MOST_ELEMENTS = 2**48
_SMALL = 65536

if sys.byteorder != "little":
    raise ImportError("the protocol's bytes are little-endian; this machine's are not")


def shape_of(shape: object, name: str) -> tuple[int, ...]:
    """Return a request's shape as a tuple. Raises RequestError that names the input."""
    if not isinstance(shape, (list, tuple)):
        raise RequestError(f"input {name!r}: shape must be a list of sizes, got {shape!r}", name)
    sizes = tuple(shape)
    for size in sizes:
        if type(size) is not int or size < 0:
            raise RequestError(
                f"input {name!r}: shape must be a list of whole numbers from 0, "
                f"got {_short(sizes)}",
                name,
            )
    if len(sizes) > _MOST_AXES or math.prod(sizes) > _MOST_ELEMENTS or sum(sizes) > _MOST_ELEMENTS:
        raise RequestError(f"input {name!r}: shape {_short(sizes)} is too large", name)
    return sizes


def from_raw(datatype: object, shape: object, data: Raw, name: str) -> Array:
    """Return the array that raw bytes hold. It has the bytes' memory, but for BYTES."""
    dtype = numpy_of(datatype, name)
    sizes = shape_of(shape, name)
    if datatype == BYTES:
        return _texts(data, sizes, name)
    wanted = math.prod(sizes) * dtype.itemsize
    if len(data) != wanted:
        raise RequestError(
            f"input {name!r}: {datatype}{list(sizes)} takes {wanted} bytes, got {len(data)}", name
        )
    if datatype == "BOOL":
        flags: Array = np.frombuffer(data, np.uint8).reshape(sizes) != 0  # a bool is 0 or 1
        return flags
    return np.frombuffer(data, dtype).reshape(sizes)


def _texts(data: Raw, shape: tuple[int, ...], name: str) -> Array:
    wanted = math.prod(shape)
    if 4 * wanted > len(data):  # before memory is had for what a shape says
        raise RequestError(
            f"input {name!r}: BYTES{list(shape)} takes {wanted} elements, each with 4 bytes of "
            f"length; got {len(data)} bytes",
            name,
        )
    elements = np.empty(wanted, object)
    at = 0
    for place in range(wanted):
        if at + 4 > len(data):
            raise RequestError(
                f"input {name!r}: BYTES{list(shape)} takes {wanted} elements, got {place}", name
            )
        (length,) = _LENGTH.unpack_from(data, at)
        at += 4
        if at + length > len(data):
            raise RequestError(
                f"input {name!r}: element {place} has a length of {length} bytes, "
                f"but {len(data) - at} are left",
                name,
            )
        elements[place] = text_of(bytes(data[at : at + length]), name, place)
        at += length
    if at != len(data):
        raise RequestError(
            f"input {name!r}: {len(data) - at} bytes are left after {wanted} elements", name
        )
    return elements.reshape(shape)


def text_of(element: bytes, name: str, place: int) -> str:
    """Return an element of BYTES as the model takes it. Raises RequestError."""
    try:
        return element.decode()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"input {name!r}: element {place} must be UTF-8, which ONNX's strings are: {error}",
            name,
        ) from error


def to_raw(array: Array) -> Raw:
    """Return an array's bytes: its own memory where it is large and contiguous, but for BYTES."""
    if array.dtype.kind in "OUST":
        parts: list[bytes] = []
        for element in array.ravel():
            text = element if isinstance(element, bytes) else str(element).encode()
            parts += (_LENGTH.pack(len(text)), text)
        return b"".join(parts)
    if array.nbytes < _SMALL:
        return array.tobytes()  # sooner done than a view of it
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def from_json(datatype: object, shape: object, data: object, name: str) -> Array:
    """Return the array of a list of JSON, nested or flat. Raises RequestError."""
    dtype = numpy_of(datatype, name)
    sizes = shape_of(shape, name)
    flat = _flat(data, name, _MOST_AXES)
    if len(flat) != math.prod(sizes):
        raise RequestError(
            f"input {name!r}: shape {list(sizes)} takes {math.prod(sizes)} elements, "
            f"got {len(flat)}",
            name,
        )
    return cast(flat, dtype, str(datatype), name).reshape(sizes)


def _flat(data: object, name: str, depth: int) -> list[Any]:
    """Return the elements of nested lists in their order. Raises RequestError for deeper ones."""
    if not depth:
        raise RequestError(f"input {name!r}: data is nested more than {_MOST_AXES} deep", name)
    if not isinstance(data, list):
        return [data]
    if list not in set(map(type, data)):
        return data
    return [element for part in data for element in _flat(part, name, depth - 1)]


def cast(flat: list[Any], dtype: np.dtype[Any], datatype: str, name: str) -> Array:
    """Return elements as an array of a type that holds each of them. Raises RequestError."""
    allowed: set[type] = {str} if datatype == BYTES else {int, float}
    allowed = {bool} if datatype == "BOOL" else allowed
    kinds = set(map(type, flat))
    if not kinds <= allowed:
        raise _misfit(name, datatype, next(x for x in flat if type(x) not in allowed))
    if datatype == BYTES:
        elements = np.empty(len(flat), object)
        elements[:] = flat
        return elements
    try:
        with np.errstate(all="ignore"):
            array: Array = np.array(flat, dtype)
            exact = (
                np.array(flat, np.float64) if kinds & {float} or dtype.kind not in "iub" else None
            )
    except (OverflowError, ValueError, TypeError) as error:
        raise RequestError(f"input {name!r}: {datatype} cannot hold it: {error}", name) from error
    if exact is None:
        return array
    if dtype.kind in "iu":  # each is checked: a float may stand for a whole number
        lost = np.array([x != y for x, y in zip(flat, array.tolist(), strict=True)], bool)
    else:
        lost = np.isfinite(exact) & ~np.isfinite(array.astype(np.float64))
    if lost.any():
        raise _misfit(name, datatype, flat[int(lost.argmax())])
    return array


def _misfit(name: str, datatype: str, element: object) -> RequestError:
    text = f"input {name!r}: an element of {datatype} cannot be {_short(element)}"
    return RequestError(text, name)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def to_json(array: Array) -> Any:
    """Return an array's elements, flat, for `dumps`."""
    if array.dtype.kind in "OUST":
        return [x.decode(errors="replace") if isinstance(x, bytes) else str(x) for x in array.flat]
    if array.dtype.kind not in "biuf" or array.dtype.itemsize < 4:
        # Types of ml_dtypes and float16 are exact in float64; so are small whole numbers.
        flat = array.astype(object if array.dtype.kind in "biu" else np.float64).ravel()
    else:
        flat = array.ravel()
    if flat.dtype.kind == "f" and np.isfinite(flat).all():
        return np.ascontiguousarray(flat)
    return flat.tolist()
