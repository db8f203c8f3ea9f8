"""Memory of XLA's host device: numpy's arrays and JAX's look at the same bytes."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from engine.errors import BackendUnavailable
from engine.types import Device, DeviceBuffer, DType

ALIGNMENT = 64
"""XLA reads host memory in place where it begins at a multiple of this."""


def view(value: Any) -> Any:
    """Return the array that looks at a buffer's memory; an array itself."""
    if not isinstance(value, DeviceBuffer):
        return value
    if not value.nbytes:
        return np.empty(value.shape, value.dtype.numpy)
    raw = (ctypes.c_char * value.nbytes).from_address(value.pointer + value.offset_bytes)
    flat = np.frombuffer(raw, np.uint8).view(value.dtype.numpy)
    if value.strides is None:
        return flat.reshape(value.shape)
    steps = [step * flat.itemsize for step in value.strides]
    return np.lib.stride_tricks.as_strided(flat, value.shape, steps)


def array(dtype: DType, shape: tuple[int, ...]) -> Any:
    """Allocate an array that XLA can read in place."""
    size = (prod(shape) * dtype.bits + 7) // 8
    try:
        raw = np.empty(size + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:
        raise BackendUnavailable(f"no memory for {size} bytes", "jax") from error
    first = -raw.ctypes.data % ALIGNMENT
    return raw[first : first + size].view(dtype.numpy).reshape(shape)


def buffer(contents: Any, device: Device) -> DeviceBuffer:
    """Return a complete buffer of an array's memory, which it keeps alive."""
    contents = np.asarray(contents)  # of several devices it is a copy, else a look
    dtype, pointer = DType.from_numpy(contents.dtype), contents.ctypes.data
    return DeviceBuffer(pointer, contents.shape, dtype, device, None, contents)
