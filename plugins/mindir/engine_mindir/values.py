"""Symbolic values that lowering binds names to.

A tensor is a `Value`. Known scalars are Python's own: numbers, strings, tuples, None and
`TypeId` for a dtype. `Closure` and `Choice` are functions that a later node may call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from engine.formats.onnx.writer import Buffer, External
from engine.types import DType as DType  # part of what is offered here

Shape: TypeAlias = "tuple[int | None, ...] | None"

# MindIR's TensorProto.DataType numbers ONNX's types the same way as far as both go.
DTYPES = {dtype.onnx: dtype for dtype in DType if dtype.onnx <= 16}
DTYPES[17] = DType.FLOAT64
DTYPES[18] = DType.INT4

# MindSpore's own numbers for types, as Cast and others have them among their arguments.
TYPE_IDS = {
    30: DType.BOOL, 31: DType.INT32, 32: DType.INT8, 33: DType.INT16, 34: DType.INT32,
    35: DType.INT64, 36: DType.UINT32, 37: DType.UINT8, 38: DType.UINT16, 39: DType.UINT32,
    40: DType.UINT64, 41: DType.FLOAT32, 42: DType.FLOAT16, 43: DType.FLOAT32, 44: DType.FLOAT64,
    45: DType.BFLOAT16, 48: DType.COMPLEX64, 49: DType.COMPLEX128,
}  # fmt: skip

FLOATS = frozenset({DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16})

COMPLEX = frozenset({DType.COMPLEX64, DType.COMPLEX128})


@dataclass(frozen=True, slots=True)
class TypeId:
    """An element type as an argument."""

    dtype: DType


class _Monad:
    """Token that orders effects; nodes are lowered in the file's order, which respects it."""

    def __repr__(self) -> str:
        return "MONAD"


MONAD = _Monad()


class _Never:
    """Result of a function that raises an error: nothing ever uses it."""

    def __repr__(self) -> str:
        return "NEVER"


NEVER = _Never()


class Value:
    """A tensor: its name in the ONNX model, element type and shape (None where not known).

    data: its elements (C order, little endian) or where they lie, for a constant. is_parameter:
    it may be assigned to; then `name` is also the parameter's. depth: of the scope it belongs to.
    """

    __slots__ = ("data", "depth", "dtype", "is_parameter", "name", "shape")

    def __init__(
        self,
        name: str,
        dtype: DType,
        shape: Shape = None,
        data: Buffer | External | None = None,
        depth: int = 0,
        is_parameter: bool = False,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.data = data
        self.depth = depth
        self.is_parameter = is_parameter

    def __repr__(self) -> str:
        return f"<{self.name} {self.dtype}{self.shape}>"

    @property
    def rank(self) -> int | None:
        """Number of axes, None where not known."""
        return None if self.shape is None else len(self.shape)

    def array(self) -> np.ndarray[Any, Any] | None:
        """Return the elements of a constant; None for what is computed or lies in another file."""
        if not isinstance(self.data, bytes | memoryview) or self.shape is None:
            return None
        kind = "uint16" if self.dtype is DType.BFLOAT16 else str(self.dtype)
        try:
            flat = np.frombuffer(self.data, kind)
        except (TypeError, ValueError):
            return None
        if self.dtype is DType.BFLOAT16:
            flat = (flat.astype(np.uint32) << 16).view(np.float32)
        return flat.reshape([dim or 0 for dim in self.shape])


@dataclass(frozen=True, slots=True)
class Closure:
    """A function of the file with its first arguments bound."""

    graph: str
    bound: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """Value that Switch selects: `chosen` where the condition holds, else `other`."""

    condition: Value
    chosen: Any
    other: Any


@dataclass(frozen=True, slots=True)
class Abstract:
    """The type that MindSpore inferred for a tensor."""

    dtype: DType
    shape: Shape


def leaves(value: Any) -> Iterator[Any]:
    """Return the values in a nested tuple, depth first."""
    if isinstance(value, tuple):
        for part in value:
            yield from leaves(part)
    else:
        yield value
