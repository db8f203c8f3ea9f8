"""Tensor. The API is MindSpore Lite's.

A Tensor shares memory with the numpy array it was given; one that a predict returned owns its
memory, and no later predict changes it. Its memory may be on a device, where the host cannot
read it: it is copied when numpy asks for it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from engine.config.checks import require, require_shape
from engine.errors import InputError
from engine.host.imports import ready
from engine.tensor.description import (
    Array,
    Description,
    admits,
    array_of,
    in_one_line,
    is_open,
    plain,
    refuse_masked,
    refused,
    reshaped,
    supported,
)
from engine.tensor.enums import DataType, Format

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from engine.types import Device, DeviceBuffer


class Tensor:
    """A named array that a model takes or gives.

    Tensor(array) wraps a numpy array without a copy (one that is not C-contiguous, aligned and in
    the machine's byte order is copied once). Tensor(tensor) copies another tensor: data, name and
    format; from a device to the host, unless `device` says where to. Tensor(shape=, dtype=)
    allocates zeros. Tensor() is empty. `shape` and `dtype` beside an array must equal the array's.

    device: "gpu", "ascend:1" or another device type of an installed backend, with its number, for
    memory there: data is copied to it, and shape and dtype without data allocate, with undefined
    contents. As an output of predict it has the result on that device; without shape or dtype
    the memory is allocated then. "cpu" is the host, and so is every device that ENGINE_TARGET
    keeps models from.

    It reads as its array does: `len`, indices, iteration, `in`; on a device each of these copies
    all of it to the host. Other libraries share its memory by DLPack, and on a GPU by
    `__cuda_array_interface__`.

    Not locked: threads that write into one tensor's array coordinate among themselves. Raises
    TypeError for arguments of the wrong type or shapes and dtypes that contradict each other,
    InputError where the memory cannot be had, BackendError for a device.
    """

    __module__ = "engine.tensor"  # upstream's path
    # Two slots only: every predict makes one Tensor an output, and this is most of its cost.
    __slots__ = ("__weakref__", "_description", "_value")

    _value: Array | DeviceBuffer | None
    _description: Description

    def __init__(
        self,
        tensor: Tensor | Array | None = None,
        shape: Sequence[int] | None = None,
        dtype: DataType | None = None,
        device: str | None = None,
    ) -> None:
        dims = None if shape is None else require_shape("shape", shape)
        put = None
        if device is not None:
            ready("engine.tensor.placing")
            from engine.tensor.placing import placer  # rare

            put = placer(device)
        if dtype is not None:
            require("dtype", dtype, DataType)
        self._value = None
        self._description = Description()
        if isinstance(tensor, ndarray):
            self._wrap(tensor, shape, dtype)
        elif isinstance(tensor, Tensor):
            self._copy(tensor, shape, dtype)
        elif tensor is not None:
            raise TypeError(
                "tensor must be MindSpore Lite's Tensor._tensor or numpy ndarray, "
                f"but got {type(tensor)}.{array_of(tensor)}"
            )
        if put is not None:
            self._description.device, data = put(self._value)
            if data is not self._value:
                self._description.wraps = False
                self._value = data
        if tensor is None:
            self._describe(dims, dtype)

    def _describe(self, shape: tuple[int, ...] | None, dtype: DataType | None) -> None:
        if dtype is not None:
            self._description.dtype = dtype
        if shape is not None:
            self._description.shape = shape
        if shape is not None and dtype is not None and not is_open(shape):
            if self._description.device is None:
                self.get_data_to_numpy()
            else:
                self._allocate(self._description.device, shape)

    def _allocate(self, device: Device, shape: tuple[int, ...]) -> DeviceBuffer:
        """Give the tensor new memory on a device."""
        ready("engine.tensor.memory")
        from engine.tensor import memory
        from engine.types import DType

        dtype = DType.from_numpy(self._description.dtype.to_numpy())
        self._value = buffer = memory.allocate(device, dtype, shape)
        return buffer

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
        value = other._value
        if isinstance(value, ndarray):
            self._value = value.copy()
        elif value is not None:
            ready("engine.tensor.memory")
            from engine.tensor import memory

            self._value = memory.to_host(value)

    def _wrap(self, array: Array, shape: Sequence[int] | None, dtype: DataType | None) -> None:
        refuse_masked("tensor must be MindSpore Lite's Tensor._tensor or numpy ndarray", array)
        own = supported(array)
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
        self._value = plain(array)
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
        value = self._value
        if isinstance(value, ndarray):
            return DataType.from_numpy(value.dtype)
        if value is not None:
            return DataType.__members__.get(value.dtype.name, DataType.UNKNOWN)
        return self._description.dtype

    @dtype.setter
    def dtype(self, dtype: DataType) -> None:
        require("dtype", dtype, DataType)
        if self._wraps():
            if dtype is not self.dtype:
                self._warn_that_ignored(f"dtype {dtype}")
            return
        description = self._own_description()
        if self._value is not None and dtype is not self.dtype:
            description.shape = self._value.shape
            self._value = None
        description.dtype = dtype

    @property
    def shape(self) -> list[int]:
        """The sizes of the axes, -1 where open.

        Setting it keeps data of as many elements and drops other data. Where the tensor wraps an
        array of the user's, it can only open axes for the next one; all else changes nothing, with
        a warning.
        """
        if self._value is not None:
            return list(self._value.shape)
        return list(self._description.shape)

    @shape.setter
    def shape(self, shape: Sequence[int]) -> None:
        dims = require_shape("shape", shape)
        array = self._value
        if array is not None and dims == array.shape:
            return
        if array is None or (self._wraps() and admits(dims, array.shape)):
            self._own_description().shape = dims
        elif self._wraps():
            self._warn_that_ignored(f"shape {list(dims)}")
        else:
            self._own_description().shape = dims
            fits = not is_open(dims) and prod(dims) == prod(array.shape)
            self._value = reshaped(array, dims) if fits else None

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
        shape = self._value.shape if self._value is not None else self._description.shape
        return 0 if is_open(shape) else prod(shape)

    @property
    def data_size(self) -> int:
        """The size of the data in bytes; 0 while an axis is open or the type is unknown."""
        if self._value is not None:
            return int(self._value.nbytes)
        dtype = self._description.dtype
        if dtype in (DataType.UNKNOWN, DataType.INVALID):
            return 0
        return self.element_num * dtype.to_numpy().itemsize

    @property
    def device(self) -> str:
        """The device that the data is on, as "gpu:0"; "None:-1" for the host."""
        value = self._value
        if isinstance(value, ndarray):
            return "None:-1"
        device = self._description.device if value is None else value.device
        return "None:-1" if device is None else str(device)

    # ------------------------------------------------------------------------------------ data

    def get_data_to_numpy(self) -> Array:
        """Return the data as an array that shares this tensor's memory: writing changes it.

        Data on a device is copied: the array is a new one, and writing into it changes nothing.
        A tensor without data gets zeros first; one with an open axis gives an empty array.
        Raises InputError where that much memory cannot be had, TypeError for dtype UNKNOWN.
        """
        value = self._value
        if isinstance(value, ndarray):
            return value
        if value is not None:
            ready("engine.tensor.memory")
            from engine.tensor import memory

            return memory.to_host(value)
        dtype = self._description.dtype.to_numpy()
        shape = self._description.shape
        if is_open(shape):
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
        if self._description.device is None:
            self._own_description().wraps = False
            self._value = array
        return array

    def numpy(self) -> Array:
        """Return the data as an array: `get_data_to_numpy` by the name that others give it."""
        return self.get_data_to_numpy()

    def __len__(self) -> int:
        # Without the data: a look at a Tensor that predict is to fill must not allocate it.
        if not (shape := self.shape):
            raise TypeError("len() of an unsized tensor: it has no axes")
        return max(shape[0], 0)

    def __getitem__(self, index: Any) -> Any:
        return self.get_data_to_numpy()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get_data_to_numpy())

    def __contains__(self, value: object) -> bool:
        return value in self.get_data_to_numpy()

    def __bool__(self) -> bool:
        if self.element_num != 1:
            raise ValueError(
                f"the truth of a tensor of shape {self.shape} is ambiguous; compare with "
                "`is None`, or use .numpy().any() or .all()"
            )
        return self._value is not None and bool(self.get_data_to_numpy())

    def set_data_from_numpy(self, numpy_obj: Array) -> None:
        """Use the memory of `numpy_obj` from now on, without a copy.

        The array must have this tensor's dtype and byte size; the tensor keeps its own shape,
        except that open axes (-1) take the array's sizes. An array that is not C-contiguous,
        aligned and in the machine's byte order is copied, so later changes of it are not seen. A
        tensor of dtype UNKNOWN, as for a model's strings, takes any array: predict checks it. A
        tensor on a device copies the array into its memory there.
        Raises TypeError for anything but a numpy array of a supported dtype, RuntimeError
        (InputError) where dtype or size differ.
        """
        if not isinstance(numpy_obj, ndarray):
            raise TypeError(
                f"numpy_obj must be numpy.ndarray, but got {type(numpy_obj)}.{array_of(numpy_obj)}"
            )
        refuse_masked("numpy_obj must be numpy.ndarray", numpy_obj)
        declared, name = self._description.dtype, self._description.name
        if declared is not DataType.UNKNOWN and supported(numpy_obj) is not declared:
            wanted = declared.to_numpy().name
            raise refused(
                name,
                f"{wanted}{list(self._description.shape)}",
                f"{numpy_obj.dtype.name}{list(numpy_obj.shape)}; convert the array with "
                f"astype({wanted!r})",
                f"data type not equal! Numpy type: {numpy_obj.dtype.type}, Tensor type: {declared}",
            )
        shape = self._description.shape
        if is_open(shape):
            if not admits(shape, numpy_obj.shape):
                raise refused(
                    name,
                    f"shape {list(shape)}, in which -1 takes any size",
                    f"{list(numpy_obj.shape)}; pass an array of such a shape",
                    f"data size not equal! Numpy shape: {list(numpy_obj.shape)}, Tensor shape: "
                    f"{list(shape)}",
                )
            shape = numpy_obj.shape
        elif self._value is not None:
            shape = self._value.shape
        if prod(shape) != numpy_obj.size:
            raise refused(
                name,
                f"{prod(shape)} elements, as shape {list(shape)} has",
                f"{numpy_obj.size}, shape {list(numpy_obj.shape)}; pass as many, or set the "
                "tensor's shape first",
                f"data size not equal! Numpy size: {numpy_obj.nbytes}, Tensor size: "
                f"{prod(shape) * numpy_obj.itemsize}",
            )
        array = plain(numpy_obj)
        value = self._value
        device = self._description.device if value is None else getattr(value, "device", None)
        if device is not None and not isinstance(value, ndarray):
            ready("engine.tensor.memory")
            from engine.tensor import memory

            if value is None or value.shape != shape:
                value = self._allocate(device, shape)
            memory.copy(array.reshape(shape), value)
            return
        if not self._description.wraps:
            self._own_description().wraps = True
        self._value = array if array.shape == shape else array.reshape(shape)

    def __float__(self) -> float:
        return float(self.get_data_to_numpy().item())

    def __int__(self) -> int:
        return int(self.get_data_to_numpy().item())

    def __str__(self) -> str:
        return (
            f"name: {self.name},\ndtype: {self.dtype},\nshape: {self.shape},\n"
            f"format: {self.format},\nelement_num: {self.element_num},\n"
            f"data_size: {self.data_size}.\ndevice: {self.device}."
        )

    def __repr__(self) -> str:
        return in_one_line(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if dtype is None and not copy and type(self._value) is ndarray:
            return self._value
        array = self.get_data_to_numpy()
        if copy is False and array is not self._value:
            raise ValueError(f"a tensor on {self.device} as an array needs a copy")
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"a {array.dtype} tensor as {dtype} needs a copy")
            return array.astype(dtype)
        return array.copy() if copy and array is self._value else array

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type and number: (1, 0) for the host, 12 for an unknown device.

        For a GPU 2, or 3 and 13 for memory that is page-locked or managed.
        """
        ready("engine.tensor.dlpack")
        from engine.tensor import dlpack

        return dlpack.device_of(self._data_for("__dlpack_device__"))

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule that shares this tensor's memory, or a copy of it.

        stream: the consumer's, as DLPack numbers them, which is made to wait for the contents; -1
        leaves that to the consumer. dl_device: (1, 0) for a copy on the host.
        Raises BufferError where DLPack cannot say it.
        """
        ready("engine.tensor.dlpack")
        from engine.tensor import dlpack

        return dlpack.given(self._data_for("__dlpack__"), stream, max_version, dl_device, copy)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory as CUDA libraries for Python take it; only there for data on a GPU."""
        value = self._value
        if value is None or isinstance(value, ndarray) or value.device.type != "gpu":
            raise AttributeError(f"a tensor on {self.device} has no __cuda_array_interface__")
        ready("engine.tensor.dlpack")
        from engine.tensor import dlpack

        return dlpack.cuda_interface(value)

    def _data_for(self, protocol: str) -> Array | DeviceBuffer:
        """Return the memory, allocated where it may be. Raises BufferError for none."""
        if (
            self._value is None
            and self._description.device is None
            and not is_open(self._description.shape)
        ):
            self.get_data_to_numpy()
        if self._value is None:
            raise BufferError(f"{protocol}: tensor {self.name!r} has no data yet")
        return self._value

    def _own_description(self) -> Description:
        """This tensor's description, no longer shared with the other results of its output."""
        old = self._description
        self._description = Description(
            old.name, old.dtype, old.shape, old.format, old.wraps, old.device
        )
        return self._description

    def _wraps(self) -> bool:
        """Return True where the data is an array that the user gave: no setter changes that."""
        return self._value is not None and self._description.wraps

    def _warn_that_ignored(self, change: str) -> None:
        import warnings

        warnings.warn(
            f"{change} is ignored: tensor {self.name!r} wraps a numpy array, {self.dtype} "
            f"{self.shape}; change the array, and make a Tensor of it",
            stacklevel=3,
        )
