"""Values that are no tensors: sequences, optionals and maps, on their way in and out of predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.runtime.fitting import check_buffers
from engine.runtime.thread_state import ThreadState, are_results, memory_of
from engine.tensor import Tensor
from engine.tensor.description import Description
from engine.tensor.values import store, tensor_of
from engine.types import TensorSpec, ValueKind


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
        check_buffers(self.signature, memory, values, are_results(tensors, self.descriptions))
        return values, [self._reachable(entry) for entry in memory]

    def give(self, results: Sequence[Any], outputs: Any) -> list[Any]:
        """Return Tensors, lists and dicts; the caller's tensors where there are such."""
        found = [as_tensors(value, about) for value, about in zip(results, self.descriptions)]
        if outputs is None:
            return found
        for index, tensor in enumerate(outputs):
            if tensor is not None and self.signature.outputs[index].kind is ValueKind.TENSOR:
                store(tensor, results[index])
                found[index] = tensor
        return found


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
        # All elements of a sequence are of one kind: a classifier's maps, one a row, stay.
        if value and type(value[0]) is dict:
            return value
        return [as_tensors(element, description) for element in value]
    if value is None or type(value) is dict:
        return value
    return tensor_of(value, description)
