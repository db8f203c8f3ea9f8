"""System shared memory: regions that clients of this host name, for inputs and outputs.

They are read and written by system calls, not mapped: a client may shrink its region at any time,
and a mapped page that is gone would end the server. An input is a copy, which the client can no
longer change while the model runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine_serve.errors import NotFound, RequestError, Unsupported
from engine_serve.tensors import Raw

_FOLDER = Path("/dev/shm")
_MOST = 10_000


@dataclass(slots=True, eq=False)
class Region:
    """A part of a POSIX shared-memory object, from its registration until `close`."""

    name: str
    key: str
    offset: int
    nbytes: int
    _file: int
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def opened(self, tensor: str) -> Iterator[int]:
        """Return the descriptor, which stays open meanwhile. Raises RequestError."""
        with self._lock:
            if self._file < 0:
                raise RequestError(
                    f"tensor {tensor!r}: region {self.name!r} was unregistered while the request "
                    "ran",
                    tensor,
                )
            yield self._file

    def close(self) -> None:
        """Let requests that hold the region fail: its client may use the memory for another."""
        with self._lock:
            os.close(self._file)
            self._file = -1


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a region: where a tensor of a request lies.

    It holds the region that was registered when the request was read: another may get its name
    while the model runs, for other requests.
    """

    region: Region
    offset: int
    nbytes: int

    def read(self, name: str) -> Raw:
        """Return the bytes of an input. Raises RequestError, which names it."""
        data = np.empty(self.nbytes, np.uint8).data
        at, done = self.region.offset + self.offset, 0
        with self.region.opened(name) as file:
            while done < len(data):
                count = os.preadv(file, [data[done:]], at + done)
                if not count:
                    raise self._shrunk(name)
                done += count
        return data

    def write(self, data: Raw, name: str) -> None:
        """Write an output. Raises RequestError, which names it."""
        if len(data) > self.nbytes:
            raise RequestError(
                f"output {name!r} has {len(data)} bytes, but its place in region "
                f"{self.region.name!r} has {self.nbytes}",
                name,
            )
        view, at = memoryview(data), self.region.offset + self.offset
        with self.region.opened(name) as file:
            if os.fstat(file).st_size < at + len(data):
                raise self._shrunk(name)  # a write would make it longer
            while view:
                count = os.pwritev(file, [view], at)
                view, at = view[count:], at + count

    def _shrunk(self, name: str) -> RequestError:
        text = f"tensor {name!r}: region {self.region.name!r} is shorter than registered"
        return RequestError(text, name)


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
        """Forget a region, or all of them. From then on, no request reads or writes it."""
        with self._lock:
            for each in [name] if name else [*self._regions]:
                region = self._regions.pop(each, None)
                if region is not None:
                    region.close()

    def listed(self, name: str = "") -> list[Region]:
        """Return the regions, or the one of a name. Raises NotFound."""
        with self._lock:
            if name and name not in self._regions:
                raise NotFound(f"there is no region {name!r}")
            return [self._regions[name]] if name else [*self._regions.values()]

    def place_of(self, parameters: Mapping[str, Any], name: str) -> Place | None:
        """Return where a tensor's parameters say that it lies; None for not in shared memory.

        Raises RequestError, which names the tensor.
        """
        wanted = parameters.get("shared_memory_region")
        nbytes = parameters.get("shared_memory_byte_size")
        offset = parameters.get("shared_memory_offset", 0)
        if wanted is None and nbytes is None and not offset:
            return None
        if not isinstance(wanted, str) or type(nbytes) is not int or type(offset) is not int:
            raise RequestError(
                f"tensor {name!r}: shared memory takes 'shared_memory_region', a name, and "
                f"'shared_memory_byte_size', in bytes; got {wanted!r} and {nbytes!r}",
                name,
            )
        if nbytes < 0 or offset < 0:
            raise RequestError(
                f"tensor {name!r}: size and offset in shared memory must be 0 or more, got "
                f"{nbytes} and {offset}",
                name,
            )
        region = self._regions.get(wanted)
        if region is None:
            raise RequestError(f"tensor {name!r}: there is no region {wanted!r}", name)
        if offset + nbytes > region.nbytes:
            raise RequestError(
                f"tensor {name!r}: region {wanted!r} has {region.nbytes} bytes, got "
                f"{nbytes} at offset {offset}",
                name,
            )
        if nbytes > self._most_bytes:  # a region may be longer than the memory that it has
            raise RequestError(
                f"tensor {name!r}: expected {self._most_bytes} bytes at most, got {nbytes}", name
            )
        return Place(region, offset, nbytes)


def _opened(name: str, key: str) -> int:
    try:
        return os.open(_FOLDER / key, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        raise RequestError(
            f"region {name!r}: cannot open shared memory '/{key}': {text}", name
        ) from error
