"""Ranges of a shared memory: which are in use, and where there is room.

    space = Space()
    start, room, beyond = space.room(nbytes)   # something of that size is written there
    space.lend(start, nbytes, holder)          # and stays until `holder` is dropped

Ranges are found by first fit, so that the memory grows no larger than what is taken at once asks
for.
"""

from __future__ import annotations

import weakref
from bisect import insort
from operator import attrgetter

from engine.host import fork

UNBOUNDED = 1 << 62


class _Range:
    """Bytes from `begin` to `end`, in use while `holder` gives something."""

    __slots__ = ("begin", "end", "holder", "is_lent", "kept")

    def __init__(self, begin: int, end: int, holder: object, is_lent: bool) -> None:
        self.begin, self.end = begin, end
        self.holder = weakref.ref(holder)
        self.is_lent = is_lent
        self.kept: object = None


class Space:
    """Ranges of bytes, each taken for as long as an object lives. For one thread at a time.

    lent: how many are lent, as of the last `room`.
    """

    def __init__(self) -> None:
        self._taken: list[_Range] = []  # in order
        self.lent = 0
        fork.prepare(self)

    def room(self, nbytes: int) -> tuple[int, int, int]:
        """Return where so many bytes have room, how much that is, and where all ranges end."""
        ranges = self._taken
        for taken in ranges:
            if taken.holder() is None:
                ranges = self._taken = [taken for taken in ranges if taken.holder() is not None]
                self.lent = sum(taken.is_lent for taken in ranges)
                break
        begin = 0
        for taken in ranges:
            if taken.begin - begin >= nbytes:
                return begin, taken.begin - begin, ranges[-1].end
            begin = taken.end
        return begin, UNBOUNDED, begin

    def lend(self, begin: int, nbytes: int, holder: object) -> None:
        """Give away a range, as `room` found it, until `holder` is dropped: here, and in every
        process that is forked meanwhile.
        """
        self.lent += 1
        self._take(_Range(begin, begin + nbytes, holder, True))

    def use(self, begin: int, nbytes: int, holder: object) -> None:
        """Take a range, as `room` found it, until `holder` is dropped."""
        self._take(_Range(begin, begin + nbytes, holder, False))

    def _take(self, taken: _Range) -> None:
        if self._taken and self._taken[-1].begin > taken.begin:
            insort(self._taken, taken, key=_begin)
        else:
            self._taken.append(taken)

    def before_fork(self) -> None:
        """Take nothing back of what is lent now: when the child drops it, nobody tells."""
        for taken in list(self._taken):
            if taken.is_lent:
                taken.kept = taken.holder()


_begin = attrgetter("begin")
