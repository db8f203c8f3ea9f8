"""Measure the distance of a setup's results from the default's, or from those in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.report.differences import compare_outputs, tolerances
from engine.tensor.description import Array


def difference(own: Mapping[str, Array], expected: Mapping[str, Array]) -> str:
    """Return in words how outputs differ beyond the tolerances of `compare_outputs`; "" if not.

    Numbers that are all small have a smaller absolute tolerance, else 0 would agree with them.
    """
    if own.keys() != expected.keys():
        return f"outputs {', '.join(own)} in place of {', '.join(expected)}"
    for name, array in own.items():
        right = expected[name]
        if array.dtype != right.dtype:
            return f"output {name!r} is of {array.dtype}, not of {right.dtype}"
        rtol, atol = tolerances(array, right)
        largest = float(np.max(np.abs(_finite(right)), initial=0.0)) if atol else 0.0
        found = compare_outputs({name: array}, {name: right}, atol=min(atol, rtol * largest))
        if not found.is_within:
            return str(found)
    return ""


def without_number(outputs: Mapping[str, Array]) -> str:
    """Return the name of an output that is empty, or NaN and infinite throughout; "" for none."""
    for name, array in outputs.items():
        if not (_finite(array) if _is_float(array) else array).size:
            return name
    return ""


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


def beyond(error: float, limit: float) -> str:
    """Return in words that an error is above a limit, with enough digits to show it."""
    texts = ((f"{error:.{digits}g}", f"{limit:.{digits}g}") for digits in range(3, 18))
    own, most = next(pair for pair in texts if pair[0] != pair[1])
    return f"its error is {own}, above {most}"


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
    largest = np.max(np.abs(right), initial=0.0)
    if not largest:
        return math.inf if values.any() else 0.0
    # Of a part of the largest number: no square is too large or too small.
    with np.errstate(over="ignore", invalid="ignore"):
        difference = np.linalg.norm((values - right) / largest)
    error = float(difference / np.linalg.norm(right / largest))
    return error if math.isfinite(error) else math.inf


def _finite(array: Array) -> np.ndarray[Any, Any]:
    wide = _wide(array)
    finite: np.ndarray[Any, Any] = wide[np.isfinite(wide)]
    return finite


def _is_float(array: Array) -> bool:
    return array.dtype.kind in "fc" or "float" in array.dtype.name


def _wide(array: Array) -> np.ndarray[Any, Any]:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
