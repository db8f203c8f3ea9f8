"""Generate sample inputs, where the user gave none."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod

import numpy as np

from engine.formats.arrays import Array
from engine.types import DType

FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)


def ones(dtype: DType, dims: Sequence[int]) -> Array:
    """Return an array of ones ("1" for strings). Raises MemoryError where it cannot be held."""
    _check(dims)
    return np.full(dims, "1" if dtype is DType.STRING else 1, dtype.numpy)


def random(dtype: DType, dims: Sequence[int], chance: np.random.Generator) -> Array:
    """Draw floats around zero; integers are 0 or 1, valid indices of any embedding table.

    Raises MemoryError where no memory could hold it.
    """
    _check(dims)
    if dtype in FLOATS:
        return np.asarray(chance.standard_normal(dims)).astype(dtype.numpy)
    drawn = np.asarray(chance.integers(0, 2, dims))
    return drawn.astype(str).astype(object) if dtype is DType.STRING else drawn.astype(dtype.numpy)


def _check(dims: Sequence[int]) -> None:
    # Beyond that numpy raises ValueError, as it does for wrong arguments.
    if prod(dims) > sys.maxsize // 16:
        raise MemoryError(f"an array of shape {list(dims)} fits into no memory")
