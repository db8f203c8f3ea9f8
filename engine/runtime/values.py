"""Values that are no tensors: sequences, optionals and maps, on their way in and out of predict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from engine.runtime.casting import are_literals
from engine.runtime.thread_state import ThreadState, are_results, memory_of
from engine.tensor import Tensor
from engine.tensor.description import Array, Description
from engine.types import DType, TensorSpec, Value, ValueKind

new = object.__new__

_CONTAINERS: dict[ValueKind, tuple[tuple[type, ...], str]] = {
    ValueKind.SEQUENCE: ((list, tuple), "a list of arrays"),
    ValueKind.OPTIONAL: ((object,), "None or what it holds"),
    ValueKind.MAP: ((dict,), "a dict with keys of str or of int"),
}


class ValuesState(ThreadState):
    """One thread's way through a model where a sequence, an optional or a map goes in or out."""

    __slots__ = ()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.devices = ()

    def bind(self, inputs: Any, outputs: Any) -> tuple[list[Any], list[Any]]:
        """Return checked inputs and the buffers for the outputs; nothing is kept."""
        values = self.take(inputs)
        tensors = placeholders(outputs, self.signature.outputs)
        memory = memory_of(tensors)
        self.signature.check_buffers(memory, values, are_results(tensors, self.descriptions))
        return values, [self._reachable(entry) for entry in memory]

    def give(self, results: Sequence[Any], outputs: Any) -> list[Any]:
        """Return Tensors, lists and dicts; the caller's tensors where there are such."""
        found = [as_tensors(value, about) for value, about in zip(results, self.descriptions)]
        if outputs is None:
            return found
        for index, tensor in enumerate(outputs):
            if tensor is not None and self.signature.outputs[index].kind is ValueKind.TENSOR:
                tensor._store(results[index])
                found[index] = tensor
        return found


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


def placeholders(outputs: Any, specs: Sequence[TensorSpec]) -> Any:
    """Return a caller's outputs, with an empty Tensor where None stands for what is no tensor."""
    if not isinstance(outputs, list) or len(outputs) != len(specs):
        return outputs  # refused by whoever looks at them next
    return [
        Tensor() if output is None and spec.kind is not ValueKind.TENSOR else output
        for output, spec in zip(outputs, specs)
    ]


def as_tensors(value: Any, description: Description) -> Any:
    """Return one output as predict gives it: a Tensor, or lists and dicts with such inside."""
    if type(value) is list:
        # What one element of a sequence is, all are: a classifier's maps, one a row, stay as they
        # are.
        if value and type(value[0]) is dict:
            return value
        return [as_tensors(element, description) for element in value]
    if value is None or type(value) is dict:
        return value
    tensor = new(Tensor)
    tensor._value = value
    tensor._description = description
    return tensor
