"""Times of several functions, taken in turn: neighbours in time meet the same load.

A round times each function once, in an order that is drawn anew, so that none always follows the
same other one. A timing is a slot of calls, after one that does not count: that one wakes the
function's threads and fills the caches that another function has emptied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from time import perf_counter
from typing import Any

import numpy as np

from engine.host.blocks import Closing

Array = np.ndarray[Any, np.dtype[np.float64]]
Call = Callable[[], object]

SLOT_S = 0.02
_GROUP_S = 0.0002
"""Calls that take less are timed together: looking at the clock takes 2 us."""

_LOOKS = 50
_LEAST_S = 1e-9  # a time that has a logarithm


def _nothing() -> None:
    pass


class Clock(Closing):
    """A clock that stands still while the calling thread waits for a CPU that another one has.

    Linux counts this wait for each thread. Sleeping, and waiting for the model's own threads or a
    device, is time that counts. Elsewhere this is the plain clock.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._own_s = 0.0  # of looking at it, which is in each time: the least that it takes
        self._own_s = min(self.seconds(_nothing, 1) for _ in range(_LOOKS))

    def close(self) -> None:
        """See Closing; the clock is the plain one from then on."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def seconds(self, call: Call, times: int) -> float:
        """Return how long a call takes, of as many in a row."""
        # The clock is outermost: a wait that is taken off is always within the time.
        begin = perf_counter()
        waited = self._waited_s()
        for _ in range(times):
            call()
        waited -= self._waited_s()
        took = perf_counter() - begin
        own = took + waited - self._own_s
        # The kernel counts by another clock: a wait that leaves no time was counted too long.
        return (own if own > _LEAST_S else max(took, _LEAST_S)) / times

    def _waited_s(self) -> float:
        if self._file is None:
            return 0.0
        return int(os.pread(self._file, 96, 0).split()[1]) * 1e-9


def times_in_rounds(
    calls: Sequence[Call],
    seconds: float,
    order: Random,
    check: Callable[[], None],
    least: int = 1,
) -> list[tuple[float, float]]:
    """Return the first and the typical time of each call, without disturbances: see `typical_s`.

    seconds: after which no round begins, but `least` are made. check: called before each slot; may
    raise.
    """
    slots: list[list[float]] = [[] for _ in calls]
    places = range(len(calls))
    with Clock() as clock:
        begun = {place: _group(calls[place], clock) for place in order.sample(places, len(calls))}
        end = perf_counter() + seconds
        while len(slots[0]) < least or perf_counter() < end:
            for place in order.sample(places, len(calls)):
                check()
                slots[place].append(_slot(calls[place], begun[place][1], clock))
    return [(begun[place][0], typical_s(slots[place])) for place in places]


def typical_s(slots: Sequence[float]) -> float:
    """Return the lower quartile of slots: others' work makes a call longer, never shorter."""
    return float(np.quantile(slots, 0.25))


def _group(call: Call, clock: Clock) -> tuple[float, int]:
    """Return the time of the first call, and how many later ones are timed together."""
    first_s = clock.seconds(call, 1)  # of a new build: it takes longer than others
    seconds = clock.seconds(call, 1)  # it may be long too: a backend prepares the later ones in it
    if seconds < 10 * _GROUP_S:
        seconds = min(clock.seconds(call, 3) for _ in range(3))
    return first_s, max(1, min(1000, int(_GROUP_S / max(seconds, 1e-9))))


def _slot(call: Call, group: int, clock: Clock) -> float:
    """Return the time of a call that one in ten of a slot's groups does not reach."""
    first_s = clock.seconds(call, 1)
    if first_s > SLOT_S:  # it warms itself up, and a second call would tell no more
        return first_s
    end = perf_counter() + SLOT_S
    took: list[float] = []
    while not took or perf_counter() < end:
        took.append(clock.seconds(call, group))
    return float(np.quantile(took, 0.1))
