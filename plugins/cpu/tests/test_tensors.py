"""Elements of a TensorProto, read without onnx: expected is what onnx reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.types import ModelSource
from engine_cpu.tensors import array_of, dims_of, has_axes, integers_of, is_empty

SIGNED, UNSIGNED, REAL = [0, -1, 5, -128, 127], [0, 1, 5, 128, 255], [0.0, -1.5, 0.25, 3, 1e4]
VALUES: dict[str, list[Any]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), SIGNED),
    **dict.fromkeys(("uint8", "uint16", "uint32", "uint64"), UNSIGNED),
    **dict.fromkeys(("float16", "bfloat16", "float32", "float64"), REAL),
}
EXTREMES = {"int64": [-(2**63), 2**63 - 1], "uint64": [2**64 - 1], "int32": [-(2**31)]}
FIELDS = {"float32": 4, "float64": 10, "int64": 7, "uint32": 11, "uint64": 11}


def tensor(dtype: str, is_raw: bool) -> TensorProto:
    array = np.array(VALUES[dtype] + EXTREMES.get(dtype, []), getattr(ml_dtypes, dtype, dtype))
    if is_raw:
        return numpy_helper.from_array(array)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor("t", kind, array.shape, array.tolist())


def single(proto: TensorProto) -> bytes:
    """Numbers one by one instead of packed, as proto2 writers have them."""
    copy = TensorProto(name=proto.name, data_type=proto.data_type, dims=proto.dims)
    data = copy.SerializeToString()
    for name, number in (("int32_data", 5), ("int64_data", 7), ("uint64_data", 11)):
        for value in getattr(proto, name):
            data += bytes([number << 3]) + varint(value % (1 << 64))
    for name, number, kind in (("float_data", 4, "<f4"), ("double_data", 10, "<f8")):
        wire = 5 if kind == "<f4" else 1
        for value in getattr(proto, name):
            data += bytes([number << 3 | wire]) + np.array(value, kind).tobytes()
    return data


def varint(value: int) -> bytes:
    if value < 128:
        return bytes([value])
    return bytes([value & 127 | 128]) + varint(value >> 7)


@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("how", ["raw", "packed", "single"])
def test_elements_are_read_however_they_are_written(dtype: str, how: str) -> None:
    proto = tensor(dtype, how == "raw")
    data = single(proto) if how == "single" else proto.SerializeToString()
    assert (len(data) > len(proto.SerializeToString())) is (how == "single")
    expected = numpy_helper.to_array(TensorProto.FromString(data))
    found = array_of(memoryview(data))
    assert found is not None
    np.testing.assert_array_equal(found, expected.astype(found.dtype))
    assert found.dtype == ("float32" if dtype == "bfloat16" else dtype)
    assert dims_of(memoryview(data)) == [len(found)]
    is_integer = "int" in dtype
    assert integers_of(memoryview(data)) == (expected.tolist() if is_integer else None)


@pytest.mark.parametrize("is_held", [False, True], ids=["in a file", "in memory"])
def test_elements_are_read_from_where_they_lie(tmp_path: Path, is_held: bool) -> None:
    expected = np.arange(3000, dtype=np.int32)
    (tmp_path / "data").write_bytes(bytes(100) + expected.tobytes())
    proto = TensorProto(data_type=TensorProto.INT32, dims=[3000], data_location=1)
    for key, value in {"location": "data", "offset": "100", "length": "12000"}.items():
        proto.external_data.add(key=key, value=value)
    view = memoryview(proto.SerializeToString())
    held = {"data": (tmp_path / "data").read_bytes()} if is_held else {}
    source = ModelSource(format="onnx", folder=None if is_held else tmp_path, files=held)
    found = array_of(view, source)
    assert found is not None
    np.testing.assert_array_equal(found, expected)
    assert array_of(view) is None


def test_sizes_may_be_packed() -> None:
    proto = TensorProto(data_type=TensorProto.INT32, dims=[300, 0])
    written = memoryview(proto.SerializeToString())
    packed = bytes([0x0A, 3]) + varint(300) + b"\0" + bytes([0x10, TensorProto.INT32])
    for view in (written, memoryview(packed)):
        assert dims_of(view) == [300, 0]
        assert is_empty(view)
        assert has_axes(view)
    assert not has_axes(memoryview(onnx.numpy_helper.from_array(np.float32(1)).SerializeToString()))
