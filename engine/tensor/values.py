"""The data in tensors, for the code that runs models.

Each predict uses some of these functions. They take whole lists, because a call costs more than
what it does for one tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy import ndarray

from engine.host.imports import ready
from engine.tensor.description import Array, Description
from engine.tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from engine.types import DeviceBuffer

new = object.__new__

# numpy's flag bits (NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED): what a runtime can read in place.
PLAIN = 0x0001 | 0x0100


def value_of(tensor: Tensor) -> Array | DeviceBuffer | None:
    """Return a tensor's data where it is, not copied; None for a tensor without data."""
    return tensor._value


def description_of(tensor: Tensor) -> Description:
    """Return what a tensor is described by; other results of one output share it."""
    return tensor._description


def tensor_of(value: Array | DeviceBuffer | None, description: Description) -> Tensor:
    """Return a tensor of some data, which fits its description."""
    tensor = new(Tensor)
    tensor._value = value
    tensor._description = description
    return tensor


def tensors_of(values: Iterable[Any], descriptions: Iterable[Description]) -> list[Tensor]:
    """Return a tensor for each value; see `tensor_of`."""
    tensors = []
    for value, description in zip(values, descriptions):
        tensor = new(Tensor)
        tensor._value = value
        tensor._description = description
        tensors.append(tensor)
    return tensors


def as_expected(inputs: list[Any], expected: Sequence[tuple[Any, Any]]) -> list[Array] | None:
    """Return the arrays of tensors and arrays that need no other check than this; else None.

    expected: the dtype and the shape of each; a dtype of None fits nothing.
    """
    if len(inputs) != len(expected):
        return None
    arrays = []
    for item, (dtype, shape) in zip(inputs, expected):
        array: Any = item._value if type(item) is Tensor else item
        if (
            type(array) is not ndarray
            or array.dtype is not dtype
            or array.shape != shape
            or not ((flags := array.flags).carray or flags.num & PLAIN == PLAIN)  # or read-only
        ):
            return None
        arrays.append(array)
    return arrays


def are_unchanged(
    inputs: list[Any],
    bound: Sequence[tuple[int, Any, Any, Any]],
    outputs: list[Any],
    filled: Sequence[tuple[int, Any]],
) -> bool:
    """Return whether inputs and outputs have the very memory that they had before.

    bound: place, memory, dtype and shape of each input. filled: place and memory of each output.
    """
    # By place, not with zip: that costs as much as looking at what it gives.
    for place, held, dtype, shape in bound:
        item = inputs[place]
        value = item._value if type(item) is Tensor else item
        if value is not held or value.shape != shape or value.dtype is not dtype:
            return False
    for place, held in filled:
        tensor = outputs[place]
        if type(tensor) is not Tensor or tensor._value is not held:
            return False
    return True


def arrays_by_name(tensors: Iterable[Tensor]) -> dict[str, Array]:
    """Return the arrays of tensors by the tensors' names."""
    return {
        tensor._description.name: value
        if type(value := tensor._value) is ndarray
        else tensor.get_data_to_numpy()
        for tensor in tensors
    }


def arrays_in(value: Any) -> Any:
    """Return what predict gave for one output, with arrays in place of the Tensors."""
    if type(value) is Tensor:
        return value.get_data_to_numpy()
    if type(value) is list and not (value and type(value[0]) is dict):
        return [arrays_in(element) for element in value]
    return value


def share(tensor: Tensor, other: Tensor) -> None:
    """Give a tensor the data of another, not copied."""
    tensor._value = other._value


def clear(tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Take a tensor's data away, and give it another shape."""
    tensor._value = None
    tensor._own_description().shape = shape


def store(tensor: Tensor, result: Any) -> None:
    """Give a tensor a predict's result, on the device that the tensor was made for."""
    device, value = tensor._description.device, tensor._value
    if device is None or getattr(result, "device", None) == device:
        tensor._value = result
        return
    ready("engine.tensor.memory")
    from engine.tensor import memory

    if value is not None and value.shape == result.shape:
        memory.copy(result, value)
    else:
        tensor._value = memory.to_device(result, device)
