"""The description of a tensor, and what is checked of an array before a tensor takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from engine.config.wording import followed
from engine.errors import InputError
from engine.tensor.enums import NUMPY_NAMES, DataType, Format

if TYPE_CHECKING:
    from engine.types import Device, DeviceBuffer

Array: TypeAlias = "np.ndarray[Any, Any]"


class TensorMeta:
    """Describes a model's output: plain attributes, no data.

    shape: sizes, -1 where a size is known only when the model runs. data_size in bytes.
    """

    __module__ = "engine.tensor"  # upstream's path

    def __init__(self) -> None:
        self.name = ""
        self.dtype = DataType.UNKNOWN
        self.shape: list[int] = []
        self.format = Format.DEFAULT
        self.element_num = 0
        self.data_size = 0

    def __str__(self) -> str:
        return (
            f"name: {self.name},\ndtype: {self.dtype},\nshape: {self.shape},\n"
            f"format: {self.format},\nelement_num: {self.element_num},\n"
            f"data_size: {self.data_size}."
        )

    def __repr__(self) -> str:
        return in_one_line(self)


class Description:
    """A Tensor's properties beside its array; shared by the tensors of one output.

    dtype, shape: as declared, open axes -1; where there is an array, its own are the tensor's.
    wraps: the array is one that the user gave, so that it is not the tensor's to reshape.
    device: where the memory is to be; None for the host, or wherever a predict leaves it.
    """

    __slots__ = ("device", "dtype", "format", "name", "shape", "wraps")

    def __init__(
        self,
        name: str = "",
        dtype: DataType = DataType.FLOAT32,
        shape: tuple[int, ...] = (),
        format: Format = Format.NCHW,
        wraps: bool = False,
        device: Device | None = None,
    ) -> None:
        self.device = device
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.format = format
        self.wraps = wraps


def array_of(item: object) -> str:
    """Return what to do about another library's tensor where an array is wanted."""
    return " numpy.asarray(...) gives an array of it" if hasattr(type(item), "__array__") else ""


# By number: numpy's integers of the same size under another name ("long long" beside "long"), and
# the dtype that runtimes know, which most of them compare by its number.
_TWINS = {
    np.dtype(char).num: known
    for char in "lqLQ"
    for known in map(np.dtype, ("int32", "int64", "uint32", "uint64"))
    if np.dtype(char) == known and np.dtype(char).num != known.num
}


def canonical(array: Array) -> Array:
    """Return an array with the dtype that numpy's own names stand for: itself, or a view."""
    known = _TWINS.get(array.dtype.num)
    return array if known is None else array.view(known)


def plain(array: Array) -> Array:
    """Return an array that a runtime can read as it lies in memory: itself, or a copy."""
    dtype = array.dtype
    if type(array) is np.ndarray and array.flags.carray and dtype.isnative:
        return array  # what np.require below would find out in a microsecond
    native = dtype if dtype.isnative else dtype.newbyteorder("=")
    return np.require(np.asarray(array), native, ["C", "A"])


def reshaped(value: Array | DeviceBuffer, shape: tuple[int, ...]) -> Array | DeviceBuffer:
    """Return a tensor's memory in another shape of as many elements."""
    if isinstance(value, np.ndarray):
        return value.reshape(shape)
    from dataclasses import replace

    from engine.tensor.memory import packed

    return replace(packed(value), shape=shape)


def in_one_line(tensor: Any) -> str:
    """Return the repr of a Tensor or a TensorMeta."""
    return (
        f"{type(tensor).__name__}(name={tensor.name!r}, dtype={tensor.dtype}, "
        f"shape={tensor.shape}, format={tensor.format})"
    )


def is_open(shape: tuple[int, ...]) -> bool:
    """Return whether a size is not known yet."""
    return min(shape, default=0) < 0


def supported(array: Array) -> DataType:
    """Return the DataType of an array that a user gave. Raises TypeError where the API has none."""
    dtype = DataType.from_numpy(array.dtype)
    if dtype is DataType.UNKNOWN:
        raise TypeError(
            f"Unsupported numpy dtype value {array.dtype}; supported: {', '.join(NUMPY_NAMES)}"
        )
    return dtype


def refused(name: str, wanted: str, got: str, words: str) -> InputError:
    """Return the error for an array that a tensor cannot take. words: MindSpore Lite's, for it."""
    tensor = f"tensor {name!r}" if name else "a tensor without a name"
    return followed(InputError(f"{tensor}: expected {wanted}, got {got}", name), words)


def refuse_masked(wanted: str, array: Array) -> None:
    """Raise TypeError for an array with masked elements."""
    # Reading only the data below the mask would be silently wrong.
    if type(array) is not np.ndarray and np.ma.is_masked(array):
        raise TypeError(
            f"{wanted}, but got {type(array)} with masked elements; call its filled() first"
        )


def admits(dims: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return whether `shape` has the rank and known sizes of `dims`, where open axes are -1."""
    return len(dims) == len(shape) and all(
        dim < 0 or dim == size for dim, size in zip(dims, shape, strict=True)
    )
