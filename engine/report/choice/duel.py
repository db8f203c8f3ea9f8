"""Compare the times of two functions on a machine that may be busy.

A round times both, one after the other, in an order that changes: neighbours in time meet the same
load. Two figures must agree that one is faster: the median of the rounds' ratios, and the ratio of
the fastest timings, which are those that found the machine quiet. Where both functions keep one CPU
busy, these are of the process's CPU time, which the load of others does not change; unless the
fastest timings by the clock say that the second waits for something else.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any, NamedTuple

_SLOW_S = 0.03
"""Seconds of a call from which on it is timed alone for long enough to tell more by itself."""

TIMING_S = 0.002
"""Seconds that one timing takes at least: so many calls are timed together."""
_MANY = 10_000
_WAITS = 1.03
"""A ratio of true time from which on CPU time is no measure: something waits for other than a CPU.

What is chosen may be slower by that at most, and load alone hardly lengthens the fastest timings.
"""

_LOST = 1.15
"""Further rounds would change nothing where all figures are above this."""
_CLEARLY_LOST = 1.5
"""The same after two rounds."""


def least_rounds(call_s: float) -> int:
    """Return how many rounds are timed at least, of calls that take so long."""
    return 3 if call_s > _SLOW_S else 7


class Duel(NamedTuple):
    """The figures of two functions. default_s, candidate_s: median seconds of a call.

    middle, fastest: of the candidate's time to the default's, the two figures.
    """

    default_s: float
    candidate_s: float
    middle: float
    fastest: float
    rounds: int

    @property
    def ratio(self) -> float:
        """The larger of the two figures."""
        return max(self.middle, self.fastest)


def duel(
    default: Callable[[], Any],
    candidate: Callable[[], Any],
    seconds: float,
    check: Callable[[], None],
    on_one_cpu: bool = False,
) -> Duel:
    """Call both in turn for some seconds, and `least_rounds` at least.

    check: called between timings; may raise. on_one_cpu: a call of either keeps one CPU busy.
    """
    clock = perf_counter
    end = clock() + seconds
    functions = (default, candidate)
    times: tuple[list[float], list[float]] = ([], [])
    of_cpu: tuple[list[float], list[float]] = ([], [])
    for function in functions:  # what a first call prepares is none of a later one's time
        function()
        check()
    begin = clock()
    default()
    call_s = max(clock() - begin, 1e-9)
    calls, least = min(_MANY, max(1, round(TIMING_S / call_s))), least_rounds(call_s)
    while True:
        first = len(times[0]) % 2
        for place in (first, 1 - first):
            begin, begin_of_cpu = clock(), process_time()
            for _ in range(calls):
                functions[place]()
            of_cpu[place].append((process_time() - begin_of_cpu) / calls)
            times[place].append((clock() - begin) / calls)
            check()
        if len(times[0]) >= 2:
            found = _figures(*times)
            by_cpu = _figures(*of_cpu) if on_one_cpu else found
            least_ratio = min(found.middle, found.fastest, by_cpu.middle, by_cpu.fastest)
            is_over = len(times[0]) >= least and (clock() >= end or least_ratio > _LOST)
            if is_over or least_ratio > _CLEARLY_LOST:
                return by_cpu if found.fastest < _WAITS else found


def _figures(default: list[float], candidate: list[float]) -> Duel:
    ratios = [own / other for own, other in zip(candidate, default, strict=True)]
    few = max(1, len(ratios) // 5)
    fastest = sum(sorted(candidate)[:few]) / sum(sorted(default)[:few])
    return Duel(
        statistics.median(default),
        statistics.median(candidate),
        statistics.median(ratios),
        fastest,
        len(ratios),
    )
