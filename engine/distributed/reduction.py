"""The arithmetic of a reduction: contributions of all ranks, combined in the order of the ranks.

The order is always the same, and so are the bits, on every rank and in every run. Types of less
than 32 bits are added and multiplied in float32 and rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from engine.errors import InputError
from engine.types import DType, ReduceOp

Array: TypeAlias = "np.ndarray[Any, Any]"

Combine: TypeAlias = Callable[..., object]
"""combine(*parts, out=out): reduce arrays of one shape, one a rank; `out` overlaps none of them.
For one thread at a time."""

_UFUNCS: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.MEAN: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}
_ROUNDED_ONCE = (ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.PROD)
_UNORDERED = (DType.COMPLEX64, DType.COMPLEX128)
_WITHOUT_ARITHMETIC = (DType.STRING, DType.INT4, DType.UINT4, DType.INT2, DType.UINT2)


def reduction(op: ReduceOp, dtype: DType, ranks: int = 0) -> Combine:
    """Return the function that reduces elements of one type, of so many ranks (0: of any number).

    Integers wrap around, as numpy's do; their mean is the sum in 64 bits over the number of ranks,
    rounded towards zero. bool has min, max and prod. Raises InputError for what has no meaning.
    """
    # An overflow is inf or wraps around, as on any device: no warning, whatever numpy is set to. To
    # run in a context that is set so costs 0.03 us, np.errstate 0.7.
    quiet = Context()
    quiet.run(np.seterr, all="ignore")
    return partial(quiet.run, *_arithmetic(op, dtype, ranks))


def _arithmetic(op: ReduceOp, dtype: DType, ranks: int) -> tuple[Any, ...]:
    """Return the function that reduces, and what it takes before the parts. See `reduction`."""
    ufunc = _UFUNCS[op]
    is_bool = dtype is DType.BOOL
    if dtype in _WITHOUT_ARITHMETIC or (is_bool and op in (ReduceOp.SUM, ReduceOp.MEAN)):
        hint = "; take max for any, min for all" if is_bool else ""
        raise InputError(f"elements of type {dtype} have no {op.value} over ranks{hint}")
    if dtype in _UNORDERED and op in (ReduceOp.MIN, ReduceOp.MAX):
        raise InputError(f"elements of type {dtype} have no order, so no {op.value} over ranks")
    kind = dtype.numpy.kind
    if op is ReduceOp.MEAN and kind in "iu":
        return (_integer_mean,)
    is_narrow = kind not in "iub" and 0 < dtype.bits < 32
    if is_narrow and op in _ROUNDED_ONCE:
        return _rounded_once, ufunc, op is ReduceOp.MEAN
    if op is ReduceOp.MEAN:
        return (_mean,)
    return (ufunc,) if ranks == 2 else (_plain, ufunc)


def _plain(ufunc: np.ufunc, *parts: Array, out: Array) -> None:
    if len(parts) == 1:
        out[...] = parts[0]
        return
    ufunc(parts[0], parts[1], out=out)
    for part in parts[2:]:
        ufunc(out, part, out=out)


def _mean(*parts: Array, out: Array) -> None:
    _plain(np.add, *parts, out=out)
    np.divide(out, len(parts), out=out)


def _rounded_once(ufunc: np.ufunc, is_mean: bool, *parts: Array, out: Array) -> None:
    total = parts[0].astype(np.float32)
    for part in parts[1:]:
        ufunc(total, part.astype(np.float32), out=total)
    if is_mean:
        np.divide(total, np.float32(len(parts)), out=total)
    out[...] = total


def _integer_mean(*parts: Array, out: Array) -> None:
    wide = np.uint64 if out.dtype.kind == "u" else np.int64
    total = parts[0].astype(wide)
    for part in parts[1:]:
        np.add(total, part.astype(wide), out=total)
    down = total // len(parts)
    # Floor division rounds down: towards zero is one more where a negative sum leaves a rest.
    out[...] = down + ((down * len(parts) != total) & (total < 0)).astype(wide)
