"""Compare a model's outputs with the suite's: kinds, counts, dtypes, shapes and values.

Values are judged by the suite's own function, at its tolerances. That one does not notice a list
that is too short and cannot compare an absent optional, so the structure is checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.backend.test.runner import Runner

Array = np.ndarray[Any, Any]

_BFLOAT16_RTOL = 2**-6  # the suite's, two steps of the type


class Difference(Exception):
    """One difference: where, what was wanted, what came."""


def compare(
    got: Sequence[Any],
    wanted: Sequence[Any],
    names: Sequence[str],
    *,
    rtol: float,
    atol: float,
    values: bool = True,
) -> float:
    """Compare the outputs of one run; raises Difference at the first that is not as wanted.

    names: of the outputs. values: False compares all but the elements' values.
    Returns the largest error as a part of what the tolerance allows: 0 for equal values, 1 at the
    tolerance.
    """
    if len(got) != len(wanted):
        raise Difference(f"expected {len(wanted)} outputs, got {len(got)}")
    worst = 0.0
    for (mine, theirs), name in zip(zip(got, wanted, strict=True), names, strict=True):
        for array, reference, where in _leaves(mine, theirs, f"output {name!r}"):
            if values:
                worst = max(worst, _compare_values(array, reference, where, rtol, atol))
    return worst


def _leaves(got: Any, wanted: Any, where: str) -> list[tuple[Array, Array, str]]:
    """The arrays in a value beside those wanted, their types and shapes compared."""
    if wanted is None:
        if got is not None:
            raise Difference(f"{where}: expected None, got {_said(got)}")
        return []
    if isinstance(wanted, list):
        if not isinstance(got, list):
            raise Difference(f"{where}: expected a list, got {_said(got)}")
        if len(got) != len(wanted):
            raise Difference(f"{where}: expected {len(wanted)} elements, got {len(got)}")
        parts = enumerate(zip(got, wanted, strict=True))
        return [leaf for i, (g, w) in parts for leaf in _leaves(g, w, f"{where}[{i}]")]
    reference = np.asarray(wanted)  # the suite has scalars of numpy among its arrays
    if not isinstance(got, np.ndarray) or (got.dtype, got.shape) != (
        reference.dtype,
        reference.shape,
    ):
        raise Difference(f"{where}: expected {_said(reference)}, got {_said(got)}")
    return [(got, reference, where)]


def _compare_values(got: Array, wanted: Array, where: str, rtol: float, atol: float) -> float:
    errors = _errors(got, wanted, rtol, atol)
    try:
        Runner.assert_similar_outputs([wanted], [got], rtol, atol)
    except AssertionError as error:
        differ = np.isnan(errors) | (errors > 1)
        if not differ.any():
            raise Difference(f"{where}: {' '.join(str(error).split())}") from None
        place = np.unravel_index(np.argmax(np.where(np.isnan(errors), np.inf, errors)), got.shape)
        raise Difference(
            f"{where}: {differ.sum()} of {got.size} elements differ, the worst at "
            f"{[int(axis) for axis in place]}: expected {_said(wanted[place])}, "
            f"got {_said(got[place])}"
        ) from None
    return float(errors.max(initial=0.0))


def _errors(got: Array, wanted: Array, rtol: float, atol: float) -> Array:
    """For each element its error over what is allowed; NaN where only one is a number."""
    if got.dtype.hasobject or got.dtype.kind in "bU":
        return np.where(got == wanted, 0.0, np.inf)
    if got.dtype.name == "bfloat16":
        rtol = max(rtol, _BFLOAT16_RTOL)
    kind = np.complex128 if got.dtype.kind == "c" else np.float64
    mine, theirs = got.astype(kind), wanted.astype(kind)
    with np.errstate(all="ignore"):
        errors = np.abs(mine - theirs) / (atol + rtol * np.abs(theirs))
    same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    return np.where(same, 0.0, errors)


def _said(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}{list(value.shape)}"
    if isinstance(value, str):
        return repr(value)
    if value is None or isinstance(value, np.generic):
        return str(value)
    return f"a {type(value).__name__}"
