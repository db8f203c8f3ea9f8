"""System shared memory: regions that clients of this host name, for inputs and outputs.

They are read and written by system calls, not mapped: a client may shrink its region at any time,
and a mapped page that is gone would end the server. An input is a copy, which the client can no
longer change while the model runs.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine_serve.errors import NotFound, RequestError, Unsupported
from engine_serve.request import Place
from engine_serve.tensors import Raw

_FOLDER = Path("/dev/shm")
_MOST = 10_000


class Region(NamedTuple):
    """A part of a POSIX shared-memory object. file: its descriptor."""

    name: str
    key: str
    offset: int
    nbytes: int
    file: int


class Regions:
    """The regions that are registered. Any thread may call any method.

    is_on: off, nothing can be registered. most_bytes: of one tensor.
    """

    def __init__(self, *, is_on: bool, most_bytes: int) -> None:
        self._is_on, self._most_bytes = is_on, most_bytes
        self._regions: dict[str, Region] = {}
        self._lock = threading.Lock()

    def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Open a shared-memory object under a name. Raises RequestError, Unsupported."""
        if not self._is_on:
            raise Unsupported(
                "shared memory is off; start the server with --shared-memory if all who reach it "
                "may read and write this host's shared memory as its user"
            )
        plain = key.removeprefix("/")
        if not plain or Path(plain).name != plain or plain in (".", "..") or "\0" in plain:
            raise RequestError(f"region {name!r}: key must be a name, as '/x', got {key!r}", name)
        if not 0 <= offset < 2**63 or not 0 < nbytes < 2**63:
            raise RequestError(
                f"region {name!r}: expected an offset from 0 and a size above 0, "
                f"got {offset} and {nbytes}",
                name,
            )
        with self._lock:
            if name in self._regions:
                raise RequestError(
                    f"region {name!r} is registered already; unregister it first", name
                )
            if len(self._regions) >= _MOST:
                raise RequestError(f"there are {_MOST} regions already; unregister some", name)
            file = _opened(name, plain)
            size = os.fstat(file).st_size
            if offset + nbytes > size:
                os.close(file)
                raise RequestError(
                    f"region {name!r}: {key!r} has {size} bytes, got {nbytes} at offset {offset}",
                    name,
                )
            self._regions[name] = Region(name, key, offset, nbytes, file)

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all of them."""
        with self._lock:
            names = [name] if name else [*self._regions]
            for each in names:
                region = self._regions.pop(each, None)
                if region is not None:
                    os.close(region.file)

    def listed(self, name: str = "") -> list[Region]:
        """Return the regions, or the one of a name. Raises NotFound."""
        with self._lock:
            if name and name not in self._regions:
                raise NotFound(f"there is no region {name!r}")
            return [self._regions[name]] if name else [*self._regions.values()]

    def read(self, place: Place, name: str) -> Raw:
        """Return the bytes of an input. Raises RequestError, which names it."""
        with self._lock:  # so that the descriptor stays this region's
            region, at = self._found(place, name)
            data = np.empty(place.nbytes, np.uint8).data
            done = 0
            while done < len(data):
                count = os.preadv(region.file, [data[done:]], at + done)
                if not count:
                    raise _shrunk(region, name)
                done += count
            return data

    def write(self, place: Place, data: Raw, name: str) -> None:
        """Write an output. Raises RequestError, which names it."""
        if len(data) > place.nbytes:
            raise RequestError(
                f"output {name!r} has {len(data)} bytes, but its place in region "
                f"{place.region!r} has {place.nbytes}",
                name,
            )
        with self._lock:
            region, at = self._found(place, name)
            if os.fstat(region.file).st_size < at + len(data):
                raise _shrunk(region, name)  # a write would make it longer
            view = memoryview(data)
            while view:
                count = os.pwritev(region.file, [view], at)
                view, at = view[count:], at + count

    def _found(self, place: Place, name: str) -> tuple[Region, int]:
        region = self._regions.get(place.region)
        if region is None:
            raise RequestError(f"tensor {name!r}: there is no region {place.region!r}", name)
        if place.offset + place.nbytes > region.nbytes:
            raise RequestError(
                f"tensor {name!r}: region {place.region!r} has {region.nbytes} bytes, got "
                f"{place.nbytes} at offset {place.offset}",
                name,
            )
        if place.nbytes > self._most_bytes:  # a region may be longer than the memory that it has
            raise RequestError(
                f"tensor {name!r}: expected {self._most_bytes} bytes at most, got {place.nbytes}",
                name,
            )
        return region, region.offset + place.offset


def _opened(name: str, key: str) -> int:
    try:
        return os.open(_FOLDER / key, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        raise RequestError(
            f"region {name!r}: cannot open shared memory '/{key}': {text}", name
        ) from error


def _shrunk(region: Region, name: str) -> RequestError:
    return RequestError(f"tensor {name!r}: region {region.name!r} is shorter than registered", name)
