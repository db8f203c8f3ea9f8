"""Values on their way between two processes, in memory that both have mapped.

    arena = Arena()                                # here; its descriptor goes to the other process
    start, lengths = arena.write(values)           # these go over a socket
    values = Arena(descriptor).read(lengths, start)  # there

Arrays are copied into the memory and are views of it where they are read. Other values than arrays
of numbers travel beside them, pickled. The memory has no name, so that nothing of it can be left
behind; it grows as needed, from either side, and is reused.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

_ALIGNMENT = 64  # of each array: a cache line, and more than any kernel asks for
_LEAST_BYTES = 1 << 16
# A sequence may have any number of tensors, but a message with their lengths only 200 KiB.
_MOST_PARTS = 4096
_UNBOUNDED = 1 << 62


Layout: TypeAlias = tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
Part: TypeAlias = tuple[int, np.dtype[Any], tuple[int, ...]]
"""The offset of an array from where all begin; its dtype and shape."""


def layout_of(values: Iterable[object]) -> Layout | None:
    """Return dtype and shape of each value; None where one is no array of its own of numbers."""
    layout = []
    seen = set()
    for value in values:
        if type(value) is not np.ndarray or value.dtype.hasobject or id(value) in seen:
            return None
        seen.add(id(value))
        layout.append((value.dtype, value.shape))
    return tuple(layout)


class Lent(np.ndarray[Any, Any]):
    """A part of an arena. Of a class of its own: numpy makes it the base of each view of it."""

    def places(self, parts: Sequence[Part]) -> list[np.ndarray[Any, Any]]:
        """Return the arrays that lie in it."""
        return [np.ndarray(shape, dtype, self, offset) for offset, dtype, shape in parts]


class Arena:
    """Memory shared by two processes, which use it in turns.

    descriptor: of another process's arena, which this one owns from now on; None makes a new one.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._size = 0
        self._map: mmap.mmap | None = None
        self.descriptor = -1
        self.descriptor = os.memfd_create("engine-arena") if descriptor is None else descriptor

    def write(
        self, values: object, start: int = 0, room: int = _UNBOUNDED, beyond: int = 0
    ) -> tuple[int, list[int]]:
        """Copy values into the memory from byte `start` on, or `beyond` if `room` is too little.

        Returns where they begin, and the lengths with which `read` finds them. A PickleBuffer
        among the values is released.
        """
        buffers: list[pickle.PickleBuffer] = []
        parts: list[memoryview] = []
        try:
            payload = pickle.dumps(values, 5, buffer_callback=buffers.append)
            if len(buffers) > _MOST_PARTS:
                payload = pickle.dumps(values, 5)
                parts = [memoryview(payload)]
            else:
                parts = [memoryview(payload), *(buffer.raw() for buffer in buffers)]
            lengths = [part.nbytes for part in parts]
            if end_of(lengths) > room:
                start = beyond
            offsets = _offsets(lengths, start)
            memory = self._memory(offsets[-1])
            for part, offset in zip(parts, offsets):
                if part.nbytes:
                    memory[offset : offset + part.nbytes] = np.frombuffer(part, np.uint8)
        finally:
            _release(parts, buffers)
        return start, lengths

    def read(self, lengths: Sequence[int], start: int = 0, copy: bool = False) -> Any:
        """Return the values that were written from byte `start` on.

        copy: give arrays memory of their own. Else they are read-only views, good until the next
            `write`.
        """
        offsets = _offsets(lengths, start)
        memory = self._memory(offsets[-1])
        parts = [memory[offset : offset + size] for offset, size in zip(offsets, lengths)]
        payload, *arrays = parts
        if copy:
            arrays = [array.copy() for array in arrays]
        for array in arrays:
            array.flags.writeable = copy
        return pickle.loads(payload.data, buffers=arrays)

    def lent(self, start: int, nbytes: int) -> Lent:
        """Return a part of the memory: one object, which lives as long as any view of it."""
        if self._map is None or start + nbytes > self._size:
            self._memory(start + nbytes)
        assert self._map is not None
        return Lent((nbytes,), np.uint8, self._map, start)

    def free(self, start: int, nbytes: int) -> None:
        """Give memory back to the system that nobody reads any more; it reads as zeros then."""
        begin = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (start + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
        if self._map is not None and length > 0:
            with suppress(AttributeError, OSError):  # not every system can
                self._map.madvise(mmap.MADV_REMOVE, begin, length)

    def close(self) -> None:
        """Let go of the memory; views of it stay good. Twice does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        self._map = None
        self._size = 0
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_map"):  # not where a signal handler raised in __init__
            self.close()

    def _memory(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the memory as bytes, at least so many of them."""
        if nbytes > self._size or self._map is None:
            size = os.fstat(self.descriptor).st_size
            if nbytes > size:
                size = max(_LEAST_BYTES, 1 << (nbytes - 1).bit_length())
                os.ftruncate(self.descriptor, size)
            self._map = mmap.mmap(self.descriptor, size)
            self._size = size  # last: there may be no room for a larger map
        return np.frombuffer(self._map, np.uint8)


def parts_of(layout: Layout | None, lengths: Sequence[int]) -> list[Part]:
    """Return how arrays lie that were written, [] where they do not lie apart.

    layout: that of the values, which are no arrays where it is None. lengths: as `write` gave them.
    """
    # Some may be in the pickle: numpy knows no buffer of them.
    if layout is None or len(lengths) != len(layout) + 1:
        return []
    return [
        (offset, dtype, shape) for offset, (dtype, shape) in zip(_offsets(lengths, 0)[1:], layout)
    ]


def end_of(lengths: Sequence[int], start: int = 0) -> int:
    """Return where values of these lengths end that were written from byte `start` on."""
    return _offsets(lengths, start)[-1]


def _release(parts: list[memoryview], buffers: list[pickle.PickleBuffer]) -> None:
    """Release views of memory, those of views first.

    Python before 3.13 dies where it collects a PickleBuffer of a memoryview, and the frames that
    the traceback of an error keeps may be collected.
    """
    for part in parts:
        part.release()
    for buffer in buffers:
        buffer.release()


def _offsets(lengths: Sequence[int], start: int) -> list[int]:
    """Return where each part begins, and where the last one ends, rounded up."""
    steps = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in lengths)
    return list(accumulate(steps, initial=start))
