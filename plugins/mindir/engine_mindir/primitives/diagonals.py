"""Primitives on diagonals and triangles of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_int, as_static, axes_of
from engine_mindir.primitives.casts import result_type
from engine_mindir.values import DType, Value


@primitive("Tril", "TrilExt")
def tril(g: Emitter, x: Value, diagonal: Any = 0) -> Value:
    return _triangle(g, x, diagonal, 0)


@primitive("Triu")
def triu(g: Emitter, x: Value, diagonal: Any = 0) -> Value:
    return _triangle(g, x, diagonal, 1)


def _triangle(g: Emitter, x: Value, diagonal: Any, upper: int) -> Value:
    supported = (DType.FLOAT32, DType.FLOAT64, DType.INT64, DType.BOOL)
    work = (
        x
        if x.dtype in supported
        else g.cast(x, DType.INT64 if "int" in str(x.dtype) else DType.FLOAT32)
    )
    return g.cast(g.node("Trilu", work, g.scalar(diagonal, DType.INT64), upper=upper), x.dtype)


@primitive("Diag")
def diag(g: Emitter, x: Value) -> Value:
    """Put the elements onto the diagonal of a tensor of zeros that has each axis twice."""
    dims = g.dims(x)
    flat = g.reshape(x, (-1,))
    square_ = g.node("Expand", g.constant(0.0), g.ints((g.dim(flat, 0),) * 2))
    mask = g.cast(g.node("EyeLike", square_), DType.BOOL)
    y = g.node("Where", mask, flat, g.constant(0, x.dtype), like=x)
    return y if len(dims) == 1 else g.reshape(y, (*dims, *dims))


@primitive("DiagExt")
def diag_ext(g: Emitter, x: Value, diagonal: Any = 0) -> Value:
    """Put a vector onto a diagonal, or take the diagonal of a matrix."""
    offset = as_int(diagonal)
    if g.rank(x) != 1:
        return diag_part(g, x, offset)
    y = diag(g, x)
    if offset == 0:
        return y
    first, last = ((0, offset), (offset, 0)) if offset > 0 else ((-offset, 0), (0, -offset))
    return g.node("Pad", y, g.ints((*first, *last)), g.constant(0, x.dtype), mode="constant")


@primitive("MatrixSetDiagV3")
def matrix_set_diag(g: Emitter, x: Value, diagonal: Value, k: Any = 0, *, align: str = "") -> Value:
    """Replace one diagonal of x."""
    offsets = axes_of(as_static(k))
    shape_ = x.shape
    if len(set(offsets)) != 1 or shape_ is None or None in shape_[-2:]:
        raise Unsupported("MatrixSetDiagV3 of several diagonals, or of a matrix of unknown size")
    offset = offsets[0]
    rows, columns = int(shape_[-2] or 0), int(shape_[-1] or 0)
    g.bounded(rows * columns)
    mask = np.eye(rows, columns, offset, dtype=bool)
    length = max(int(mask.sum()), 1)
    indices = np.clip(np.arange(rows) + min(offset, 0), 0, length - 1)
    expanded = g.unsqueeze(g.node("Gather", diagonal, g.constant(indices), axis=-1), (-1,))
    return g.node("Where", g.constant(mask), expanded, x, like=x, shape=x.shape)


@primitive("MatrixDiagV3")
def matrix_diag(
    g: Emitter, x: Value, k: Any = 0, rows: Any = -1, columns: Any = -1, padding: Any = 0, *,
    align: str = "",
) -> Value:  # fmt: skip
    """Put vectors onto the diagonal of square matrices filled with a padding value."""
    length_ = g.dim(x, -1)
    if set(axes_of(as_static(k))) != {0} or not {as_static(rows), as_static(columns)} <= {
        -1,
        length_,
    }:
        raise Unsupported("MatrixDiagV3 of other than one main diagonal")
    square_ = g.node("Expand", g.constant(0.0), g.ints((length_, length_)))
    mask = g.cast(g.node("EyeLike", square_), DType.BOOL)
    wide = g.unsqueeze(x, (-1,))
    return g.node("Where", mask, wide, g.scalar(padding, x.dtype), like=x)


@primitive("Trace", "TraceExt")
def trace(g: Emitter, x: Value) -> Value:
    kind = result_type(g, x.dtype)
    return g.node("ReduceSum", g.cast(diag_part(g, x), kind), keepdims=0, shape=())


@primitive("TraceV2")
def trace_v2(
    g: Emitter, x: Value, offset: Any = 0, axis1: Any = 1, axis2: Any = 0, dtype: Any = None
) -> Value:
    """Return the sums of the diagonals of two axes."""
    if x.rank != 2 or as_int(offset):
        raise Unsupported("a trace beside the main diagonal, or of more than a matrix")
    return trace(g, x)


@primitive("DiagPart", "Diagonal")
def diag_part(g: Emitter, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    dims = x.shape
    if dims is None or dims[dim1] is None or dims[dim2] is None:
        raise Unsupported("the diagonal of a tensor of unknown size")
    rank_ = len(dims)
    row_axis, column_axis = dim1 % rank_, dim2 % rank_
    rows, columns = int(dims[row_axis] or 0), int(dims[column_axis] or 0)
    g.bounded(rows, 2)
    numbers = np.arange(max(-offset, 0), max(min(rows, columns - offset), 0))
    positions = np.stack([numbers, numbers + offset], axis=1)
    rest = [axis for axis in range(rank_) if axis not in (row_axis, column_axis)]
    y = g.transpose(x, [row_axis, column_axis, *rest])
    index = g.constant(positions)
    y = g.node("GatherND", y, index)
    return g.transpose(y, [*range(1, len(rest) + 1), 0]) if rest else y
