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


class Memory:
    """All devices' memory. Addresses are never used twice, so a dangling one stays recognised."""

    def __init__(self, fault: Callable[[str], Exception]) -> None:
        self._fault = fault
        self._bases: list[int] = []
        self._live: dict[int, Allocation] = {}
        self._next: dict[int, int] = {}

    def live(self) -> list[Allocation]:
        """What is allocated."""
        return list(self._live.values())

    def used_bytes(self, device: int) -> int:
        """How much of a device is allocated."""
        return sum(each.data.nbytes for each in self._live.values() if each.device == device)

    def allocate(self, device: int, nbytes: int) -> int:
        """Allocate; the contents are a pattern, as garbage is."""
        base = self._next.get(device, _FIRST + device * _DEVICE)
        # A gap behind each piece, so that running over its end is never another piece.
        self._next[device] = base + (nbytes + 2 * _ALIGN - 1) // _ALIGN * _ALIGN
        self._live[base] = Allocation(base, np.full(nbytes, _FRESH, np.uint8), device)
        bisect.insort(self._bases, base)
        return base

    def free(self, address: int) -> None:
        """Free what was allocated at exactly this address."""
        found = self._live.get(address)
        if found is None:
            raise self._fault(f"free of {address:#x}, which is not allocated now")
        if found.pins:
            raise self._fault(f"free of {address:#x}, which a model or a queued run still uses")
        del self._live[address]
        self._bases.remove(address)

    def is_device(self, address: int) -> bool:
        """Whether an address is one of a device."""
        return _FIRST <= address < _FIRST + 256 * _DEVICE

    def at(self, address: int, nbytes: int) -> Bytes:
        """A view of so many bytes; a fault unless they lie in one allocation."""
        found = self.find(address, nbytes)
        return found.data[address - found.base :][:nbytes]

    def find(self, address: int, nbytes: int = 1) -> Allocation:
        """The allocation that holds so many bytes at an address."""
        place = bisect.bisect_right(self._bases, address) - 1
        if place >= 0:
            found = self._live[self._bases[place]]
            if address + nbytes <= found.base + found.data.nbytes:
                return found
            if address < found.base + found.data.nbytes:
                raise self._fault(
                    f"{nbytes} bytes at {address:#x} run over the end of an allocation of "
                    f"{found.data.nbytes} bytes at {found.base:#x}"
                )
        raise self._fault(f"device address {address:#x} is not allocated (freed, or never was)")
