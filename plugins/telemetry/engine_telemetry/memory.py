"""Memory of the devices of open models, which is read when somebody looks at it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from engine.types import BuildEvent, CloseEvent, Device, DeviceMemory, Status

KINDS = ("free", "used", "own")
TEXT = "Memory of a device: free, used by all processes, and used by this one."

Read = Callable[[], Mapping[Device, DeviceMemory]]


class Memories:
    """The devices of the models and runners that are open. Any thread may call any method."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[tuple[Device, ...], Read]] = {}
        self._pid = os.getpid()

    def built(self, event: BuildEvent) -> None:
        """Read the memory of its devices from now on."""
        if self._pid != os.getpid():  # a forked child has none of its parent's models
            self._open, self._pid = {}, os.getpid()
        if event.status is Status.COMPLETED and event.device_memory is not None:
            self._open[event.model.id] = event.model.devices, event.device_memory

    def closed(self, event: CloseEvent) -> None:
        """Read the memory of its devices no more."""
        self._open.pop(event.model.id, None)

    def read(self) -> Iterator[tuple[str, str, int]]:
        """Ask the backends now; yield device, kind and bytes, each device once."""
        if self._pid != os.getpid():
            return
        seen: set[Device] = set()
        for devices, read in list(self._open.values()):
            if seen.issuperset(devices):
                continue
            for device, memory in read().items():
                if device in seen:
                    continue
                seen.add(device)
                for kind in KINDS:
                    if (nbytes := getattr(memory, f"{kind}_bytes")) is not None:
                        yield str(device), kind, nbytes
