"""Inputs that are no tensors, checked: sequences, optionals and maps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from engine.runtime.casting import are_literals
from engine.tensor import Tensor
from engine.tensor.description import Array
from engine.tensor.values import value_of
from engine.types import DType, TensorSpec, Value, ValueKind

_CONTAINERS: dict[ValueKind, tuple[tuple[type, ...], str]] = {
    ValueKind.SEQUENCE: ((list, tuple), "a list of arrays"),
    ValueKind.OPTIONAL: ((object,), "None or what it holds"),
    ValueKind.MAP: ((dict,), "a dict with keys of str or of int"),
}


def checked(item: Any, spec: TensorSpec, check: Callable[[Any, TensorSpec], Array]) -> Value:
    """Return one input as a backend takes it: a list for a sequence, None if absent, a dict.

    check: makes the plain array of a tensor inside, or raises; its spec is named "x[2]".
    A tensor without data, as Model.get_inputs gives it, stands for an optional that is absent.
    """
    is_empty = isinstance(item, Tensor) and value_of(item) is None
    if spec.kind is ValueKind.OPTIONAL and (item is None or is_empty):
        return None
    if not isinstance(item, _CONTAINERS[spec.kind][0]):
        raise _unfit(item, spec)
    return _inside(item, spec, check)


def _inside(item: Any, spec: TensorSpec, check: Callable[[Any, TensorSpec], Array]) -> Value:
    """Check a value at any depth: a spec does not say how sequences and maps are nested.

    Elements of a sequence may be of any shape: files often say that of the first one, and runtimes
    do not look at it.
    """
    if isinstance(item, list | tuple):
        return [
            # A list of numbers is an array, as it is where a tensor is wanted.
            (check if are_literals(element) else partial(_inside, check=check))(
                element, TensorSpec(f"{spec.name}[{index}]", spec.dtype, None)
            )
            for index, element in enumerate(item)
        ]
    if isinstance(item, dict):
        if {*map(type, item)} not in ({str}, {int}, set()):
            raise _unfit(item, spec)
        wanted = str if spec.dtype is DType.STRING else (int, float, np.generic, np.ndarray)
        for key, value in item.items():
            if not isinstance(value, wanted):
                raise TypeError(
                    f"input {spec.name!r}: expected {spec}, and its value for {key!r} is "
                    f"{value!r:.60}, a {type(value).__name__}"
                )
        return dict(item)
    return check(item, spec)


def _unfit(item: Any, spec: TensorSpec) -> TypeError:
    wanted = _CONTAINERS.get(spec.kind, _CONTAINERS[ValueKind.MAP])[1]
    return TypeError(f"input {spec.name!r}: expected {spec}, {wanted}, got {type(item)}")
