"""Several devices for one executable: [<backend>_context] device_ids = 0,1."""

from __future__ import annotations

from engine.backends import Backend, open_backend
from engine.errors import BackendUnavailable
from engine.types import Capability, Device

KEY = "device_ids"


def devices_of(
    backend: Backend, device_type: str, text: str, device_id: int, is_chosen: bool
) -> tuple[int, tuple[Device, ...]]:
    """Return the number of the first device, and all devices where there are several.

    text: the numbers, with commas between. device_id: what the user gave beside them, if
    `is_chosen`. Raises ValueError, and BackendUnavailable for devices that the backend does not
    have or does not use together.
    """
    numbers = []
    for part in map(str.strip, text.split(",")):
        if not part.isdecimal() or not part.isascii() or len(part) > 9:
            raise ValueError(f"{KEY} must be numbers with commas between, as 0,1, but got {text!r}")
        numbers.append(int(part))
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"{KEY} must name each device once, but got {text!r}")
    if is_chosen and device_id != numbers[0]:
        raise ValueError(
            f"{KEY} = {text} begins with another device than device_id, {device_id}; set one of "
            "them, or begin with that"
        )
    devices = tuple(Device(device_type, number) for number in numbers)
    if len(devices) == 1:
        return numbers[0], ()
    if not backend.can(Capability.SEVERAL_DEVICES):
        if open_backend(backend.name).can(Capability.SEVERAL_DEVICES):
            raise BackendUnavailable(
                f"{KEY} = {text}: with isolate = true a model runs on one device; leave isolate "
                "out, or set device_id",
                backend.name,
            )
        raise BackendUnavailable(
            f"{KEY} = {text}: backend {backend.name!r} runs a model on one device; set device_id, "
            "or let an engine.MultiDeviceRunner run it on each of them",
            backend.name,
        )
    present = backend.present
    for device in devices:
        if device not in present:
            here = ", ".join(map(str, present)) or "none"
            raise BackendUnavailable(
                f"{KEY} = {text}: backend {backend.name!r} finds no device {device}; it finds: "
                f"{here}",
                backend.name,
            )
        if lacks := backend.lacks(Capability.SEVERAL_DEVICES, device):
            raise BackendUnavailable(
                f"{KEY} = {text}: device {device} cannot be used with others: {lacks}", backend.name
            )
    return numbers[0], devices
