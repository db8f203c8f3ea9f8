"""Put a tensor where its `device` argument says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from engine.backends import installed
from engine.config.checks import require
from engine.host.imports import ready
from engine.types import Device, DeviceBuffer

Data: TypeAlias = "np.ndarray[Any, Any] | DeviceBuffer | None"


def placer(device: object) -> Callable[[Data], tuple[Device | None, Data]]:
    """Return what puts data on "gpu:0", "ascend" or "cpu"; TypeError for anything else."""
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


def _put(kind: str, number: int, value: Data) -> tuple[Device | None, Data]:
    """Return the device, None for the host, and the data on it. Raises BackendError."""
    if kind == "cpu" and not isinstance(value, DeviceBuffer):
        return None, value
    ready("engine.tensor.memory")
    from engine.tensor import memory

    if kind != "cpu" and not memory.is_overridden(kind):
        device = Device(memory.device_type(kind), number)
        if device.type != "cpu":  # else a backend's name, whose memory is the host's
            memory.memory_of(device)
            if isinstance(value, np.ndarray) or (value is not None and value.device != device):
                value = memory.to_device(value, device)
            return device, value
    return None, memory.to_host(value) if isinstance(value, DeviceBuffer) else value
