"""The error of results: how far a setup's are from the default's, or from those in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.tensor.description import Array


def error_of(
    own: Mapping[str, Array], expected: Mapping[str, Array], exact: Mapping[str, Array] | None
) -> float:
    """Return the largest error of an output: the norm of the difference over the output's norm.

    expected: the default's outputs. exact: those in float64 by the same names, where floats are
    held against these. Infinite where anything else differs: names, types, shapes, whole numbers,
    texts, and the places of NaN and infinite numbers.
    """
    if own.keys() != expected.keys():
        return math.inf
    return max(
        (_error(own[name], expected[name], (exact or expected)[name]) for name in expected),
        default=0.0,
    )


def _error(own: Array, expected: Array, exact: Array) -> float:
    if own.dtype != expected.dtype or own.shape != expected.shape or exact.shape != own.shape:
        return math.inf
    if not _is_float(own):
        return 0.0 if np.array_equal(own, expected) else math.inf
    values, right, known = (_wide(array) for array in (own, exact, expected))
    finite = np.isfinite(known)
    if not np.array_equal(values[~finite], known[~finite], equal_nan=True):
        return math.inf
    values, right = values[finite], right[finite]
    difference, norm = np.linalg.norm(values - right), np.linalg.norm(right)
    if not math.isfinite(difference):
        return math.inf
    return float(difference / norm) if norm else (0.0 if not difference else math.inf)


def _is_float(array: Array) -> bool:
    return array.dtype.kind in "fc" or "float" in array.dtype.name


def _wide(array: Array) -> np.ndarray[Any, Any]:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
