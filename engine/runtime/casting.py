"""Cast inputs to the declared element type where that loses nothing.

An array is judged by its type, so that whether it is taken does not depend on the data: int32 goes
to int64, uint8 to float32, float64 never to float32. Lists and numbers of Python have no type of
their own: they are judged by their values, and their floats are rounded as a literal is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.errors import InputError, one_line
from engine.host.imports import ready
from engine.host.interrupts import raised_by_handler
from engine.tensor.description import Array
from engine.types import DType, TensorSpec

_PLAIN = (bool, int, float, complex, str)
_DEEPEST = 64  # as many axes as numpy's arrays have at most


def widened(array: Array, dtype: np.dtype[Any]) -> Array | None:
    """Return an array as `dtype` where that type holds every value of the array's, else None."""
    if not np.can_cast(array.dtype, dtype, "safe"):
        return None
    if array.dtype.kind in "iu":  # numpy calls int64 to float64 safe
        span = np.iinfo(array.dtype)
        # A number as wide as the widest is exact only where all are.
        if not all(_is_exact(number, dtype) for number in (span.min, span.max)):
            return None
    return array.astype(dtype)


def _is_exact(number: int, dtype: np.dtype[Any]) -> bool:
    with np.errstate(all="ignore"):
        held = np.array(number).astype(dtype)
    return bool(held.astype(object).item() == number)


def are_literals(item: Any) -> bool:
    """Return whether an object, or the first in lists of them, is a number or text of Python's."""
    return type(_first(item)) in _PLAIN


def _first(item: Any) -> Any:
    """Return the first thing in lists of lists."""
    for _ in range(_DEEPEST):
        if not isinstance(item, list | tuple) or not item:
            break
        item = item[0]
    return item


def listed(item: Any, spec: TensorSpec, dtype: np.dtype[Any]) -> Array | None:
    """Return Python's lists, tuples and numbers as an array of the declared type.

    None for what is none of these. Raises InputError, saying what is lost, where something is.
    """
    is_plain = are_literals(item)
    if not is_plain:
        if not isinstance(item, list | tuple):
            return None
        _refuse_masked(item, spec, _DEEPEST)
    try:
        array = np.asarray(item, object if spec.dtype is DType.STRING else None)
    except ValueError as error:
        raise InputError(
            f"input {spec.name!r}: expected {spec}, got lists that are not of one length at each "
            "depth; make them so",
            spec.name,
        ) from error
    except Exception as error:  # whatever the library raises that the elements are of
        if raised_by_handler(error):
            raise
        ready("engine.runtime.advice")
        from engine.runtime.advice import for_memory

        element = _first(item)
        raise InputError(
            f"input {spec.name!r}: expected {spec}, and the list's {type(element)} does not give "
            f"its memory: {one_line(error)}; {for_memory(element, str(spec.dtype))}",
            spec.name,
        ) from error
    if spec.dtype is DType.STRING:
        return array
    if array.size and not is_plain:
        # A list of other libraries' things: they have a type, and that is judged.
        return None if array.dtype.hasobject else array
    if array.dtype.kind == "f" and "int" in spec.dtype:
        array = _unrounded(item, array)
    if array.dtype.kind not in "biufc":
        ready("engine.runtime.advice")
        from engine.runtime.advice import for_kind

        is_path = isinstance(item, str)
        advice = for_kind(item, str(spec.dtype)) if is_path else "pass numbers that it can"
        raise _lossy(spec, f"elements of type {_odd_type(array)}", advice)
    if array.dtype.kind == "c" and not np.issubdtype(dtype, np.complexfloating):
        raise _lossy(spec, "complex numbers")
    return _converted(array, spec, dtype)


def _refuse_masked(item: Any, spec: TensorSpec, depth: int) -> None:
    if isinstance(item, list | tuple):
        for element in item if depth else ():
            _refuse_masked(element, spec, depth - 1)
    elif isinstance(item, np.ma.MaskedArray) and np.ma.is_masked(
        item
    ):  # numpy would read what is below the mask
        raise InputError(
            f"input {spec.name!r}: expected {spec}, got a list with masked elements; pass what "
            "their filled() gives",
            spec.name,
        )


def _unrounded(item: Any, array: Array) -> Array:
    """Return whole numbers as such where numpy has made floats of them.

    It does so for a float among them, and for numbers of which only some need uint64.
    """
    if not 2.0**53 <= np.abs(array).max(initial=0) <= 2.0**64:  # as floats they are exact
        return array
    numbers = np.asarray(item, object).ravel().tolist()
    are_whole = all(number == int(number) for number in numbers)
    if not are_whole or not any(isinstance(number, int) for number in numbers):
        return array
    whole = [int(number) for number in numbers]
    for dtype in (np.int64, np.uint64):
        if np.iinfo(dtype).min <= min(whole) and max(whole) <= np.iinfo(dtype).max:
            return np.asarray(whole, dtype).reshape(array.shape)
    return array


def _converted(array: Array, spec: TensorSpec, dtype: np.dtype[Any]) -> Array:
    is_float = array.dtype.kind in "fc"
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        if is_float and "int" in spec.dtype:
            bits, is_signed = spec.dtype.bits, not spec.dtype.startswith("u")
            low = -(2.0 ** (bits - 1)) if is_signed else 0.0
            # Outside of the type's range the cast is undefined.
            kept = (array >= low) & (array < 2.0 ** (bits - is_signed)) & (array == np.floor(array))
        elif is_float and spec.dtype is not DType.BOOL:
            # Rounded, as a literal is; but a finite number stays one.
            kept = np.isfinite(cast.astype(array.dtype)) | ~np.isfinite(array)
        else:
            # -1 and the highest uint64 are the same bits: there and back proves nothing.
            is_negative = cast.astype(np.float64) < 0
            kept = (cast.astype(array.dtype) == array) & (is_negative == (array < 0))
    if not np.all(kept):
        raise _lossy(spec, repr(array[~kept].flat[0].item()))
    return cast


def _odd_type(array: Array) -> str:
    """Return the type of the first element that is no number that numpy has."""
    if array.dtype.kind in "UST":
        return "str"
    for element in array.flat:
        if not isinstance(element, bool | int | float | complex):
            return type(element).__name__
    return "int with more than 64 bits"


def _lossy(spec: TensorSpec, what: str, advice: str = "") -> InputError:
    convert = f", or convert it yourself: numpy.asarray(...).astype({str(spec.dtype)!r})"
    return InputError(
        f"input {spec.name!r}: expected {spec}, got {what}, which {spec.dtype} cannot hold; "
        f"{advice or 'pass what it can' + convert}",
        spec.name,
    )
