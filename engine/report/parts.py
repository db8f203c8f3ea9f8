"""Values that are no single array, as arrays with names of their own: in files and in print.

A sequence "y" is y[0], y[1] and so on; a map is y.keys and y.values; an absent optional is nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.tensor.description import Array
from engine.types import DType


def arrays_of(name: str, value: Any, dtype: DType) -> dict[str, Array]:
    """Return the arrays that make up `value`, by name; none for an empty or an absent one.

    value: an array, a list of values, a dict of str or int to number, or None. dtype: of its
    elements, which Python's numbers in a dict no longer tell.
    """
    if value is None:
        return {}
    if isinstance(value, list):
        return {
            key: array
            for index, element in enumerate(value)
            for key, array in arrays_of(f"{name}[{index}]", element, dtype).items()
        }
    if isinstance(value, dict):
        of_keys = object if any(isinstance(key, str) for key in value) else np.int64
        return {
            f"{name}.keys": np.array([*value], of_keys),
            f"{name}.values": np.array([*value.values()], dtype.numpy),
        }
    return {name: value}


def value_of(name: str, arrays: Mapping[str, Array]) -> Any:
    """Return the value that `arrays_of` took apart; None where no array has that name."""
    if name in arrays:
        return arrays[name]
    if f"{name}.keys" in arrays and f"{name}.values" in arrays:
        return dict(zip(arrays[f"{name}.keys"].tolist(), arrays[f"{name}.values"].tolist()))
    values: list[Any] = []
    while any(key.startswith(f"{name}[{len(values)}]") for key in arrays):
        values.append(value_of(f"{name}[{len(values)}]", arrays))
    return values or None


def described(value: Any) -> str:
    """Return a value's type and shape: "float32[1, 3]", "sequence of 2: float32[3], ..."."""
    if value is None:
        return "absent"
    if isinstance(value, dict):
        return f"map of {len(value)}"
    if isinstance(value, list):
        inside = [described(element) for element in value[:3]] + ["..."] * (len(value) > 3)
        return f"sequence of {len(value)}" + (f": {', '.join(inside)}" if inside else "")
    dtype = "string" if value.dtype.kind in "OUT" else value.dtype.name
    return f"{dtype}{list(value.shape)}"
