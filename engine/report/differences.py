"""Compare two runs' outputs element by element: how far they are apart, where, and whether too far.

The rule is numpy.isclose's: |a - b| <= atol + rtol * |b|. Whole numbers, booleans and text have no
relative error to allow: only atol counts, so that with the default they must be equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.config.text import plain
from engine.errors import InputError
from engine.tensor.description import Array
from engine.types import DType

# By the bytes of the less precise of the two types: (rtol, atol).
_TOLERANCES = {8: (1e-3, 1e-5), 4: (1e-3, 1e-5), 2: (1e-2, 1e-3), 1: (1e-1, 1e-2)}


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest error of an output. at: its index there. a, b: the values; b is the reference."""

    error: float
    at: tuple[int, ...]
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """Comparison of one output; pairs are of a and of b.

    absolute, relative: the largest of each among numbers that are finite on both sides, relative
    errors where b is not 0; None where there are none. differing: elements beyond the tolerances
    `rtol` and `atol`, NaN and infinite ones that the other side has not among them. reason: why it
    is not within them, "" if it is.
    """

    name: str
    dtypes: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    rtol: float
    atol: float
    differing: int = 0
    is_equal: bool = False
    absolute: Largest | None = None
    relative: Largest | None = None
    nans: tuple[int, int] = (0, 0)
    infinities: tuple[int, int] = (0, 0)
    reason: str = ""

    @property
    def is_within(self) -> bool:
        """True where no element differs beyond the tolerances."""
        return not self.reason

    @property
    def verdict(self) -> str:
        """ "equal", "within" the tolerances, or "differs: " and how."""
        if self.reason:
            return f"differs: {self.reason}"
        return "equal" if self.is_equal else "within"

    def __str__(self) -> str:
        errors = {"absolute": self.absolute, "relative": self.relative}
        said = [
            f"{kind} error {largest.error:.3g} at {list(largest.at)}"
            for kind, largest in errors.items()
            if largest is not None
        ]
        return f"{plain(self.name)}: {self.verdict}" + (f" ({', '.join(said)})" if said else "")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two runs on the same inputs, output by output."""

    outputs: tuple[OutputComparison, ...]

    @property
    def is_within(self) -> bool:
        """True where no output differs beyond its tolerances."""
        return all(output.is_within for output in self.outputs)

    def __repr__(self) -> str:
        return str(self)  # what a prompt shows

    def __str__(self) -> str:
        return "\n".join(map(str, self.outputs))


def compare_outputs(
    a: Mapping[str, Array],
    b: Mapping[str, Array],
    rtol: float | None = None,
    atol: float | None = None,
) -> Comparison:
    """Compare outputs by name, or by place where the names are others but as many.

    rtol, atol: None for what suits each output's type, see `tolerances`. Raises InputError for
    tolerances below 0, and for outputs of which one side has more.
    """
    for name, given in (("rtol", rtol), ("atol", atol)):
        if given is not None and not given >= 0:
            raise InputError(f"{name}: expected a number of 0 or more, got {given}")
    if len(a) != len(b):
        raise InputError(
            f"expected two models with the same outputs, but a has {len(a)} ({', '.join(a)}) and "
            f"b has {len(b)} ({', '.join(b)})"
        )
    if a.keys() != b.keys():
        b = dict(zip(a, b.values(), strict=True))
    return Comparison(tuple(_compared(name, a[name], b[name], rtol, atol) for name in a))


def tolerances(a: Array, b: Array) -> tuple[float, float]:
    """Return rtol and atol for two arrays, by the less precise of their types."""
    if _is_exact(a) or _is_exact(b):
        return (0.0, 0.0) if _is_exact(a) and _is_exact(b) else _TOLERANCES[4]
    sizes = (array.dtype.itemsize // (1 + (array.dtype.kind == "c")) for array in (a, b))
    return _TOLERANCES.get(min(sizes), _TOLERANCES[8])


def _compared(
    name: str, a: Array, b: Array, rtol: float | None, atol: float | None
) -> OutputComparison:
    own_rtol, own_atol = tolerances(a, b)
    is_exact = _is_exact(a) and _is_exact(b)
    rtol = 0.0 if is_exact else own_rtol if rtol is None else rtol
    atol = own_atol if atol is None else atol
    facts: dict[str, Any] = {
        "name": name,
        "dtypes": (_type(a), _type(b)),
        "shapes": (a.shape, b.shape),
        "rtol": rtol,
        "atol": atol,
    }
    if a.shape != b.shape:
        reason = f"shape {list(a.shape)} in a, {list(b.shape)} in b"
        return OutputComparison(**facts, differing=max(a.size, b.size), reason=reason)
    if _is_text(a) or _is_text(b):
        differing = int(np.count_nonzero(a.astype(str) != b.astype(str)))
        return OutputComparison(
            **facts, differing=differing, is_equal=not differing, reason=_reason(differing, a.size)
        )
    wide_a, wide_b = _wide(a), _wide(b)
    nans = np.isnan(wide_a), np.isnan(wide_b)
    infinite = np.isinf(wide_a), np.isinf(wide_b)
    finite = ~(nans[0] | nans[1] | infinite[0] | infinite[1])
    errors, same = errors_between(a, b)
    with np.errstate(invalid="ignore", over="ignore"):
        close = errors <= atol + rtol * np.abs(wide_b)
    beyond = ~(same | (finite & close))
    differing = int(np.count_nonzero(beyond))
    size_of_b = np.abs(wide_b.astype(np.float64) if is_exact else wide_b).astype(np.float64)
    has_relative = finite & (size_of_b > 0)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        relative = errors.astype(np.float64) / size_of_b
    return OutputComparison(
        **facts,
        differing=differing,
        is_equal=bool(same.all()),
        absolute=_largest(errors, finite, a, b),
        relative=_largest(relative, has_relative, a, b),
        nans=(int(nans[0].sum()), int(nans[1].sum())),
        infinities=(int(infinite[0].sum()), int(infinite[1].sum())),
        reason=_reason(differing, a.size),
    )


def errors_between(a: Array, b: Array) -> tuple[Array, Array]:
    """Return |a - b| of numbers of one shape, and where they are equal or NaN on both sides."""
    wide_a, wide_b = _wide(a), _wide(b)
    if _is_exact(a) and _is_exact(b):
        return _whole_errors(wide_a, wide_b)
    with np.errstate(invalid="ignore", over="ignore"):
        same = (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
        return np.abs(wide_a - wide_b), same


def _whole_errors(a: Array, b: Array) -> tuple[Array, Array]:
    """Return |a - b| of whole numbers of 64 bits, signed or not, and where they are equal.

    Exact, but for a difference that uint64 cannot hold, which is its highest number.
    """
    (negative_a, size_a), (negative_b, size_b) = map(_sign_and_size, (a, b))
    alike = negative_a == negative_b
    apart = size_a + size_b
    errors = np.where(
        alike,
        np.maximum(size_a, size_b) - np.minimum(size_a, size_b),
        np.where(apart < size_a, np.iinfo(np.uint64).max, apart),
    )
    return errors, alike & (size_a == size_b)


def _sign_and_size(whole: Array) -> tuple[Array, Array]:
    """Return where numbers are below 0, and their absolute values as uint64."""
    if whole.dtype.kind == "u":
        return np.zeros(whole.shape, bool), whole
    negative = whole < 0
    # The lowest has no positive: without a sign its negative wraps to the right value.
    return negative, np.where(negative, -whole.astype(np.uint64), whole.astype(np.uint64))


def _largest(errors: Array, counted: Array, a: Array, b: Array) -> Largest | None:
    if not counted.any():
        return None
    place = int(np.argmax(np.where(counted, errors, -1.0 if errors.dtype.kind == "f" else 0)))
    at = tuple(map(int, np.unravel_index(place, errors.shape)))
    if not counted[at]:  # all of the errors that count are 0
        at = tuple(map(int, np.unravel_index(int(np.argmax(counted)), errors.shape)))
    return Largest(float(errors[at]), at, _number(a[at]), _number(b[at]))


def _reason(differing: int, size: int) -> str:
    if not differing:
        return ""
    return f"{differing:,} of {size:,} {'value' if size == 1 else 'values'}"


def _number(value: Any) -> Any:
    """Return one of numpy's numbers, or of ml_dtypes', as Python's."""
    found = value.item() if hasattr(value, "item") else value
    return found if isinstance(found, int | float | complex | str) else float(found)


def _wide(array: Array) -> Array:
    """Return the values in a type that holds them all, or all but the last bits of the widest."""
    kind = array.dtype.kind
    if kind in "bi":
        return array.astype(np.int64)
    if kind == "u":
        return array.astype(np.uint64)
    if kind == "c":
        return array.astype(np.complex128)
    is_whole = array.dtype.isbuiltin != 1 and "int" in array.dtype.name  # int4 and its like
    return array.astype(np.int64 if is_whole else np.float64)


def _type(array: Array) -> str:
    return "string" if _is_text(array) else str(DType.from_numpy(array.dtype))


def _is_text(array: Array) -> bool:
    return array.dtype.kind in "OUTS"


def _is_exact(array: Array) -> bool:
    return _is_text(array) or array.dtype.kind in "biu" or "int" in array.dtype.name
