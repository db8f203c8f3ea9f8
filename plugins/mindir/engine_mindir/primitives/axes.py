"""Arguments that are axes, sizes or places."""

from __future__ import annotations

from typing import Any

from engine_mindir.emit import Unsupported
from engine_mindir.values import Value

_STATIC = 10_000  # numbers of a constant tensor that stands for axes, sizes or places


def axes_of(axis: Any) -> tuple[int, ...]:
    """Return axes as a tuple, given as a number, a tuple or a constant tensor."""
    if isinstance(axis, Value):
        array = axis.array()
        if array is None:
            raise Unsupported("computed axes")
        if array.size > _STATIC:
            raise Unsupported(f"{array.size:,} numbers where axes or sizes belong")
        axis = tuple(int(number) for number in array.reshape(-1))
    return tuple(int(dim) for dim in axis) if isinstance(axis, tuple) else (int(axis),)


def as_int(axis: Any) -> int:
    """Return a number as an int. Raises Unsupported where it is computed at run time."""
    (value,) = axes_of(axis)
    return value


def as_static(value: Any) -> Any:
    """Return a constant tensor as a tuple or number; any other value unchanged."""
    if isinstance(value, Value):
        array = value.array()
        if array is not None and array.ndim <= 1 and array.size <= _STATIC:
            numbers = tuple(int(value) for value in array.reshape(-1))
            return numbers if array.ndim else numbers[0]
    return value
