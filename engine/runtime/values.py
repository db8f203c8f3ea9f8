"""Values that are no tensors: sequences, optionals and maps, on their way in and out of predict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.tensor import Array, Description, Tensor
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
    is_empty = isinstance(item, Tensor) and item._value is None
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
            _inside(element, TensorSpec(f"{spec.name}[{index}]", spec.dtype, None), check)
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


def placeholders(outputs: Any, specs: Sequence[TensorSpec]) -> Any:
    """Return a caller's outputs, with an empty Tensor where None stands for what is no tensor."""
    if not isinstance(outputs, list) or len(outputs) != len(specs):
        return outputs  # refused by whoever looks at them next
    return [
        Tensor() if output is None and spec.kind is not ValueKind.TENSOR else output
        for output, spec in zip(outputs, specs)
    ]


def results(
    values: Sequence[Any],
    specs: Sequence[TensorSpec],
    descriptions: Sequence[Description],
    outputs: Sequence[Tensor] | None,
) -> list[Any]:
    """Return Tensors, lists and dicts of a backend's values; those of `outputs` if given."""
    found = [_wrapped(value, description) for value, description in zip(values, descriptions)]
    for index, tensor in enumerate(outputs or ()):
        if tensor is not None and specs[index].kind is ValueKind.TENSOR:
            tensor._store(values[index])
            found[index] = tensor
    return found


def arrays(value: Any) -> Any:
    """Return what predict gave, with arrays in place of the Tensors."""
    if isinstance(value, list):
        return [arrays(element) for element in value]
    return value.get_data_to_numpy() if isinstance(value, Tensor) else value


def _wrapped(value: Any, description: Description) -> Any:
    if isinstance(value, list):
        return [_wrapped(element, description) for element in value]
    if value is None or isinstance(value, dict):
        return value
    tensor = Tensor()
    tensor._value, tensor._description = value, description
    return tensor
