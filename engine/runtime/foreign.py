"""Tensors of other libraries as they are: DLPack, `__cuda_array_interface__`, `__array__`."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.errors import InputError, one_line
from engine.host.imports import ready
from engine.host.interrupts import raised_by_handler
from engine.types import Device, TensorSpec, Value


def take(item: Any, spec: TensorSpec, device: Device | None, role: str = "input") -> Value:
    """Return the array or DeviceBuffer that an object gives access to; None where it is no tensor.

    device: the model's own, on which memory of `__cuda_array_interface__` is taken to be. role:
    what messages call the tensor. Shares the object's memory and keeps it alive. Raises InputError
    where it has a tensor that it does not give, or that has no place here.
    """
    # Looked up on the class, as Python does with its own protocols.
    kind = type(item)
    try:
        if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
            ready("engine.tensor.dlpack")
            from engine.tensor.dlpack import take as take_dlpack

            return take_dlpack(item)
        if hasattr(item, "__cuda_array_interface__"):
            ready("engine.tensor.dlpack")
            from engine.tensor.dlpack import take_cuda_interface

            own = device is not None and device.type == "gpu"
            return take_cuda_interface(item, device if own and device else Device("gpu"))
        if hasattr(kind, "__array__"):
            array = np.asanyarray(item)
            if np.ma.is_masked(array):
                raise ValueError("it has masked elements, fill them first")
            return np.asarray(array)
    except Exception as error:  # whatever the other library raises
        if raised_by_handler(error):
            raise
        ready("engine.runtime.advice")
        from engine.runtime.advice import for_memory

        raise InputError(
            f"{role} {spec.name!r}: expected {spec}, and {kind} does not give its memory: "
            f"{one_line(error)}; {for_memory(item, str(spec.dtype))}",
            spec.name,
        ) from error
    return None
