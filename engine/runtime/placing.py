"""Put a tensor where its `device` argument says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from engine.backends import installed
from engine.config.checks import require
from engine.host.imports import ready
from engine.types import Device

if TYPE_CHECKING:
    from engine.tensor import Tensor


def placer(device: object) -> Callable[[Tensor], None]:
    """Return what puts a tensor on "gpu:0", "ascend" or "cpu"; TypeError for anything else."""
    text = require("device", device, str)
    kind, *numbers = text.split(":")
    if len(numbers) > 1:
        raise TypeError(
            f"device must be 'ascend:index', eg: 'ascend:0', or 'gpu:index', but got {text!r}"
        )
    if kind not in ("ascend", "gpu", "cpu") and kind not in installed():
        ready("engine.backends.advice")
        from engine.backends.advice import hint_for

        here = ", ".join(installed()) or "none"
        hint = f"; {hint_for(kind)}".rstrip("; ")
        raise TypeError(
            "now only support ascend device. Or gpu, or cpu for the host, or the name of an "
            f"installed backend (installed: {here}), but got {text!r}{hint}"
        )
    number = numbers[0] if numbers else "0"
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise TypeError(f"device id should >= 0. Got {text!r}")
    return partial(_put, kind, int(number))


def _put(kind: str, number: int, tensor: Tensor) -> None:
    """Put a tensor on a device, with the data it has. Raises BackendError for one not there."""
    if kind == "cpu":
        tensor._description.device = None
        if tensor._value is not None:
            tensor._value = tensor.get_data_to_numpy()
        return
    ready("engine.runtime.memory")
    from engine.runtime import memory

    if memory.is_overridden(kind):
        _put("cpu", 0, tensor)
        return
    device = Device(memory.device_type(kind), number)
    if device.type == "cpu":  # a backend's name, whose memory is the host's
        _put("cpu", 0, tensor)
        return
    memory.memory_of(device)
    tensor._description.device = device
    value = tensor._value
    if isinstance(value, np.ndarray) or (value is not None and value.device != device):
        tensor._description.wraps = False
        tensor._value = memory.to_device(value, device)
