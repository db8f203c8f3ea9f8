"""The protocol's names of element types, as FP32, and numpy's dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.types import DType
from engine_serve.errors import RequestError

BYTES = "BYTES"

_NAMES = {
    DType.BOOL: "BOOL",
    DType.UINT8: "UINT8",
    DType.UINT16: "UINT16",
    DType.UINT32: "UINT32",
    DType.UINT64: "UINT64",
    DType.INT8: "INT8",
    DType.INT16: "INT16",
    DType.INT32: "INT32",
    DType.INT64: "INT64",
    DType.FLOAT16: "FP16",
    DType.BFLOAT16: "BF16",
    DType.FLOAT32: "FP32",
    DType.FLOAT64: "FP64",
    DType.STRING: BYTES,
    # The protocol has no names for these; they are raw bytes, one an element.
    DType.FLOAT8E4M3FN: "FP8_E4M3FN",
    DType.FLOAT8E4M3FNUZ: "FP8_E4M3FNUZ",
    DType.FLOAT8E5M2: "FP8_E5M2",
    DType.FLOAT8E5M2FNUZ: "FP8_E5M2FNUZ",
}
NUMPY: dict[str, np.dtype[Any]] = {name: dtype.numpy for dtype, name in _NAMES.items()}
"""numpy's dtype of each name; object for BYTES."""
_OF_NUMPY = {dtype: name for name, dtype in NUMPY.items()}


def name_of(dtype: DType) -> str:
    """Return the protocol's name of an element type; numpy's where it has none."""
    return _NAMES.get(dtype, str(dtype).upper())


def of_array(array: np.ndarray[Any, Any]) -> str:
    """Return the protocol's name of an array's element type. Raises RequestError."""
    found = _OF_NUMPY.get(array.dtype)
    if found is None:
        if array.dtype.kind in "OUST":
            return BYTES
        raise RequestError(f"the protocol cannot carry elements of type {array.dtype.name}")
    return found


def numpy_of(datatype: object, name: str) -> np.dtype[Any]:
    """Return the dtype of a name; `name` is the input's, for the error."""
    found = NUMPY.get(datatype) if isinstance(datatype, str) else None
    if found is None:
        raise RequestError(
            f"input {name!r}: datatype must be one of {', '.join(NUMPY)}, got {datatype!r}", name
        )
    return found
