"""The input tensors that Model.get_inputs gives a thread, and that Model.resize reshapes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.errors import InputError
from engine.runtime.descriptions import tensor_for
from engine.tensor import Tensor
from engine.tensor.values import clear, share

if TYPE_CHECKING:  # `import engine` loads no types.py
    from engine.types import TensorSpec

# Whose input tensors these are, so that no model reshapes another's.
_owners: weakref.WeakKeyDictionary[Tensor, weakref.ref[object]] = weakref.WeakKeyDictionary()


class ThreadInputs:
    """The tensors of one thread: all that still exist, with the places of their inputs."""

    def __init__(self) -> None:
        self._given: weakref.WeakKeyDictionary[Tensor, int] = weakref.WeakKeyDictionary()
        self._last: list[Tensor] = []

    def give(self, specs: Sequence[TensorSpec], owner: object) -> list[Tensor]:
        """Return new tensors of a model, with the data of those that the thread got last."""
        tensors = [tensor_for(spec) for spec in specs]
        for tensor, last in zip(tensors, self._last):
            share(tensor, last)
        self._last = tensors
        self._given.update(zip(tensors, range(len(tensors))))
        _owners.update(dict.fromkeys(tensors, weakref.ref(owner)))
        return list(tensors)

    def reshape(self, inputs: Sequence[Tensor], dims: Sequence[Sequence[int]]) -> None:
        """Give tensors, and all that the thread got before, new shapes; they lose their data.

        All, because scripts hold on to what get_inputs gave them.
        """
        for tensor, index in (*self._given.items(), *zip(inputs, range(len(dims)))):
            clear(tensor, tuple(int(dim) for dim in dims[index]))
        self._last = list(inputs) if all(map(self._given.__contains__, inputs)) else []


def check_owner(inputs: Sequence[Tensor], owner: object) -> None:
    """Raise InputError for a tensor that another model's get_inputs has given."""
    for index, tensor in enumerate(inputs):
        known = _owners.get(tensor)
        if known is not None and known() is not owner:
            raise InputError(
                f"resize failed! Error is inputs element {index} is tensor {tensor.name!r} of "
                "another model; pass what this model's get_inputs gives",
                tensor.name,
            )
