"""DLPack and `__cuda_array_interface__`: tensors from and for other libraries, without a copy.

The structures are those of dlpack.h 1.0, whose layout is an ABI: field by field as there. A
capsule named "dltensor" or "dltensor_versioned" holds a managed tensor; who takes the tensor over
renames the capsule to "used_..." and calls the tensor's deleter when it is done with it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.tensor.memory import order, takes_strides, to_host
from engine.types import Device, DeviceBuffer, DType, MemoryKind

Array = np.ndarray[Any, Any]

CPU, CUDA, CUDA_HOST, CUDA_MANAGED, EXTENSION = 1, 2, 3, 13, 12
"""DLDeviceType: kDLCPU, kDLCUDA, kDLCUDAHost, kDLCUDAManaged, kDLExtDev."""

_OF_GPU = {MemoryKind.DEVICE: CUDA, MemoryKind.PINNED: CUDA_HOST, MemoryKind.MANAGED: CUDA_MANAGED}

HOST = frozenset({CPU, CUDA_HOST, CUDA_MANAGED})

# DLDataTypeCode and bits of one element.
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}
_TYPES: dict[tuple[int, int], DType] = {
    (4, 16): DType.BFLOAT16,
    (6, 8): DType.BOOL,
    (10, 8): DType.FLOAT8E4M3FN,
    (11, 8): DType.FLOAT8E4M3FNUZ,
    (12, 8): DType.FLOAT8E5M2,
    (13, 8): DType.FLOAT8E5M2FNUZ,
    (14, 8): DType.FLOAT8E8M0,
}
_TYPES |= {
    (_CODES[dtype.rstrip("0123456789")], dtype.bits): dtype
    for dtype in DType
    if dtype.rstrip("0123456789") in ("int", "uint", "float", "complex") and dtype.bits >= 8
}
_NUMBERS = {dtype: numbers for numbers, dtype in _TYPES.items()}

_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_PLAIN_NAME, _VERSIONED_NAME = b"dltensor", b"dltensor_versioned"
_USED = {_PLAIN_NAME: b"used_dltensor", _VERSIONED_NAME: b"used_dltensor_versioned"}

_MOST_ELEMENTS = 2**56  # more than any memory holds, at 16 bytes an element


class _Tensor(ctypes.Structure):
    """DLTensor, with its DLDevice and DLDataType laid out in it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_python = ctypes.pythonapi
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _python)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", _python)
)


# ----------------------------------------------------------------------------------------- giving


def device_of(value: Array | DeviceBuffer) -> tuple[int, int]:
    """Return DLPack's device type and number of a tensor."""
    if isinstance(value, np.ndarray):
        return CPU, 0
    return _OF_GPU[value.memory] if value.device.type == "gpu" else EXTENSION, value.device.id


