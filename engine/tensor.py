"""Tensor and what describes one: DataType, Format, TensorMeta.

The API is MindSpore Lite's. A Tensor shares memory with the numpy array it was given; one that a
predict returned owns its memory, and no later predict changes it.
"""

from __future__ import annotations

from enum import Enum
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from engine.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DataType", "Format", "Tensor", "TensorMeta"]

Array: TypeAlias = "np.ndarray[Any, Any]"


class DataType(Enum):
    """The element type of a Tensor, numbered as in MindSpore Lite."""

    UNKNOWN = 0
    BOOL = 30
    INT8 = 32
    INT16 = 33
    INT32 = 34
    INT64 = 35
    UINT8 = 37
    UINT16 = 38
    UINT32 = 39
    UINT64 = 40
    FLOAT16 = 42
    FLOAT32 = 43
    FLOAT64 = 44
    BFLOAT16 = 45
    INVALID = 2147483647

    @classmethod
    def from_numpy(cls, dtype: np.dtype[Any]) -> DataType:
        """The DataType of a numpy dtype; UNKNOWN where MindSpore Lite has none."""
        return _FROM_NAME.get(dtype.name, cls.UNKNOWN)

    def to_numpy(self) -> np.dtype[Any]:
        """The numpy dtype of this type (ml_dtypes' for BFLOAT16).

        Raises TypeError for UNKNOWN and INVALID, which no array has.
        """
        name = _NAMES.get(self)
        if name is None:
            raise TypeError(f"{self} has no numpy dtype")
        if self is DataType.BFLOAT16:
            from engine.types import DType

            return DType.BFLOAT16.numpy
        dtype: np.dtype[Any] = np.dtype(name)
        return dtype


_NAMES: dict[DataType, str] = {
    member: member.name.lower()
    for member in DataType
    if member not in (DataType.UNKNOWN, DataType.INVALID)
}
_FROM_NAME = {name: member for member, name in _NAMES.items()}


class Format(Enum):
    """The meaning of a tensor's axes, numbered as in MindSpore Lite."""

    DEFAULT = -1
    NCHW = 0
    NHWC = 1
    NHWC4 = 2
    HWKC = 3
    HWCK = 4
    KCHW = 5
    CKHW = 6
    KHWC = 7
    CHWK = 8
    HW = 9
    HW4 = 10
    NC = 11
    NC4 = 12
    NC4HW4 = 13
    NCDHW = 15
    NWC = 16
    NCW = 17
    NDHWC = 18
    NC8HW8 = 19


class TensorMeta:
    """Describes a model's output: plain attributes, no data.

    shape: sizes, -1 where a size is known only when the model runs. data_size in bytes.
    """

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

    __repr__ = __str__


