"""The enums of the API, numbered as in MindSpore Lite."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np


class DataType(Enum):
    """The element type of a Tensor. Types of a model that have no name here are UNKNOWN."""

    UNKNOWN = 0
    BOOL = 30
    INT8 = 32
    INT16 = 33
    INT32 = 34
    INT64 = 35
    UINT8 = 37
    UINT16 = 38
    UINT32 = 39
    UINT64 = 40
    FLOAT16 = 42
    FLOAT32 = 43
    FLOAT64 = 44
    BFLOAT16 = 45
    INVALID = 2147483647

    @classmethod
    def from_numpy(cls, dtype: np.dtype[Any]) -> DataType:
        """The DataType of a numpy dtype, in whatever byte order; UNKNOWN where there is none."""
        found = _FROM_DTYPE.get(dtype)
        return found if found is not None else _FROM_NAME.get(dtype.name, cls.UNKNOWN)

    def to_numpy(self) -> np.dtype[Any]:
        """The numpy dtype of this type (ml_dtypes' for BFLOAT16).

        Raises TypeError for UNKNOWN and INVALID, which no array has.
        """
        if self not in _NAMES:
            raise TypeError(f"{self} has no numpy dtype; supported: {', '.join(NUMPY_NAMES)}")
        if self is DataType.BFLOAT16:
            from engine.types import DType

            return DType.BFLOAT16.numpy
        dtype: np.dtype[Any] = np.dtype(_NAMES[self])
        return dtype


_NAMES = {
    member: member.name.lower()
    for member in DataType
    if member not in (DataType.UNKNOWN, DataType.INVALID)
}
_FROM_NAME = {name: member for member, name in _NAMES.items()}
NUMPY_NAMES = tuple(_FROM_NAME)
"""numpy's names of the types that arrays of the API have."""

# Looked at first: a dtype's name takes numpy a microsecond.
_FROM_DTYPE = {np.dtype(name): _FROM_NAME[name] for name in _FROM_NAME if name != "bfloat16"}


class Format(Enum):
    """The meaning of a tensor's axes: a label, which changes no data."""

    DEFAULT = -1
    NCHW = 0
    NHWC = 1
    NHWC4 = 2
    HWKC = 3
    HWCK = 4
    KCHW = 5
    CKHW = 6
    KHWC = 7
    CHWK = 8
    HW = 9
    HW4 = 10
    NC = 11
    NC4 = 12
    NC4HW4 = 13
    NCDHW = 15
    NWC = 16
    NCW = 17
    NDHWC = 18
    NC8HW8 = 19


class FmkType(Enum):
    """The framework that a model to convert comes from."""

    TF = 0
    CAFFE = 1
    ONNX = 2
    MINDIR = 3
    TFLITE = 4
    PYTORCH = 5


class ModelGroupFlag(Enum):
    """The memory that the models of a group share."""

    SHARE_WEIGHT = 1
    SHARE_WORKSPACE = 2
    SHARE_WEIGHT_WORKSPACE = 3


class ModelType(Enum):
    """The kind of a model's file, as MindSpore Lite's scripts say it.

    The reader goes by the file's content: an ONNX file is read as such under either name.
    """

    MINDIR = 0
    MINDIR_LITE = 4
