from __future__ import annotations

import onnx
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from engine.formats.onnx import schema
from engine.formats.onnx.reading import DTYPES
from engine.formats.protobuf import BYTES, FIXED32, FIXED64, VARINT

MESSAGES: dict[str, Descriptor] = {
    "MODEL": onnx.ModelProto.DESCRIPTOR,
    "OPERATOR_SET_ID": onnx.OperatorSetIdProto.DESCRIPTOR,
    "STRING_STRING_ENTRY": onnx.StringStringEntryProto.DESCRIPTOR,
    "GRAPH": onnx.GraphProto.DESCRIPTOR,
    "NODE": onnx.NodeProto.DESCRIPTOR,
    "ATTRIBUTE": onnx.AttributeProto.DESCRIPTOR,
    "FUNCTION": onnx.FunctionProto.DESCRIPTOR,
    "TENSOR": onnx.TensorProto.DESCRIPTOR,
    "SPARSE_TENSOR": onnx.SparseTensorProto.DESCRIPTOR,
    "VALUE_INFO": onnx.ValueInfoProto.DESCRIPTOR,
    "TYPE": onnx.TypeProto.DESCRIPTOR,
    "TYPE_TENSOR": onnx.TypeProto.Tensor.DESCRIPTOR,
    "TYPE_SEQUENCE": onnx.TypeProto.Sequence.DESCRIPTOR,
    "TYPE_OPTIONAL": onnx.TypeProto.Optional.DESCRIPTOR,
    "TYPE_MAP": onnx.TypeProto.Map.DESCRIPTOR,
    "TENSOR_SHAPE": onnx.TensorShapeProto.DESCRIPTOR,
    "DIMENSION": onnx.TensorShapeProto.Dimension.DESCRIPTOR,
}
WIRES = {
    FieldDescriptor.TYPE_FLOAT: FIXED32,
    FieldDescriptor.TYPE_DOUBLE: FIXED64,
    FieldDescriptor.TYPE_INT32: VARINT,
    FieldDescriptor.TYPE_INT64: VARINT,
    FieldDescriptor.TYPE_UINT64: VARINT,
    FieldDescriptor.TYPE_ENUM: VARINT,
    FieldDescriptor.TYPE_STRING: BYTES,
    FieldDescriptor.TYPE_BYTES: BYTES,
    FieldDescriptor.TYPE_MESSAGE: BYTES,
}
KEYS = {
    name: value for name, value in vars(schema).items() if isinstance(value, int) and "_" in name
}


def candidates(name: str) -> list[int]:
    """Every key that onnx.proto could mean by a constant's name."""
    packed = name.endswith("_PACKED")
    found: list[int] = []
    for prefix, message in MESSAGES.items():
        if not name.startswith(f"{prefix}_"):
            continue
        wanted = name.removesuffix("_PACKED").removeprefix(f"{prefix}_").lower()
        found += [
            field.number << 3 | (BYTES if packed else WIRES[field.type])
            for field in message.fields
            if field.name == wanted
        ]
    return found


@pytest.mark.parametrize("name", KEYS)
def test_each_key_is_onnx_protos_own(name: str) -> None:
    assert KEYS[name] in candidates(name)


def test_the_table_is_not_empty() -> None:
    assert len(KEYS) > 70


def test_the_element_types_are_numbered_as_in_onnx() -> None:
    assert len(DTYPES) == len(onnx.TensorProto.DataType.values())
    for number, dtype in enumerate(DTYPES):
        if dtype is not None and dtype != "string":
            assert onnx.helper.tensor_dtype_to_np_dtype(number).name == dtype