def given(
    value: Array | DeviceBuffer,
    stream: int | None,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> Any:
    """Return a capsule of a tensor's memory for a consumer; see `Tensor.__dlpack__`."""
    own = device_of(value)
    if not isinstance(value, np.ndarray):
        if dl_device is not None and tuple(dl_device) != own:
            if tuple(dl_device) != (CPU, 0) or copy is False:
                raise BufferError(f"memory on {value.device} is not shared with {dl_device}")
            value, copy = to_host(value), None
        elif copy:
            raise BufferError(f"copy=True is for the host; this tensor is on {value.device}")
        else:
            order_for(value, stream)
    elif dl_device is not None and tuple(dl_device) != own:
        raise BufferError(f"memory of the host is not shared with device {dl_device}")
    if copy:
        assert isinstance(value, np.ndarray)
        value = value.copy()
    return export(value, max_version is not None and max_version[0] >= 1)


def export(value: Array | DeviceBuffer, is_versioned: bool) -> Any:
    """Return a capsule that shares a tensor's memory.

    value: C-contiguous, or with strides of its own on a device. is_versioned: for a consumer that
    knows DLPack 1.0; an older one is not given read-only memory, because it could not see that it
    is. Raises BufferError.
    """
    dtype = DType.from_numpy(value.dtype) if isinstance(value, np.ndarray) else value.dtype
    if dtype not in _NUMBERS:
        raise BufferError(f"DLPack has no element type {str(dtype)!r} that this version exports")
    # numpy makes the capsule, for numbers of that size, because its deleter is compiled code: one
    # in Python could be called with an error set, or when Python has ended. The rest is filled in.
    stand_in = _viewed(value, np.dtype(_BY_SIZE[dtype.bits // 8]))
    if not stand_in.flags.writeable and not is_versioned:
        raise BufferError(
            "the array is read-only, which DLPack says only from version 1.0 on; pass a copy, or "
            "ask with max_version=(1, 0)"
        )
    capsule = _capsule_of(stand_in) if is_versioned else stand_in.__dlpack__()
    tensor, _ = _read(capsule)
    tensor.device_type, tensor.device_id = device_of(value)
    tensor.code, tensor.bits = _NUMBERS[dtype]
    if isinstance(value, DeviceBuffer):
        tensor.byte_offset = value.offset_bytes
    return capsule


_BY_SIZE = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


def _viewed(value: Array | DeviceBuffer, dtype: np.dtype[Any]) -> Array:
    """Return an array with a tensor's address and shape, which keeps it alive.

    That of memory on a device is never read: the host cannot.
    """
    if isinstance(value, np.ndarray):
        return value.view(dtype)
    return _Memory(value).array(value.pointer, value.shape, dtype, _in_bytes(value))


def _in_bytes(buffer: DeviceBuffer) -> tuple[int, ...] | None:
    size = buffer.dtype.bits // 8
    return buffer.strides and tuple(step * size for step in buffer.strides)


def _capsule_of(array: Array) -> Any:
    try:
        return array.__dlpack__(max_version=(1, 0))
    except TypeError:  # a numpy before 2.1
        return array.__dlpack__()


class _Memory:
    """Gives numpy an address as an array, which keeps this object, and it the memory's owner."""

    __array_interface__: Mapping[str, Any]

    def __init__(self, owner: object) -> None:
        self._owner = owner

    def array(
        self,
        pointer: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        strides: tuple[int, ...] | None = None,
        is_read_only: bool = False,
    ) -> Array:
        """Return the array; strides in bytes, None for a C-contiguous one."""
        self.__array_interface__ = {
            "version": 3,
            "data": (pointer, is_read_only),
            "shape": shape,
            "typestr": dtype.str,
            "strides": strides,
        }
        return np.asarray(self)


def order_for(buffer: DeviceBuffer, stream: int | None) -> None:
    """Make a consumer's stream wait for a buffer's contents.

    stream: on a GPU as DLPack numbers CUDA's: None and 1 for the legacy default stream, 2 for the
    thread's default stream, else a handle. -1: the consumer sees to it. Elsewhere the calling
    thread waits, and for None where the host can read the memory, as numpy does at once. Raises
    BufferError for 0, which the protocol forbids.
    """
    if stream == -1:
        return
    if buffer.device.type != "gpu":
        later = None
    elif stream == 0:
        raise BufferError("stream 0 is ambiguous; pass 1 for the legacy default stream")
    elif stream is None and buffer.memory is not MemoryKind.DEVICE:
        later = None
    else:
        later = 0 if stream in (None, 1) else stream
    order(buffer, later)


# ----------------------------------------------------------------------------------------- taking


def _read(capsule: Any) -> tuple[_Tensor, _Versioned | _Managed]:
    """Return the tensor in a capsule, and what manages it, where they lie."""
    name = next((name for name in _USED if _is_valid(capsule, name)), None)
    if name is None:
        raise BufferError("__dlpack__ did not give a capsule with a tensor not yet taken over")
    kind = _Versioned if name == _VERSIONED_NAME else _Managed
    managed = kind.from_address(_pointer_of(capsule, name))
    if isinstance(managed, _Versioned) and managed.major != 1:  # of another layout
        raise BufferError(f"its DLPack is of version {managed.major}.{managed.minor}, expected 1.x")
    return managed.tensor, managed


class _Imported:
    """A tensor taken over from another library; its deleter is called when this object goes."""

    def __init__(self, capsule: Any) -> None:
        self._managed: _Versioned | _Managed | None = None
        self.tensor, managed = _read(capsule)
        is_versioned = isinstance(managed, _Versioned)
        self.is_read_only = isinstance(managed, _Versioned) and bool(managed.flags & _READ_ONLY)
        _rename(capsule, _USED[_VERSIONED_NAME if is_versioned else _PLAIN_NAME])
        self._managed = managed

    def __del__(self) -> None:
        managed = getattr(self, "_managed", None)  # a signal handler may have raised in __init__
        if managed is not None and managed.deleter:
            _Deleter(managed.deleter)(ctypes.addressof(managed))


def take(producer: Any, stream: int | None = None) -> Array | DeviceBuffer:
    """Return the tensor of an object with `__dlpack__`, sharing its memory and keeping it alive.

    stream: for memory on a device, the one on which the producer is asked to make it ready, as
    DLPack numbers them (1: CUDA's legacy default stream). Raises BufferError where it cannot be.
    """
    kind, number = producer.__dlpack_device__()
    if kind in HOST:
        try:
            array: Array = np.from_dlpack(producer)
        except (BufferError, RuntimeError):  # an element type that numpy does not have
            return _array(_Imported(_capsule(producer, None)))
        return array
    if kind != CUDA:
        raise BufferError(
            f"its memory is on a device of DLPack's type {int(kind)}; the host (1) and CUDA (2) "
            "can be shared: copy it to the host"
        )
    imported = _Imported(_capsule(producer, 1 if stream is None else stream))
    shape, dtype, pointer = _facts(imported.tensor)
    device, strides = Device("gpu", int(number)), None
    if not _is_contiguous(imported.tensor, shape):
        strides = _strides(imported.tensor, shape)
        if not takes_strides(device):
            raise BufferError("its memory is not C-contiguous; make it so with its contiguous()")
    # Asked for the legacy default stream: its contents are ordered there, which is stream 0.
    return DeviceBuffer(pointer, shape, dtype, device, 0, imported, strides)


def _capsule(producer: Any, stream: int | None) -> Any:
    arguments = {} if stream is None else {"stream": stream}
    try:
        return producer.__dlpack__(**arguments, max_version=(1, 0))
    except TypeError:  # written before version 1.0
        return producer.__dlpack__(**arguments)


def _array(imported: _Imported) -> Array:
    """Return a host array of a tensor; it keeps the tensor alive."""
    shape, dtype, pointer = _facts(imported.tensor)
    size = dtype.bits // 8
    strides = tuple(stride * size for stride in _strides(imported.tensor, shape))
    array = _Memory(imported).array(
        pointer, shape, np.dtype(f"V{size}"), strides, imported.is_read_only
    )
    return array.view(dtype.numpy)


def _facts(tensor: _Tensor) -> tuple[tuple[int, ...], DType, int]:
    """Return shape, element type and address of a tensor."""
    dtype = _TYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise BufferError(
            f"its element type is of DLPack's code {tensor.code}, {tensor.bits} bits and "
            f"{tensor.lanes} lanes, which no model has"
        )
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    return shape, dtype, (tensor.data or 0) + tensor.byte_offset


def _strides(tensor: _Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    if not tensor.strides:  # NULL: C-contiguous
        return _contiguous(shape)
    return tuple(tensor.strides[axis] for axis in range(tensor.ndim))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous tensor."""
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))


def _is_contiguous(tensor: _Tensor, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is C-contiguous; the strides of axes of size 1 do not count."""
    if 0 in shape:
        return True
    wanted = _contiguous(shape)
    return all(
        size == 1 or stride == want
        for size, stride, want in zip(shape, _strides(tensor, shape), wanted)
    )


# ---------------------------------------------------------------------- __cuda_array_interface__


def cuda_interface(buffer: DeviceBuffer) -> dict[str, Any]:
    """Return version 3 of `__cuda_array_interface__` for memory on a GPU.

    Raises AttributeError, so that the tensor has no such attribute, where it cannot say the type.
    """
    if buffer.dtype.numpy.kind not in "biufc":
        raise AttributeError(
            f"__cuda_array_interface__ has no element type {str(buffer.dtype)!r}; use DLPack"
        )
    return {
        "shape": buffer.shape,
        "typestr": buffer.dtype.numpy.str,
        "data": (buffer.pointer + buffer.offset_bytes, False),
        "strides": _in_bytes(buffer),
        "stream": 1 if buffer.stream == 0 else buffer.stream,  # 0 is forbidden there
        "version": 3,
    }


def take_cuda_interface(producer: Any, device: Device) -> DeviceBuffer:
    """Return the tensor of an object with `__cuda_array_interface__`, which is kept alive.

    device: the interface does not say which it is. Raises BufferError.
    """
    interface = producer.__cuda_array_interface__
    dtype = np.dtype(interface["typestr"])
    shape = tuple(int(size) for size in interface["shape"])
    strides, stream = interface.get("strides"), interface.get("stream")
    pointer, _ = interface["data"]
    _check_interface(shape, strides, stream, pointer)
    if interface.get("mask") is not None:
        raise BufferError("its __cuda_array_interface__ has a mask; fill the masked elements first")
    wanted = tuple(stride * dtype.itemsize for stride in _contiguous(shape))
    is_contiguous = (
        strides is None
        or 0 in shape
        or all(size == 1 or stride == want for size, stride, want in zip(shape, strides, wanted))
    )
    is_regular = is_contiguous or not any(stride % dtype.itemsize for stride in strides)
    if not dtype.isnative or not is_regular or not (is_contiguous or takes_strides(device)):
        raise BufferError("its memory is not C-contiguous in native byte order; copy it so")
    steps = None if is_contiguous else tuple(stride // dtype.itemsize for stride in strides)
    if stream == 0:
        raise BufferError("its __cuda_array_interface__ says stream 0, which that protocol forbids")
    if stream == 1:
        stream = 0  # the legacy default stream, which the protocol numbers 1
    return DeviceBuffer(pointer, shape, DType.from_numpy(dtype), device, stream, producer, steps)


def _check_interface(shape: tuple[int, ...], strides: Any, stream: Any, pointer: Any) -> None:
    """Raise BufferError unless the fields are such as the protocol describes."""
    if any(size < 0 for size in shape) or math.prod(shape) > _MOST_ELEMENTS:
        raise BufferError(f"its __cuda_array_interface__ says shape {list(shape)}")
    if strides is not None and len(strides) != len(shape):
        raise BufferError(f"it has {len(strides)} strides for {len(shape)} axes")
    if not isinstance(pointer, int) or pointer < 0 or (not pointer and 0 not in shape):
        raise BufferError(f"its __cuda_array_interface__ says address {pointer!r}")
    if stream is not None and not isinstance(stream, int):
        raise BufferError(f"its __cuda_array_interface__ says stream {stream!r}")
