"""The distribution of an error: absolute, relative, in units in the last place, and where it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.report.differences import errors_between
from engine.tensor.description import Array
from engine.types import DType

PARTS = (0.5, 0.9, 0.99, 1.0)
"""The parts of all elements that have at most the error beside it."""

_FEW = 8  # indices of an axis that are worth a list


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of the error of one array against another.

    absolute, relative, ulp: the error that each of `PARTS` of the elements has at most, among those
    that are finite on both sides; relative where the reference is not 0; ULPs, the distance between
    neighbouring numbers, of the less precise of the two types, and empty for whole numbers. apart:
    elements beyond the tolerances, of `size`. unmatched: those among them with a NaN or an infinite
    number on one side, and another one on the other. where: the indices that hold all elements
    apart, by axis; an axis that has them at most of its indices is left out.
    """

    size: int
    apart: int
    unmatched: int
    absolute: tuple[float, ...]
    relative: tuple[float, ...]
    ulp: tuple[float, ...]
    where: dict[int, tuple[int, ...]]

    def __str__(self) -> str:
        kinds = {"absolute": self.absolute, "relative": self.relative, "ulp": self.ulp}
        said = [f"{kind} {errors[-1]:.3g}" for kind, errors in kinds.items() if errors]
        return ", ".join(said) or "nothing to compare"


def spread_of(a: Array, b: Array, rtol: float, atol: float) -> Spread | None:
    """Return how the error of `a` against `b` is distributed; None for text and other shapes."""
    if a.shape != b.shape or a.dtype.kind in "OUTSc" or b.dtype.kind in "OUTSc" or not a.size:
        return None
    wide_a, wide_b = np.asarray(a).astype(np.float64), np.asarray(b).astype(np.float64)
    finite = np.isfinite(wide_a) & np.isfinite(wide_b)
    with np.errstate(all="ignore"):
        exact, same = errors_between(a, b)
        errors = exact.astype(np.float64)
        beyond = ~(same | (finite & (errors <= atol + rtol * np.abs(wide_b))))
        steps = _steps(wide_b, a, b)
        relative = errors / np.abs(wide_b)
    return Spread(
        size=a.size,
        apart=int(np.count_nonzero(beyond)),
        unmatched=int(np.count_nonzero(beyond & ~finite)),
        absolute=_parts(errors[finite]),
        relative=_parts(relative[finite & (wide_b != 0)]),
        ulp=() if steps is None else _parts((errors / steps)[finite]),
        where=_where(beyond),
    )


def share_of(a: Array, b: Array, rtol: float, atol: float) -> float:
    """Return the largest error as a share of its tolerance: above 1 it is beyond.

    Infinite for other shapes, and where only one side has a NaN or an infinite number.
    """
    if a.shape != b.shape:
        return float("inf")
    if a.dtype.kind in "OUTSc" or b.dtype.kind in "OUTSc":
        return 0.0 if np.array_equal(a, b) else float("inf")
    wide_b = np.asarray(b).astype(np.float64)
    errors, same = errors_between(a, b)
    with np.errstate(all="ignore"):
        allowed = np.maximum(atol + rtol * np.abs(wide_b), np.finfo(np.float64).tiny)
        shares = errors.astype(np.float64) / allowed
    shares = np.where(same, 0.0, np.where(np.isnan(shares), np.inf, shares))
    return float(shares.max(initial=0.0))


def _parts(errors: Array) -> tuple[float, ...]:
    if not errors.size:
        return ()
    return tuple(float(error) for error in np.quantile(errors, PARTS, method="higher"))


def _steps(wide: Array, a: Array, b: Array) -> Array | None:
    """Return the distance of each number to the next in the less precise type; None for whole."""
    types = [array.dtype for array in (a, b)]
    if any(dtype.kind in "biu" or "int" in dtype.name for dtype in types):
        return None
    narrow = min(types, key=lambda dtype: dtype.itemsize)
    if narrow.itemsize < 2:  # of these types numpy knows no neighbours
        return None
    if DType.from_numpy(narrow) is DType.BFLOAT16:
        exponents = np.frexp(np.maximum(np.abs(wide), np.finfo(np.float32).tiny))[1]
        return np.asarray(np.ldexp(1.0, exponents - 8))
    return np.asarray(np.spacing(np.abs(wide).astype(narrow)).astype(np.float64))


def _where(beyond: Array) -> dict[int, tuple[int, ...]]:
    found = {}
    if beyond.any():
        for axis in range(beyond.ndim):
            others = tuple(other for other in range(beyond.ndim) if other != axis)
            places = np.flatnonzero(beyond.any(axis=others))
            if len(places) <= _FEW and 2 * len(places) <= beyond.shape[axis]:
                found[axis] = tuple(map(int, places))
    return found
