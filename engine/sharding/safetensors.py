"""The .safetensors form: a JSON header that says where each tensor's bytes are, then the bytes.

By hand: the header is all there is to it, and the package's numpy form copies each tensor and has
no bfloat16.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from engine.errors import ModelError, one_line
from engine.formats.onnx import limits
from engine.sharding.files import Malformed
from engine.sharding.stored import MOST_BYTES, Array, Checkpoint, Stored, ToWrite, bytes_of
from engine.types import DType

_HEADER_BYTES = 100_000_000  # the most that the format allows
_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 8

_NAMES = {
    DType.BOOL: "BOOL", DType.UINT8: "U8", DType.INT8: "I8", DType.UINT16: "U16",
    DType.INT16: "I16", DType.UINT32: "U32", DType.INT32: "I32", DType.UINT64: "U64",
    DType.INT64: "I64", DType.FLOAT16: "F16", DType.BFLOAT16: "BF16", DType.FLOAT32: "F32",
    DType.FLOAT64: "F64", DType.FLOAT8E4M3FN: "F8_E4M3", DType.FLOAT8E5M2: "F8_E5M2",
    DType.COMPLEX64: "C64",
}  # fmt: skip
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


def read(path: Path, view: memoryview, crc_check: bool) -> Checkpoint:
    """Find the tensors of a .safetensors file. Raises ModelError."""
    try:
        header, data = _header(view)
        metadata = header.pop("__metadata__", {})
        tensors = {name: _tensor(name, entry, data) for name, entry in header.items()}
        _check_places(header, len(data))
        if crc_check and "crc_num" in metadata:
            _check_sum(tensors, str(metadata["crc_num"]))
    except Malformed as error:
        raise ModelError(
            f"{path}: {error}; expected a safetensors file; copy the file again", str(path)
        ) from error
    if not tensors:
        raise ModelError(f"{path}: holds no parameters", str(path))
    return Checkpoint(path, tensors, {str(key): str(value) for key, value in metadata.items()})


def _header(view: memoryview) -> tuple[dict[str, Any], memoryview]:
    if len(view) < _LENGTH.size:
        raise Malformed(f"damaged: {len(view)} bytes, too few for a header")
    [length] = _LENGTH.unpack(view[: _LENGTH.size])
    start = _LENGTH.size + length
    if length > _HEADER_BYTES or start > len(view):
        raise Malformed(
            f"damaged: claims a header of {length:,} bytes, and has {len(view) - _LENGTH.size:,}"
        )
    try:
        header = json.loads(bytes(view[_LENGTH.size : start]))
    except (ValueError, RecursionError) as error:
        raise Malformed(f"damaged: its header is no JSON: {one_line(error)}") from error
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__", {}), dict):
        raise Malformed("damaged: its header is no JSON object of tensors")
    return header, view[start:]


def _tensor(name: str, entry: object, data: memoryview) -> Stored:
    described = entry if isinstance(entry, dict) else {}
    kind = described.get("dtype")
    shape, place = _sizes(described.get("shape")), _sizes(described.get("data_offsets"))
    if not isinstance(kind, str) or shape is None or place is None or len(place) != 2:
        raise Malformed(f"damaged: parameter {name!r} is described by {str(entry)[:80]}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Malformed(f"damaged: has a name that is no text: {name!r}") from None
    start, end = place
    if not start <= end <= len(data):
        raise Malformed(
            f"damaged: parameter {name!r} wants bytes {start:,} to {end:,} of {len(data):,}"
        )
    if len(shape) > limits.RANK:
        raise Malformed(f"parameter {name!r} has {len(shape)} dims")
    dtype = _TYPES.get(kind)
    if dtype is not None:
        if prod(size or 1 for size in shape) * dtype.bits // 8 > MOST_BYTES:
            raise Malformed(f"damaged: parameter {name!r} has the dims {str(shape)[:60]}")
        wanted = prod(shape) * dtype.bits // 8
        if wanted != end - start:
            raise Malformed(
                f"damaged: parameter {name!r} is {dtype}{list(shape)}, {wanted:,} bytes, but its "
                f"data has {end - start:,} bytes"
            )
    return Stored(name, dtype, shape, [data[start:end]], "" if dtype else kind)


def _sizes(value: object) -> tuple[int, ...] | None:
    """Return a list of sizes; None for anything else."""
    if not isinstance(value, list):
        return None
    whole = all(isinstance(size, int) and not isinstance(size, bool) for size in value)
    return tuple(value) if whole and min(value, default=0) >= 0 else None


def _check_places(header: dict[str, Any], total: int) -> None:
    """Raise Malformed where two tensors share bytes, or some bytes are no tensor's."""
    end = 0
    for name, (start, stop) in sorted(
        ((name, entry["data_offsets"]) for name, entry in header.items()), key=lambda item: item[1]
    ):
        if start != end:
            raise Malformed(
                f"damaged: parameter {name!r} begins at byte {start:,} of the data; expected "
                f"{end:,}"
            )
        end = stop
    if end != total:
        raise Malformed(f"damaged: {total:,} bytes of data, of which tensors take {end:,}")


def _check_sum(tensors: dict[str, Stored], wanted: str) -> None:
    """Compare the checksum that MindSpore writes: over names and contents, in order of names."""
    checksum = 0
    for name in sorted(tensors):
        checksum = zlib.crc32(name.encode(), checksum)
        checksum = zlib.crc32(tensors[name].pieces[0], checksum)
    if str(checksum) != wanted:
        raise Malformed("damaged: its checksum is not that of its content")


def write(file: BinaryIO, tensors: Sequence[ToWrite], value_of: Callable[[ToWrite], Array]) -> None:
    """Write a .safetensors file. See `write_checkpoint`."""
    # Wide elements first, as the package does: so each is aligned.
    ordered = sorted(tensors, key=lambda tensor: -(tensor.dtype.bits if tensor.dtype else 0))
    header: dict[str, Any] = {"__metadata__": {"format": "ms"}}
    end = 0
    for tensor in ordered:
        kind = None if tensor.dtype is None else _NAMES.get(tensor.dtype)
        if kind is None:
            got = tensor.stored.kind if tensor.stored else tensor.dtype
            raise ModelError(
                f"parameter {tensor.name!r} is {got}, which safetensors cannot hold; write a "
                ".ckpt, or leave it out of the checkpoint"
            )
        start, end = end, end + tensor.nbytes
        header[tensor.name] = {
            "dtype": kind, "shape": list(tensor.shape), "data_offsets": [start, end]
        }  # fmt: skip
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % _ALIGNMENT)
    file.write(_LENGTH.pack(len(text)) + text)
    for tensor in ordered:
        file.write(bytes_of(value_of(tensor)))
