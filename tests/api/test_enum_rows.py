"""The enums' names and numbers, and what the package and its modules export."""

from __future__ import annotations

import copy
import pickle
from enum import Enum, IntEnum

import ml_dtypes
import numpy as np
import pytest

import engine

MEMBERS = {
    "ModelType": {"MINDIR": 0, "MINDIR_LITE": 4},
    "FmkType": {"TF": 0, "CAFFE": 1, "ONNX": 2, "MINDIR": 3, "TFLITE": 4, "PYTORCH": 5},
    "ModelGroupFlag": {"SHARE_WEIGHT": 1, "SHARE_WORKSPACE": 2, "SHARE_WEIGHT_WORKSPACE": 3},
    "DataType": {
        "UNKNOWN": 0, "BOOL": 30, "INT8": 32, "INT16": 33, "INT32": 34, "INT64": 35, "UINT8": 37,
        "UINT16": 38, "UINT32": 39, "UINT64": 40, "FLOAT16": 42, "FLOAT32": 43, "FLOAT64": 44,
        "BFLOAT16": 45, "INVALID": 2147483647,
    },
    "Format": {
        "DEFAULT": -1, "NCHW": 0, "NHWC": 1, "NHWC4": 2, "HWKC": 3, "HWCK": 4, "KCHW": 5,
        "CKHW": 6, "KHWC": 7, "CHWK": 8, "HW": 9, "HW4": 10, "NC": 11, "NC4": 12, "NC4HW4": 13,
        "NCDHW": 15, "NWC": 16, "NCW": 17, "NDHWC": 18, "NC8HW8": 19,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MEMBERS)
def test_an_enum_has_the_documented_members_and_is_no_int(name):
    kind = getattr(engine, name)
    assert {member.name: member.value for member in kind} == MEMBERS[name]
    assert issubclass(kind, Enum)
    assert not issubclass(kind, IntEnum)
    for member in kind:
        assert str(member) == f"{name}.{member.name}"
        assert member != member.value
        assert pickle.loads(pickle.dumps(member)) is member
        assert copy.deepcopy(member) is member


@pytest.mark.parametrize(
    "dtype", [each for each in engine.DataType if each.name not in ("UNKNOWN", "INVALID")]
)
def test_every_data_type_has_its_numpy_dtype_and_back(dtype):
    name = dtype.name.lower()
    expected = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    assert dtype.to_numpy() == expected
    assert engine.DataType.from_numpy(expected) is dtype
    if name != "bfloat16":
        assert engine.DataType.from_numpy(expected.newbyteorder()) is dtype


@pytest.mark.parametrize("dtype", [engine.DataType.UNKNOWN, engine.DataType.INVALID])
def test_a_data_type_that_no_array_has_says_so(dtype):
    with pytest.raises(TypeError, match=f"{dtype} has no numpy dtype; supported: bool, int8"):
        dtype.to_numpy()


@pytest.mark.parametrize("numpy_dtype", ["complex64", "U3", "O", "f4,i4", "M8[s]", "V4"])
def test_a_numpy_dtype_without_a_data_type_is_unknown(numpy_dtype):
    assert engine.DataType.from_numpy(np.dtype(numpy_dtype)) is engine.DataType.UNKNOWN


def test_the_package_exports_the_names_that_scripts_import():
    names = {
        "Context", "DataType", "FmkType", "Format", "Model", "ModelGroup", "ModelGroupFlag",
        "ModelType",
        "Tensor", "TensorMeta", "__version__",
    }  # fmt: skip
    assert names <= set(engine.__all__)
    assert isinstance(engine.__version__, str)


def test_what_is_out_of_scope_is_not_there():
    for name in ("LiteInfer", "LLMEngine", "LLMReq", "LLMRole"):
        with pytest.raises(AttributeError):
            getattr(engine, name)


def test_the_modules_that_scripts_reach_export_the_same_objects():
    assert engine.context.__all__ == ["Context"]
    assert sorted(engine.tensor.__all__) == ["DataType", "Format", "Tensor", "TensorMeta"]
    assert {"Model", "ModelType"} <= set(engine.model.__all__)
    for module in (engine.context, engine.tensor, engine.model):
        for name in module.__all__:
            assert getattr(module, name) is getattr(engine, name)
