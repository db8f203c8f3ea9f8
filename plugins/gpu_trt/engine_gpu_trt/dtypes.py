"""Element types: the contract's names and TensorRT's, for what may go in and out of an engine."""

from __future__ import annotations

from typing import Any

from engine.types import DType, TensorSpec, ValueKind

# By name, not by number: TensorRT renumbers its enums between releases. The 4-bit types and
# E8M0 exist inside a network only, as weights and scales.
_NAMES = {
    DType.FLOAT32: "FLOAT",
    DType.FLOAT16: "HALF",
    DType.BFLOAT16: "BF16",
    DType.INT64: "INT64",
    DType.INT32: "INT32",
    DType.INT8: "INT8",
    DType.UINT8: "UINT8",
    DType.BOOL: "BOOL",
    DType.FLOAT8E4M3FN: "FP8",
}
KNOWN = ", ".join(str(dtype) for dtype in _NAMES)


def from_tensorrt(trt: Any, dtype: Any) -> DType:
    """Return the contract's name of a TensorRT type; KeyError for one that cannot go in or out."""
    return {getattr(trt.DataType, name): ours for ours, name in _NAMES.items()}[dtype]


def refusal(spec: TensorSpec, role: str) -> str:
    """Say why TensorRT cannot take `spec` as an input or output (`role`); "" where it can.

    Asked before the parser sees the model: that reads float64 as float32 without a word, and an
    unknown rank as a scalar.
    """
    what = f"{role} {spec.name!r} is {spec}"
    if spec.kind is not ValueKind.TENSOR:
        return f"{what}, and TensorRT has only tensors"
    if spec.dtype not in _NAMES:
        return f"{what}, and TensorRT has no such element type (it has {KNOWN})"
    if role == "input" and spec.shape is None:
        return f"{what}, and TensorRT must know how many axes there are"
    return ""
