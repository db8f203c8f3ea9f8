"""Compare the times of two functions on a machine that may be busy.

A round times both, one after the other, in an order that changes: neighbours in time meet the same
load. Two figures must agree that one is faster: the median of the rounds' ratios, and the ratio of
the fastest timings, which are those that found the machine quiet.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

LEAST_ROUNDS = 7
TIMING_S = 0.002
"""Seconds that one timing takes at least: so many calls are timed together."""
_MANY = 10_000
_LOST = 1.1
"""A ratio from which on further rounds would change nothing."""


class Duel(NamedTuple):
    """The figures of two functions. default_s, candidate_s: median seconds of a call.

    ratio: of the candidate's time to the default's, the larger of the two figures.
    """

    default_s: float
    candidate_s: float
    ratio: float
    rounds: int


def duel(
    default: Callable[[], Any],
    candidate: Callable[[], Any],
    seconds: float,
    check: Callable[[], None],
    clock: Callable[[], float] = perf_counter,
) -> Duel:
    """Call both in turn for some seconds, and LEAST_ROUNDS rounds at least.

    check: called between timings; may raise.
    """
    end = clock() + seconds
    functions = (default, candidate)
    times: tuple[list[float], list[float]] = ([], [])
    for function in functions:  # what a first call prepares is none of a later one's time
        function()
        check()
    calls = _calls(default, clock)
    while True:
        first = len(times[0]) % 2
        for place in (first, 1 - first):
            begin = clock()
            for _ in range(calls):
                functions[place]()
            times[place].append((clock() - begin) / calls)
            check()
        if len(times[0]) >= LEAST_ROUNDS:
            found = _figures(*times)
            if clock() >= end or found.ratio > _LOST:
                return found


def _calls(function: Callable[[], Any], clock: Callable[[], float]) -> int:
    """Return how many calls make up a timing."""
    begin = clock()
    function()
    return min(_MANY, max(1, round(TIMING_S / max(clock() - begin, 1e-9))))


def _figures(default: list[float], candidate: list[float]) -> Duel:
    ratios = [own / other for own, other in zip(candidate, default, strict=True)]
    few = max(1, len(ratios) // 5)
    fastest = sum(sorted(candidate)[:few]) / sum(sorted(default)[:few])
    return Duel(
        statistics.median(default),
        statistics.median(candidate),
        max(statistics.median(ratios), fastest),
        len(ratios),
    )
