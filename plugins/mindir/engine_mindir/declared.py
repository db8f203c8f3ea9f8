"""Results of primitives beside what the file declares of them."""

from __future__ import annotations

from typing import Any

from engine_mindir.control import RECURSION, Exits
from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.values import COMPLEX, Abstract, Value, leaves


def check_value(value: Any) -> None:
    """Raise Unsupported for a value that no primitive takes or returns."""
    for leaf in leaves(value):
        if isinstance(leaf, Exits):
            raise Unsupported(RECURSION)
        if isinstance(leaf, Value | Abstract) and leaf.dtype in COMPLEX:
            raise Unsupported(
                "it computes with complex numbers, which runtimes have no operators for; keep real "
                "and imaginary parts apart in the source"
            )


def apply_abstract(g: Emitter, result: Any, abstract: Any) -> Any:
    """Give a result the dtype and shape that the file declares for it."""
    if isinstance(result, Value) and isinstance(abstract, Abstract):
        if result.dtype is not abstract.dtype:
            result = g.cast(result, abstract.dtype)
        if result.data is None and not result.is_parameter:
            result.shape = _merge_shapes(result.shape, abstract.shape)
    elif isinstance(result, tuple) and isinstance(abstract, tuple):
        # A tuple of open length has the type of one element in the file.
        typed = [apply_abstract(g, *pair) for pair in zip(result, abstract, strict=False)]
        return (*typed, *result[len(typed) :])
    return result


def _merge_shapes(inferred: Any, declared: Any) -> Any:
    if declared is None:
        return inferred
    if inferred is None or None not in declared or len(inferred) != len(declared):
        return declared
    return tuple(b if b is not None else a for a, b in zip(inferred, declared, strict=True))
