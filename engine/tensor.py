"""Tensor, and TensorMeta, which describes one. The API is MindSpore Lite's.

A Tensor shares memory with the numpy array it was given; one that a predict returned owns its
memory, and no later predict changes it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from engine.config.checks import require, require_shape
from engine.enums import NUMPY_NAMES, DataType, Format
from engine.errors import BackendUnavailable, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DataType", "Format", "Tensor", "TensorMeta"]

Array: TypeAlias = "np.ndarray[Any, Any]"


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

    def __repr__(self) -> str:
        return _in_one_line(self)


class Description:
    """What a Tensor says of itself beside its array; shared by the tensors of one output.

    dtype, shape: as declared, open axes -1; where there is an array, its own are the tensor's.
    wraps: the array is one that the user gave, so that it is not the tensor's to reshape.
    """

    __slots__ = ("dtype", "format", "name", "shape", "wraps")

    def __init__(
        self,
        name: str = "",
        dtype: DataType = DataType.FLOAT32,
        shape: tuple[int, ...] = (),
        format: Format = Format.NCHW,
        wraps: bool = False,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.format = format
        self.wraps = wraps


class Tensor:
    """A named array that a model takes or gives.

    Tensor(array) wraps a numpy array without a copy (one that is not C-contiguous, aligned and in
    the machine's byte order is copied once). Tensor(tensor) copies another tensor: data, name and
    format. Tensor(shape=, dtype=) allocates zeros. Tensor() is empty. `shape` and `dtype` beside
    an array must equal the array's. device: leave it out; the backends of this version copy to
    their devices themselves.

    Not locked: threads that write into one tensor's array coordinate among themselves. Raises
    TypeError for arguments of the wrong type or shapes and dtypes that contradict each other,
    InputError where the memory cannot be had, BackendError for a device.
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
        dims = None if shape is None else require_shape("shape", shape)
        where = None if device is None else _parse_device(device)
        if dtype is not None:
            require("dtype", dtype, DataType)
        self._array = None
        self._description = Description()
        if isinstance(tensor, np.ndarray):
            self._wrap(tensor, shape, dtype)
        elif isinstance(tensor, Tensor):
            self._copy(tensor, shape, dtype)
        elif tensor is not None:
            raise TypeError(
                "tensor must be MindSpore Lite's Tensor._tensor or numpy ndarray, "
                f"but got {type(tensor)}."
            )
        if where is not None:
            _refuse_device(*where)
        if tensor is None:
            self._describe(dims, dtype)

    def _describe(self, shape: tuple[int, ...] | None, dtype: DataType | None) -> None:
        if dtype is not None:
            self._description.dtype = dtype
        if shape is not None:
            self._description.shape = shape
        if shape is not None and dtype is not None and not _is_open(shape):
            self.get_data_to_numpy()

    def _copy(self, other: Tensor, shape: Sequence[int] | None, dtype: DataType | None) -> None:
        if shape is not None and list(shape) != other.shape:
            raise TypeError(
                "user set shape is not equal numpy shape, "
                f"user's shape: {shape}, tensor shape is: {other.shape}."
            )
        if dtype is not None and dtype is not other.dtype:
            raise TypeError(
                "user set dtype is not equal tensor dtype, "
                f"user's dtype: {dtype}, tensor dtype is: {other.dtype}."
            )
        self._description = Description(other.name, other.dtype, tuple(other.shape), other.format)
        if other._array is not None:
            self._array = other._array.copy()

    def _wrap(self, array: Array, shape: Sequence[int] | None, dtype: DataType | None) -> None:
        _refuse_masked("tensor must be MindSpore Lite's Tensor._tensor or numpy ndarray", array)
        own = _supported(array)
        if shape is not None and tuple(shape) != array.shape:
            raise TypeError(
                "user set shape is not equal numpy shape, "
                f"user shape: {shape}, numpy shape is: {array.shape}."
            )
        if dtype is not None and dtype is not own:
            raise TypeError(
                "user set dtype is not equal numpy dtype, "
                f"user dtype: {dtype}, numpy dtype is: {array.dtype}."
            )
        self._array = plain(array)
        self._description.dtype = own
        self._description.wraps = True

    # ------------------------------------------------------------------------------ properties

    @property
    def name(self) -> str:
        """The name; "" unless set or given by a model."""
        return self._description.name

    @name.setter
    def name(self, name: str) -> None:
        require("name", name, str)
        self._own_description().name = name

    @property
    def dtype(self) -> DataType:
        """The element type; UNKNOWN for those of a model that DataType has no name for.

        Setting it drops data of another type, but changes nothing, with a warning, where the
        tensor wraps an array of the user's.
        """
        if self._array is not None:
            return DataType.from_numpy(self._array.dtype)
        return self._description.dtype

    @dtype.setter
    def dtype(self, dtype: DataType) -> None:
        require("dtype", dtype, DataType)
        if self._wraps():
            if dtype is not self.dtype:
                self._warn_that_ignored(f"dtype {dtype}")
            return
        description = self._own_description()
        if self._array is not None and dtype is not self.dtype:
            description.shape = self._array.shape
            self._array = None
        description.dtype = dtype

    @property
    def shape(self) -> list[int]:
        """The sizes of the axes, -1 where open.

        Setting it keeps data of as many elements and drops other data. Where the tensor wraps an
        array of the user's, it can only open axes for the next one; all else changes nothing, with
        a warning.
        """
        if self._array is not None:
            return list(self._array.shape)
        return list(self._description.shape)

    @shape.setter
    def shape(self, shape: Sequence[int]) -> None:
        dims = require_shape("shape", shape)
        array = self._array
        if array is not None and dims == array.shape:
            return
        if array is None or (self._wraps() and _admits(dims, array.shape)):
            self._own_description().shape = dims
        elif self._wraps():
            self._warn_that_ignored(f"shape {list(dims)}")
        else:
            self._own_description().shape = dims
            fits = not _is_open(dims) and prod(dims) == array.size
            self._array = array.reshape(dims) if fits else None

    @property
    def format(self) -> Format:
        """The meaning of the axes; a label that changes no data."""
        return self._description.format

    @format.setter
    def format(self, format: Format) -> None:
        require("format", format, Format)
        self._own_description().format = format

    @property
    def element_num(self) -> int:
        """The number of elements; 1 for a scalar, 0 while an axis is open."""
        shape = self._array.shape if self._array is not None else self._description.shape
        return 0 if _is_open(shape) else prod(shape)

    @property
    def data_size(self) -> int:
        """The size of the data in bytes; 0 while an axis is open or the type is unknown."""
        if self._array is not None:
            return int(self._array.nbytes)
        dtype = self._description.dtype
        if dtype in (DataType.UNKNOWN, DataType.INVALID):
            return 0
        return self.element_num * dtype.to_numpy().itemsize

    @property
    def device(self) -> str:
        """Where the data is: "None:-1", the host."""
        return "None:-1"

    # ------------------------------------------------------------------------------------ data

    def get_data_to_numpy(self) -> Array:
        """The data as an array that shares this tensor's memory: writing into it changes it.

        A tensor without data gets zeros first; one with an open axis gives an empty array.
        Raises InputError where that much memory cannot be had, TypeError for dtype UNKNOWN.
        """
        if self._array is None:
            dtype = self._description.dtype.to_numpy()
            shape = self._description.shape
            if _is_open(shape):
                return np.empty([max(dim, 0) for dim in shape], dtype)
            try:
                array = np.zeros(shape, dtype)
            except (MemoryError, ValueError, OverflowError) as error:
                raise InputError(
                    f"tensor {self.name!r}: cannot allocate {self.data_size} bytes for shape "
                    f"{list(shape)} ({error}); give it data with set_data_from_numpy, or resize "
                    "the model",
                    self.name,
                ) from error
            self._own_description().wraps = False
            self._array = array
        return self._array

    def set_data_from_numpy(self, numpy_obj: Array) -> None:
        """Use the memory of `numpy_obj` from now on, without a copy.

        The array must have this tensor's dtype and byte size; the tensor keeps its own shape,
        except that open axes (-1) take the array's sizes. An array that is not C-contiguous,
        aligned and in the machine's byte order is copied, so later changes of it are not seen. A
        tensor of dtype UNKNOWN, as for a model's strings, takes any array: predict checks it.
        Raises TypeError for anything but a numpy array of a supported dtype, RuntimeError
        (InputError) where dtype or size differ.
        """
        if not isinstance(numpy_obj, np.ndarray):
            raise TypeError(f"numpy_obj must be numpy.ndarray, but got {type(numpy_obj)}.")
        _refuse_masked("numpy_obj must be numpy.ndarray", numpy_obj)
        declared, name = self._description.dtype, self._description.name
        if declared is not DataType.UNKNOWN and _supported(numpy_obj) is not declared:
            raise InputError(
                f"data type not equal! Numpy type: {numpy_obj.dtype.type}, Tensor type: {declared}"
                f" of tensor {name!r}; convert the array with astype",
                name,
            )
        shape = self._description.shape
        if _is_open(shape):
            if not _admits(shape, numpy_obj.shape):
                raise InputError(
                    f"data size not equal! Numpy shape: {list(numpy_obj.shape)}, Tensor shape: "
                    f"{list(shape)} (-1 takes any size) of tensor {name!r}",
                    name,
                )
            shape = numpy_obj.shape
        elif self._array is not None:
            shape = self._array.shape
        if prod(shape) != numpy_obj.size:
            raise InputError(
                f"data size not equal! Numpy size: {numpy_obj.nbytes}, Tensor size: "
                f"{prod(shape) * numpy_obj.itemsize}; tensor {name!r} has shape {list(shape)}, "
                f"the array {list(numpy_obj.shape)}",
                name,
            )
        array = plain(numpy_obj)
        if not self._description.wraps:
            self._own_description().wraps = True
        self._array = array if array.shape == shape else array.reshape(shape)

    def __str__(self) -> str:
        return (
            f"name: {self.name},\ndtype: {self.dtype},\nshape: {self.shape},\n"
            f"format: {self.format},\nelement_num: {self.element_num},\n"
            f"data_size: {self.data_size}.\ndevice: {self.device}."
        )

    def __repr__(self) -> str:
        return _in_one_line(self)

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
        self._description = Description(old.name, old.dtype, old.shape, old.format, old.wraps)
        return self._description

    def _wraps(self) -> bool:
        """Whether the data is an array that the user gave: no setter changes that."""
        return self._array is not None and self._description.wraps

    def _warn_that_ignored(self, change: str) -> None:
        import warnings

        warnings.warn(
            f"{change} is ignored: tensor {self.name!r} wraps a numpy array, {self.dtype} "
            f"{self.shape}; change the array, and make a Tensor of it",
            stacklevel=3,
        )


def plain(array: Array) -> Array:
    """`array` itself if a runtime can read it as it lies in memory, else a copy it can read."""
    dtype = array.dtype
    if type(array) is np.ndarray and array.flags.carray and dtype.isnative:
        return array  # what np.require below would find out in a microsecond
    native = dtype if dtype.isnative else dtype.newbyteorder("=")
    return np.require(np.asarray(array), native, ["C", "A"])


def _in_one_line(tensor: Tensor | TensorMeta) -> str:
    return (
        f"{type(tensor).__name__}(name={tensor.name!r}, dtype={tensor.dtype}, "
        f"shape={tensor.shape}, format={tensor.format})"
    )


def _is_open(shape: tuple[int, ...]) -> bool:
    return min(shape, default=0) < 0


def _supported(array: Array) -> DataType:
    """The DataType of an array a user gave; TypeError where the API has none."""
    dtype = DataType.from_numpy(array.dtype)
    if dtype is DataType.UNKNOWN:
        raise TypeError(
            f"Unsupported numpy dtype value {array.dtype}; supported: {', '.join(NUMPY_NAMES)}"
        )
    return dtype


def _refuse_masked(wanted: str, array: Array) -> None:
    # Reading only the data below the mask would be silently wrong.
    if type(array) is not np.ndarray and np.ma.is_masked(array):
        raise TypeError(
            f"{wanted}, but got {type(array)} with masked elements; call its filled() first"
        )


def _admits(dims: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether `shape` has the rank and the known sizes of `dims`, where open axes are -1."""
    return len(dims) == len(shape) and all(
        dim < 0 or dim == size for dim, size in zip(dims, shape, strict=True)
    )


def _parse_device(device: object) -> tuple[str, int]:
    """The device type and number of "gpu:0" or "ascend"; TypeError for anything else."""
    text = require("device", device, str)
    kind, *numbers = text.split(":")
    if len(numbers) > 1:
        raise TypeError(
            f"device must be 'ascend:index', eg: 'ascend:0', or 'gpu:index', but got {text!r}"
        )
    if kind not in ("ascend", "gpu", "cpu"):
        raise TypeError(
            f"now only support ascend device. Or gpu, or cpu for the host, but got {text!r}"
        )
    number = numbers[0] if numbers else "0"
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise TypeError(f"device id should >= 0. Got {text!r}")
    return kind, int(number)


def _refuse_device(kind: str, number: int) -> None:
    """Nothing for the host. BackendError for a device: that there is none, or needs no tensor."""
    if kind == "cpu":
        return
    from engine.backends import find_target, open_backend

    backend = open_backend(find_target(kind).backend)
    found = [str(each.device) for each in backend.devices().found]
    why = (
        "copies tensors to the device itself; leave device out"
        if f"{kind}:{number}" in found
        else f"has no such device; it has: {', '.join(found) or 'none'}"
    )
    raise BackendUnavailable(
        f"device '{kind}:{number}': backend {backend.name!r} {why}", backend.name
    )
