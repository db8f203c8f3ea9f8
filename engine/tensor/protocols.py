"""The protocols by which other libraries' arrays and tensors give their memory."""

from __future__ import annotations

from typing import Any


def is_array(item: Any) -> bool:
    """Return whether an object is one array or tensor, of whatever library."""
    protocols = ("__array__", "__dlpack__", "__cuda_array_interface__")
    return any(hasattr(type(item), name) for name in protocols)
