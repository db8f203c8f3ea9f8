"""MindSpore's .ckpt: checkpoint.proto, a run of values that are each a name and a tensor.

A tensor above 512 MiB comes in several values of one name, whose contents follow each other; each
has the dims of the whole. A file may end in a checksum, which is no protobuf.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import BinaryIO

from engine.errors import ModelError
from engine.formats.onnx import limits
from engine.formats.onnx.writer import head, number
from engine.formats.protobuf import Budget, WireError, fields, signed, varints
from engine.sharding.files import Malformed, text_of
from engine.sharding.stored import MOST_BYTES, Array, Checkpoint, Stored, ToWrite, bytes_of
from engine.types import DType

# checkpoint.proto: fields as keys (number << 3 | wire type).
_VALUE = 1 << 3 | 2
_TAG, _TENSOR, _MAP_TENSOR = 1 << 3 | 2, 2 << 3 | 2, 3 << 3 | 2
_DIMS, _DIMS_PACKED, _TYPE, _CONTENT = 1 << 3, 1 << 3 | 2, 2 << 3 | 2, 3 << 3 | 2

_PIECE_BYTES = 512 << 20
_CRC_MARK, _CRC_BYTES = b"crc_num", 10

_NAMES = {
    DType.INT8: "Int8", DType.UINT8: "UInt8", DType.INT16: "Int16", DType.UINT16: "UInt16",
    DType.INT32: "Int32", DType.UINT32: "UInt32", DType.INT64: "Int64", DType.UINT64: "UInt64",
    DType.FLOAT16: "Float16", DType.FLOAT32: "Float32", DType.FLOAT64: "Float64",
    DType.BOOL: "Bool", DType.BFLOAT16: "BFloat16", DType.COMPLEX64: "Complex64",
    DType.COMPLEX128: "Complex128",
}  # fmt: skip
_TYPES = {name.lower(): dtype for dtype, name in _NAMES.items()}  # older versions write "Uint8"


def read(path: Path, view: memoryview, crc_check: bool) -> Checkpoint:
    """Find the tensors of a .ckpt. Raises ModelError."""
    name = str(path)
    mark = -len(_CRC_MARK) - _CRC_BYTES
    body = view
    if bytes(view[mark:-_CRC_BYTES]) == _CRC_MARK:
        body = view[:mark]
        if crc_check and zlib.crc32(body) != int.from_bytes(view[-_CRC_BYTES:], "big"):
            raise ModelError(
                f"{path}: damaged: its checksum is not that of its content; copy the file again",
                name,
            )
    budget = Budget(limits.FIELDS)
    found: dict[str, Stored] = {}
    try:
        for key, value in fields(body, budget):
            if key == _VALUE:
                _add(found, _value(value, budget))
    except WireError as error:
        raise ModelError(
            f"{path}: damaged at byte {error.offset(view):,}: {error}; expected a checkpoint of "
            "MindSpore; copy the file again (and look at dec_mode, if it is encrypted)",
            name,
        ) from error
    except Malformed as error:
        raise ModelError(f"{path}: {error}", name) from error
    if not found:
        raise ModelError(f"{path}: holds no parameters; expected a checkpoint of MindSpore", name)
    for stored in found.values():
        try:
            found[stored.name] = _checked(stored)
        except Malformed as error:
            raise ModelError(f"{path}: {error}", name) from error
    return Checkpoint(path, found)


def _value(view: memoryview, budget: Budget) -> Stored:
    name, kind, shape = "", "", []
    pieces: list[memoryview] = []
    for key, value in fields(view, budget):
        if key == _TAG:
            name = text_of(value)
        elif key == _MAP_TENSOR:
            kind, pieces = "maptensor", [value]
        elif key == _TENSOR:
            for inner, part in fields(value, budget):
                if inner == _DIMS:
                    shape.append(signed(part))
                elif inner == _DIMS_PACKED:
                    shape += map(signed, varints(part, budget))
                elif inner == _TYPE:
                    kind = text_of(part)
                elif inner == _CONTENT:
                    pieces.append(part)
    if len(shape) > limits.RANK or any(dim < 0 for dim in shape):
        raise Malformed(f"parameter {name!r} has the dims {str(shape)[:60]}")
    return Stored(name, None, tuple(shape), pieces, kind)


def _add(found: dict[str, Stored], value: Stored) -> None:
    """Take a value, which may be the next piece of one that came before."""
    before = found.get(value.name)
    if before is None:
        found[value.name] = value
        return
    if (before.shape, before.kind) != (value.shape, value.kind):
        raise Malformed(
            f"parameter {value.name!r} comes twice, as {before.kind}{list(before.shape)} and as "
            f"{value.kind}{list(value.shape)}"
        )
    assert isinstance(before.pieces, list)
    before.pieces.extend(value.pieces)


def _checked(stored: Stored) -> Stored:
    """Return a tensor with its type, its bytes counted."""
    dtype = _TYPES.get(stored.kind.lower())
    if dtype is None:
        return stored
    shape, nbytes = stored.shape, stored.nbytes
    if prod(dim or 1 for dim in shape) * dtype.bits // 8 > MOST_BYTES:
        raise Malformed(f"parameter {stored.name!r} has the dims {str(shape)[:60]}")
    if shape == (0,) and nbytes:  # how a scalar is written
        shape = ()
    elements = prod(shape)
    wanted = elements * dtype.bits // 8
    # Some versions keep the float32 that they compute bfloat16 as.
    widened = (
        DType.FLOAT32 if dtype is DType.BFLOAT16 and elements and nbytes == 2 * wanted else None
    )
    if nbytes != wanted and widened is None:
        raise Malformed(
            f"parameter {stored.name!r} is {stored.kind}{list(shape)}, {wanted:,} bytes, but its "
            f"data has {nbytes:,} bytes; copy the file again"
        )
    return Stored(stored.name, dtype, shape, stored.pieces or [memoryview(b"")], "", widened)


def write(
    file: BinaryIO,
    tensors: Sequence[ToWrite],
    value_of: Callable[[ToWrite], Array],
    crc_check: bool,
) -> None:
    """Write a .ckpt. See `write_checkpoint`."""
    checksum = 0
    for tensor in tensors:
        checksum = _write_one(file, tensor, value_of, checksum if crc_check else None)
    if crc_check:
        file.write(_CRC_MARK + checksum.to_bytes(_CRC_BYTES, "big"))


def _write_one(
    file: BinaryIO,
    tensor: ToWrite,
    value_of: Callable[[ToWrite], Array],
    checksum: int | None,
) -> int:
    """Write one tensor, of which nothing is held when this returns; return the new checksum."""
    for part in _message(tensor, value_of):
        file.write(part)
        if checksum is not None:
            checksum = zlib.crc32(part, checksum)
    return checksum or 0


def _message(tensor: ToWrite, value_of: Callable[[ToWrite], Array]) -> list[bytes | memoryview]:
    if tensor.dtype is None:
        assert tensor.stored is not None
        kind, contents = tensor.stored.kind, list(tensor.stored.pieces)
        if kind == "maptensor":
            inner: list[bytes | memoryview] = [_text_field(1, tensor.name)]
            inner += [head(3, len(contents[0])), contents[0]]
            return [head(1, sum(map(len, inner))), *inner]
    else:
        if tensor.dtype not in _NAMES:
            raise ModelError(
                f"parameter {tensor.name!r} is {tensor.dtype}, which a .ckpt cannot hold; write "
                ".safetensors"
            )
        kind = _NAMES[tensor.dtype]
        whole = bytes_of(value_of(tensor))
        contents = [
            whole[start : start + _PIECE_BYTES] for start in range(0, len(whole) or 1, _PIECE_BYTES)
        ]
    shape = tensor.shape if tensor.shape or tensor.dtype is None else (0,)
    before = b"".join(number(1, dim) for dim in shape) + _text_field(2, kind)
    parts: list[bytes | memoryview] = []
    for content in contents:
        start = before + head(3, len(content))
        name = _text_field(1, tensor.name) + head(2, len(start) + len(content))
        parts += [head(1, len(name) + len(start) + len(content)), name, start, content]
    return parts


def _text_field(field: int, text: str) -> bytes:
    data = text.encode()
    return head(field, len(data)) + data