class Description:
    """What a Tensor says of itself beside its array; shared by the tensors of one output."""

    __slots__ = ("device", "dtype", "format", "name", "shape")

    def __init__(
        self,
        name: str = "",
        dtype: DataType = DataType.FLOAT32,
        shape: tuple[int, ...] = (),
        format: Format = Format.NCHW,
        device: str = "None:-1",
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.format = format
        self.device = device


class Tensor:
    """A named array that a model takes or gives.

    Tensor(array) wraps a numpy array without a copy (one that is not C-contiguous is copied
    once). Tensor(tensor) copies another tensor's data. Tensor(shape=, dtype=) allocates zeros.
    Tensor() is empty. `shape` and `dtype` beside an array must equal the array's.

    Not locked: threads that write into one tensor's array coordinate among themselves. TypeError
    for arguments of the wrong type or shapes and dtypes that contradict each other.
    """

    # Two slots only: every predict makes one Tensor an output, and this is most of its cost.
    __slots__ = ("__weakref__", "_array", "_description")

    _array: Array | None
    _description: Description

    def __init__(
        self,
        tensor: Tensor | Array | None = None,
        shape: Sequence[int] | None = None,
        dtype: DataType | None = None,
        device: str | None = None,
    ) -> None:
        if shape is not None:
            check_shape(shape)
        if dtype is not None and not isinstance(dtype, DataType):
            raise TypeError(f"dtype must be DataType, but got {type(dtype)}.")
        if device is not None:
            _check_device(device)
        self._array = None
        self._description = Description()
        if tensor is None:
            self._describe(shape, dtype)
        elif isinstance(tensor, Tensor):
            self._copy(tensor, shape, dtype)
        elif isinstance(tensor, np.ndarray):
            self._wrap(tensor, shape, dtype)
        else:
            raise TypeError(
                "tensor must be MindSpore Lite's Tensor._tensor or numpy ndarray, "
                f"but got {type(tensor)}."
            )

    def _describe(self, shape: Sequence[int] | None, dtype: DataType | None) -> None:
        if dtype is not None:
            self._description.dtype = dtype
        if shape is not None:
            self._description.shape = tuple(int(dim) for dim in shape)
        if shape is not None and dtype is not None and min(self._description.shape, default=0) >= 0:
            self.get_data_to_numpy()

    def _copy(self, other: Tensor, shape: Sequence[int] | None, dtype: DataType | None) -> None:
        if shape is not None and list(shape) != other.shape:
            raise TypeError(
                "user set shape is not equal numpy shape, "
                f"user's shape: {list(shape)}, tensor shape is: {other.shape}."
            )
        if dtype is not None and dtype is not other.dtype:
            raise TypeError(
                "user set dtype is not equal tensor dtype, "
                f"user's dtype: {dtype}, tensor dtype is: {other.dtype}."
            )
        mine = other._description
        self._description = Description(mine.name, other.dtype, tuple(other.shape), mine.format)
        if other._array is not None:
            self._array = other._array.copy()

    def _wrap(self, array: Array, shape: Sequence[int] | None, dtype: DataType | None) -> None:
        own = numpy_type(array)
        if shape is not None and tuple(shape) != array.shape:
            raise TypeError(
                "user set shape is not equal numpy shape, "
                f"user set shape: {list(shape)}, numpy shape is: {list(array.shape)}."
            )
        if dtype is not None and dtype is not own:
            raise TypeError(
                "user set dtype is not equal numpy dtype, "
                f"user set dtype: {dtype}, numpy dtype is: {own}."
            )
        self._array = plain(array)
        self._description.dtype = own

    # ------------------------------------------------------------------------------ properties

    @property
    def name(self) -> str:
        """The name; "" unless set or given by a model."""
        return self._description.name

    @name.setter
    def name(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be str, but got {type(name)}.")
        self._own_description().name = name

    @property
    def dtype(self) -> DataType:
        """The element type. Setting it on a tensor that holds data changes nothing."""
        if self._array is not None:
            return DataType.from_numpy(self._array.dtype)
        return self._description.dtype

    @dtype.setter
    def dtype(self, dtype: DataType) -> None:
        if not isinstance(dtype, DataType):
            raise TypeError(f"dtype must be DataType, but got {type(dtype)}.")
        self._own_description().dtype = dtype

    @property
    def shape(self) -> list[int]:
        """The sizes of the axes, -1 where open. Setting it on a tensor with data does nothing."""
        if self._array is not None:
            return list(self._array.shape)
        return list(self._description.shape)

    @shape.setter
    def shape(self, shape: Sequence[int]) -> None:
        check_shape(shape)
        self._own_description().shape = tuple(int(dim) for dim in shape)

    @property
    def format(self) -> Format:
        """The meaning of the axes; a label that changes no data."""
        return self._description.format

    @format.setter
    def format(self, format: Format) -> None:
        if not isinstance(format, Format):
            raise TypeError(f"format must be Format, but got {type(format)}.")
        self._own_description().format = format

    @property
    def element_num(self) -> int:
        """The number of elements; 1 for a scalar, 0 while an axis is open."""
        shape = self._array.shape if self._array is not None else self._description.shape
        return 0 if any(dim < 0 for dim in shape) else prod(shape)

    @property
    def data_size(self) -> int:
        """The size of the data in bytes; 0 while an axis is open or the type is unknown."""
        if self._array is not None:
            return int(self._array.nbytes)
        dtype = self._description.dtype
        return self.element_num * dtype.to_numpy().itemsize if dtype in _NAMES else 0

    @property
    def device(self) -> str:
        """Where the data is: "None:-1" on the host, else "type:index"."""
        return self._description.device

    # ------------------------------------------------------------------------------------ data

    def get_data_to_numpy(self) -> Array:
        """The data as an array that shares this tensor's memory: writing into it changes it.

        A tensor without data gets zeros first; one with an open axis gives an empty array.
        Raises InputError where that much memory cannot be had.
        """
        if self._array is None:
            dtype = self.dtype.to_numpy()
            shape = self._description.shape
            if any(dim < 0 for dim in shape):
                return np.empty([max(dim, 0) for dim in shape], dtype)
            try:
                self._array = np.zeros(shape, dtype)
            except (MemoryError, ValueError) as error:
                raise InputError(
                    f"tensor {self.name!r}: cannot allocate {self.data_size} bytes for shape "
                    f"{list(shape)}; give it data with set_data_from_numpy or resize the model",
                    self.name,
                ) from error
        return self._array

    def set_data_from_numpy(self, numpy_obj: Array) -> None:
        """Use the memory of `numpy_obj` from now on, without a copy.

        The array must have this tensor's dtype and byte size; the tensor keeps its own shape,
        except that open axes (-1) take the array's sizes. An array that is not C-contiguous is
        copied, so later changes of it are not seen. Raises TypeError for anything but a numpy
        array of a supported dtype, RuntimeError where dtype or size differ.
        """
        if not isinstance(numpy_obj, np.ndarray):
            raise TypeError(f"numpy_obj must be numpy.ndarray, but got {type(numpy_obj)}.")
        dtype = numpy_type(numpy_obj)
        if dtype is not self.dtype:
            raise InputError(
                f"data type not equal! Numpy type: {dtype}, Tensor type: {self.dtype} "
                f"of tensor {self.name!r}; convert the array with astype",
                self.name,
            )
        shape = self._description.shape
        if self._array is not None and not any(dim < 0 for dim in shape):
            shape = self._array.shape
        if any(dim < 0 for dim in shape):
            self._array = plain(_fit_open(numpy_obj, shape, self.name))
            return
        if prod(shape) != numpy_obj.size:
            raise InputError(
                f"data size not equal! Numpy size: {numpy_obj.nbytes}, Tensor size: "
                f"{prod(shape) * numpy_obj.itemsize}; tensor {self.name!r} has shape "
                f"{list(shape)}, the array {list(numpy_obj.shape)}",
                self.name,
            )
        array = plain(numpy_obj)
        self._array = array if array.shape == shape else array.reshape(shape)

    def __str__(self) -> str:
        return (
            f"name: {self.name},\ndtype: {self.dtype},\nshape: {self.shape},\n"
            f"format: {self.format},\nelement_num: {self.element_num},\n"
            f"data_size: {self.data_size}.\ndevice: {self.device}."
        )

    __repr__ = __str__

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.get_data_to_numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"a {array.dtype} tensor as {dtype} needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def _own_description(self) -> Description:
        """This tensor's description, no longer shared with the other results of its output."""
        old = self._description
        self._description = Description(old.name, old.dtype, old.shape, old.format, old.device)
        return self._description


def numpy_type(array: Array) -> DataType:
    """The DataType of an array a user gave; TypeError where the API has none."""
    dtype = DataType.from_numpy(array.dtype)
    if dtype is DataType.UNKNOWN:
        raise TypeError(
            f"Unsupported numpy dtype value {array.dtype.name!r}; "
            f"supported: {', '.join(_FROM_NAME)}"
        )
    return dtype


def plain(array: Array) -> Array:
    """`array` itself if a runtime can read it as it lies in memory, else a copy it can read."""
    native = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
    return np.require(np.asarray(array), native, ["C", "A"])


def check_shape(shape: object) -> None:
    """Raise TypeError unless `shape` is a list or tuple of ints."""
    if not isinstance(shape, list | tuple):
        raise TypeError(f"shape must be list or tuple, but got {type(shape)}.")
    for index, dim in enumerate(shape):
        if not isinstance(dim, int | np.integer):
            raise TypeError(f"shape element must be int, but got {type(dim)} at index {index}.")


def _fit_open(array: Array, shape: tuple[int, ...], name: str) -> Array:
    """`array` if it has the rank and the known sizes of `shape`, whose open axes are -1."""
    if array.ndim != len(shape) or any(
        dim >= 0 and dim != size for dim, size in zip(shape, array.shape, strict=True)
    ):
        raise InputError(
            f"data size not equal! Numpy shape: {list(array.shape)}, Tensor shape: {list(shape)} "
            f"(-1 takes any size) of tensor {name!r}",
            name,
        )
    return array


def _check_device(device: object) -> None:
    if not isinstance(device, str):
        raise TypeError(f"device must be str, but got {type(device)}.")
    kind, colon, index = device.partition(":")
    if kind not in ("ascend", "gpu", "cpu"):
        raise TypeError(
            "device must be 'ascend:index', eg: 'ascend:0', or 'gpu:0'; "
            f"now only support ascend device. (and gpu, cpu), but got {device!r}"
        )
    if colon and not (index.isdecimal()):
        raise TypeError(f"device id should >= 0. device must be 'ascend:index', but got {device!r}")
    if kind != "cpu":
        raise TypeError(
            f"device {device!r}: tensors in device memory are not in this version; "
            "leave device out, the backend copies"
        )
