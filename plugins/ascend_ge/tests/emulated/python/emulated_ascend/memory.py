"""The emulated devices' memory: an address space of its own, with ends that are watched."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_FIRST = 0x1240_0000_0000  # no host pointer of this process lies here
_DEVICE = 0x0010_0000_0000
_ALIGN = 512
_FRESH = 0xCD


@dataclass(slots=True)
class Allocation:
    """A piece of device memory. `pins`: loaded models and queued runs that use it."""

    base: int
    data: Bytes
    device: int
    pins: int = 0
    is_exported: bool = False


class Memory:
    """All devices' memory. Addresses are never used twice, so a dangling one stays recognised."""

    def __init__(self, fault: Callable[[str], Exception]) -> None:
        self._fault = fault
        self._bases: list[int] = []
        self._live: dict[int, Allocation] = {}
        self._next: dict[int, int] = {}

    def live(self) -> list[Allocation]:
        """Return all that is allocated."""
        return list(self._live.values())

    def used_bytes(self, device: int) -> int:
        """Return how much of a device is allocated."""
        return sum(
            allocation.data.nbytes
            for allocation in self._live.values()
            if allocation.device == device
        )

    def allocate(self, device: int, nbytes: int) -> int:
        """Allocate; the contents are a pattern, as garbage is."""
        return self.adopt(device, np.full(nbytes, _FRESH, np.uint8))

    def adopt(self, device: int, data: Bytes) -> int:
        """Give an address to memory that is there already."""
        base = self._next.get(device, _FIRST + device * _DEVICE)
        # A gap behind each piece, so that running over its end is never another piece.
        self._next[device] = base + (data.nbytes + 2 * _ALIGN - 1) // _ALIGN * _ALIGN
        self._live[base] = Allocation(base, data, device)
        bisect.insort(self._bases, base)
        return base

    def free(self, address: int) -> None:
        """Free what was allocated at exactly this address."""
        allocation = self._live.get(address)
        if allocation is None:
            raise self._fault(f"free of {address:#x}, which is not allocated now")
        if allocation.is_exported:
            raise self._fault(f"free of {address:#x}, which other processes may still open")
        if allocation.pins:
            raise self._fault(f"free of {address:#x}, which a model or a queued run still uses")
        del self._live[address]
        self._bases.remove(address)

    def is_device(self, address: int) -> bool:
        """Return whether an address is one of a device."""
        return _FIRST <= address < _FIRST + 256 * _DEVICE

    def at(self, address: int, nbytes: int) -> Bytes:
        """Return a view of so many bytes; a fault unless they lie in one allocation."""
        allocation = self.find(address, nbytes)
        return allocation.data[address - allocation.base :][:nbytes]

    def find(self, address: int, nbytes: int = 1) -> Allocation:
        """Return the allocation that holds so many bytes at an address."""
        index = bisect.bisect_right(self._bases, address) - 1
        if index >= 0:
            allocation = self._live[self._bases[index]]
            if address + nbytes <= allocation.base + allocation.data.nbytes:
                return allocation
            if address < allocation.base + allocation.data.nbytes:
                raise self._fault(
                    f"{nbytes} bytes at {address:#x} run over the end of an allocation of "
                    f"{allocation.data.nbytes} bytes at {allocation.base:#x}"
                )
        raise self._fault(f"device address {address:#x} is not allocated (freed, or never was)")
