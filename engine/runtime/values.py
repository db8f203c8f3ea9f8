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
    """One input as a backend takes it: lists for sequences, None for what is absent, dicts.

    check: makes the plain array of a tensor inside, or raises; its spec is named "x[2]".
    A tensor without data, as Model.get_inputs gives it, stands for an optional that is absent.
    """
    is_empty = isinstance(item, Tensor) and item._array is None
    if spec.kind is ValueKind.OPTIONAL and (item is None or is_empty):
        return None
    if not isinstance(item, _CONTAINERS[spec.kind][0]):
        raise _unfit(item, spec)
    return _inside(item, spec, check)


def _inside(item: Any, spec: TensorSpec, check: Callable[[Any, TensorSpec], Array]) -> Value:
    """A value at any depth: a spec does not say how sequences, optionals and maps are nested.

    Elements of a sequence may be of any shape: files often say that of the first one, and runtimes
    do not look at it.
    """
    if isinstance(item, list | tuple):
        return [
            _inside(each, TensorSpec(f"{spec.name}[{place}]", spec.dtype, None), check)
            for place, each in enumerate(item)
        ]
    if isinstance(item, dict):
        if {*map(type, item)} not in ({str}, {int}, set()):
            raise _unfit(item, spec)
        wanted = str if spec.dtype is DType.STRING else (int, float, np.generic, np.ndarray)
        for key, each in item.items():
            if not isinstance(each, wanted):
                raise TypeError(
                    f"input {spec.name!r}: expected {spec}, and its value for {key!r} is "
                    f"{each!r:.60}, a {type(each).__name__}"
                )
        return dict(item)
    return check(item, spec)


def _unfit(item: Any, spec: TensorSpec) -> TypeError:
    wanted = _CONTAINERS.get(spec.kind, _CONTAINERS[ValueKind.MAP])[1]
    return TypeError(f"input {spec.name!r}: expected {spec}, {wanted}, got {type(item)}")


def placeholders(outputs: Any, specs: Sequence[TensorSpec]) -> Any:
    """A caller's outputs, with an empty Tensor where None stands for what is no tensor."""
    if not isinstance(outputs, list) or len(outputs) != len(specs):
        return outputs  # refused by whoever looks at them next
    return [
        Tensor() if each is None and spec.kind is not ValueKind.TENSOR else each
        for each, spec in zip(outputs, specs)
    ]


def results(
    values: Sequence[Any],
    specs: Sequence[TensorSpec],
    descriptions: Sequence[Description],
    outputs: Sequence[Tensor] | None,
) -> list[Any]:
    """What predict gives for a backend's values; the tensors of `outputs` where these are given."""
    found = [_wrapped(value, each) for value, each in zip(values, descriptions)]
    for place, tensor in enumerate(outputs or ()):
        if specs[place].kind is ValueKind.TENSOR:
            tensor._array = values[place]
            found[place] = tensor
    return found


def arrays(value: Any) -> Any:
    """What predict gives, with arrays in place of the Tensors."""
    if isinstance(value, list):
        return [arrays(each) for each in value]
    return value.get_data_to_numpy() if isinstance(value, Tensor) else value


def _wrapped(value: Any, description: Description) -> Any:
    if isinstance(value, list):
        return [_wrapped(each, description) for each in value]
    if value is None or isinstance(value, dict):
        return value
    tensor = Tensor()
    tensor._array, tensor._description = value, description
    return tensor
