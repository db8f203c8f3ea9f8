"""TensorProto: a tensor's description, checked against the data that is there.

No data is copied or decoded; only packed integers are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.formats.onnx import limits, schema
from engine.formats.onnx.external import ExternalFiles
from engine.formats.onnx.reading import Invalid, count_elements, dims, dtype_of, int32, text
from engine.formats.protobuf import Budget, count_varints, fields, signed, varints
from engine.types import DType

_FLOAT, _INT32, _STRING, _INT64, _DOUBLE, _UINT64 = range(6)
_NAMES = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")

_PACKED = {
    schema.TENSOR_FLOAT_DATA_PACKED: _FLOAT,
    schema.TENSOR_INT32_DATA_PACKED: _INT32,
    schema.TENSOR_INT64_DATA_PACKED: _INT64,
    schema.TENSOR_DOUBLE_DATA_PACKED: _DOUBLE,
    schema.TENSOR_UINT64_DATA_PACKED: _UINT64,
}
_SINGLE = {
    schema.TENSOR_FLOAT_DATA: _FLOAT,
    schema.TENSOR_INT32_DATA: _INT32,
    schema.TENSOR_STRING_DATA: _STRING,
    schema.TENSOR_INT64_DATA: _INT64,
    schema.TENSOR_DOUBLE_DATA: _DOUBLE,
    schema.TENSOR_UINT64_DATA: _UINT64,
}
_WIDTH = {_FLOAT: 4, _DOUBLE: 8}

# Where onnx.proto wants each type's elements; all others are in int32_data.
_HOME = {
    DType.FLOAT32: _FLOAT,
    DType.COMPLEX64: _FLOAT,
    DType.STRING: _STRING,
    DType.INT64: _INT64,
    DType.FLOAT64: _DOUBLE,
    DType.COMPLEX128: _DOUBLE,
    DType.UINT32: _UINT64,
    DType.UINT64: _UINT64,
}
_NUMBERS_PER_ELEMENT = {DType.COMPLEX64: 2, DType.COMPLEX128: 2}
_ELEMENTS_PER_NUMBER = {2: 4, 4: 2}  # by bits of an element


class Tensor(NamedTuple):
    """A tensor as the file has it. location: "" inside the model, else its external data file.

    raw, packed: the parts of the file that hold the elements, where they lie inside it.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    location: str
    raw: memoryview | None
    packed: Sequence[memoryview]


def read_tensor(view: memoryview, files: ExternalFiles, budget: Budget, where: str) -> Tensor:
    """Read a TensorProto and check that dims, element type and data fit together.

    where: what an error calls the tensor if it has no name of its own.
    """
    shape: list[int] = []
    number = location = 0
    name = ""
    raw: memoryview | None = None
    stored: dict[int, int] = {}
    packed: list[memoryview] = []
    external: list[memoryview] = []
    string_bytes = 0
    for tag, value in fields(view, budget):
        if tag == schema.TENSOR_DIMS:
            shape.append(signed(value))
            if len(shape) > limits.RANK:
                raise Invalid(f"{where} has a tensor of more than {limits.RANK} dims")
        elif tag == schema.TENSOR_DATA_TYPE:
            number = int32(value, view)
        elif tag == schema.TENSOR_RAW_DATA:
            raw = value
        elif tag == schema.TENSOR_NAME:
            name = text(value)
        elif tag == schema.TENSOR_DIMS_PACKED:
            shape += dims(value, budget)
            if len(shape) > limits.RANK:
                raise Invalid(f"{where} has a tensor of more than {limits.RANK} dims")
        elif tag in _PACKED:
            field = _PACKED[tag]
            stored[field] = stored.get(field, 0) + _count(field, value)
            packed.append(value)
        elif tag in _SINGLE:
            field = _SINGLE[tag]
            stored[field] = stored.get(field, 0) + 1
            if field == _STRING:
                string_bytes += len(value)
        elif tag == schema.TENSOR_EXTERNAL_DATA:
            external.append(value)
            if len(external) > limits.EXTERNAL_ENTRIES:
                raise Invalid(
                    f"{where} has a tensor with more than {limits.EXTERNAL_ENTRIES} entries of "
                    "external data"
                )
        elif tag == schema.TENSOR_DATA_LOCATION:
            location = int32(value, view)
        elif tag == schema.TENSOR_SEGMENT:
            raise Invalid(f"{where} has a tensor cut into segments, which no runtime joins")

    what = f"tensor {name!r}" if name else where
    dtype = dtype_of(number, what)
    elements = count_elements(shape, what)
    nbytes = (elements * dtype.bits + 7) // 8
    stored = {field: count for field, count in stored.items() if count}
    if location == 1:
        if dtype is DType.STRING:
            raise Invalid(f"{what} keeps strings in external data, which ONNX does not allow")
        if stored or raw:
            raise Invalid(f"{what} has data in the model and in an external file; expected one")
        file = files.check(external, nbytes, what, budget)
        return Tensor(name, dtype, tuple(shape), nbytes, file, None, ())
    if location != 0:
        raise Invalid(f"{what} has data location {location}; expected 0 (here) or 1 (external)")
    if raw is not None:
        if stored:
            [field, *_] = stored
            raise Invalid(f"{what} has data in raw_data and in {_NAMES[field]}; expected one")
        if dtype is DType.STRING:
            raise Invalid(f"{what} keeps strings in raw_data; expected string_data")
        if len(raw) != nbytes:
            raise Invalid(
                f"{what} is {dtype}{shape}, {nbytes:,} bytes, but its data has {len(raw):,} bytes"
            )
    else:
        _check_numbers(what, dtype, shape, elements, stored)
    if dtype is DType.STRING:
        nbytes = string_bytes
    return Tensor(name, dtype, tuple(shape), nbytes, "", raw, packed)


def read_ints(tensor: Tensor, budget: Budget) -> list[int] | None:
    """Return the elements of an int64 tensor; None where they are not in the model file."""
    if tensor.dtype is not DType.INT64 or tensor.location:
        return None
    if tensor.raw is not None:
        return [int(value) for value in np.frombuffer(tensor.raw, "<i8")]
    numbers = [signed(value) for part in tensor.packed for value in varints(part, budget)]
    elements = 1
    for dim in tensor.shape:
        elements *= dim
    return numbers if len(numbers) == elements else None  # unpacked ones were not kept


def _count(field: int, packed: memoryview) -> int:
    width = _WIDTH.get(field)
    if width is None:
        return count_varints(packed)
    if len(packed) % width:
        raise Invalid(f"{_NAMES[field]} of {len(packed):,} bytes; expected a multiple of {width}")
    return len(packed) // width


def _check_numbers(
    what: str, dtype: DType, shape: list[int], elements: int, stored: dict[int, int]
) -> None:
    home = _HOME.get(dtype, _INT32)
    for field in stored:
        if field != home:
            raise Invalid(
                f"{what} is {dtype}{shape} but has data in {_NAMES[field]}; "
                f"expected raw_data or {_NAMES[home]}"
            )
    group = _ELEMENTS_PER_NUMBER.get(dtype.bits, 1)
    wanted = (elements * _NUMBERS_PER_ELEMENT.get(dtype, 1) + group - 1) // group
    count = stored.get(home, 0)
    if count == wanted:
        return
    if not count:
        raise Invalid(f"{what} is {dtype}{shape}, {elements:,} elements, but holds no data")
    raise Invalid(
        f"{what} is {dtype}{shape} and needs {wanted:,} numbers in {_NAMES[home]}, "
        f"but has {count:,}"
    )
