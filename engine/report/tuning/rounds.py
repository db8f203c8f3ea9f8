"""Time several functions in interleaved rounds, on a machine that may be busy.

A round times each for a moment, in an order that is drawn anew: neighbours in time meet the same
load. Of each round only ratios are compared. A rest before each timing lets idle threads of the one
before end their spinning: they would take CPUs from the next, and a setup that spins long would
look fast beside one that it delays.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from time import perf_counter, sleep
from typing import Any

import numpy as np

from engine.report.clients import Clients
from engine.report.tuning.order import LEAST, Interval, interval, percentile_bounds

FEWEST = 4
"""Rounds that tell whether a setup may be among the best."""
_LOST = 1.3
"""Ratio that all of these are above where further ones would change nothing."""
_SLICE_S, _SHARED_S = 0.05, 0.15
"""Seconds of a timing, which has one call at least; of several clients, who wait for each other."""
_REST_S = 0.025
"""Longer than ONNX Runtime's threads spin by its own choice, some 20 ms."""

Array = np.ndarray[Any, np.dtype[np.float64]]


class Timings:
    """The timings of one function. request_s: seconds per request, one for each round."""

    def __init__(self) -> None:
        self.request_s: list[float] = []
        self._latencies: list[Array] = []

    def add(self, request_s: float, latencies_s: Array) -> None:
        """Add a round."""
        self.request_s.append(request_s)
        self._latencies.append(latencies_s)

    def extend(self, others: Timings) -> None:
        """Add the rounds of others."""
        self.request_s += others.request_s
        self._latencies += others._latencies

    @property
    def requests(self) -> int:
        """The number of requests of all rounds."""
        return sum(map(len, self._latencies))

    def percentile_s(self, rank: float) -> float:
        """Return a percentile of the latencies of all rounds."""
        return float(np.percentile(np.concatenate(self._latencies), rank))

    def p99_bounds_s(self, chance: float) -> tuple[float, float]:
        """Return bounds of the time that 1 of 100 requests is above; see `percentile_bounds`."""
        return percentile_bounds(np.concatenate(self._latencies), 0.01, chance)

    def ratios(self, default: Timings) -> list[float]:
        """Return the ratio of the time per request to another's, round by round."""
        pairs = zip(self.request_s, default.request_s, strict=True)
        return [own / other for own, other in pairs]

    def over(self, default: Timings) -> Interval:
        """Return the ratio of the time per request to another's, with its interval of 95 %."""
        return interval(self.ratios(default))


IsDecided = Callable[[Sequence[Timings]], bool]


def timed(
    functions: Sequence[Callable[[], Any]],
    clients: int,
    seconds: float,
    check: Callable[[], object],
    least: int = LEAST,
    is_decided: IsDecided | None = None,
    most_s: float = math.inf,
    order: random.Random | None = None,
) -> list[Timings]:
    """Time all functions in turn for some seconds, each called by so many clients at once.

    The first is the default. check: called between timings; may raise. least: rounds. is_decided:
    ends it earlier, by the timings; asked after `least` rounds, then after twice as many each, for
    who looks often sees chance. None: when all are clearly slower. most_s: after which it ends with
    fewer rounds too, but one. order: draws the order of each round.
    """
    timings = [Timings() for _ in functions]
    order = order or random.Random(0)
    begin, look = perf_counter(), least
    are_slow = [_is_slow(function) for function in functions]
    while True:
        for place in order.sample(range(len(functions)), len(functions)):
            check()
            timings[place].add(*_round(functions[place], clients, are_slow[place]))
        count, passed_s = len(timings[0].request_s), perf_counter() - begin
        if passed_s >= most_s or (count >= least and passed_s >= seconds):
            return timings
        if count == look:
            look *= 2
            if (is_decided or _are_lost)(timings):
                return timings


def round_s(request_s: float, clients: int) -> float:
    """Return about how long one takes to be timed in a round. request_s: of one request."""
    return _REST_S + request_s + max(request_s, _SLICE_S if clients == 1 else _SHARED_S)


def _are_lost(timings: Sequence[Timings]) -> bool:
    default, *others = timings
    return all(other.over(default).low > _LOST for other in others)


def _is_slow(function: Callable[[], Any]) -> bool:
    begin = perf_counter()
    function()
    return perf_counter() - begin > _SLICE_S


def _round(function: Callable[[], Any], clients: int, is_slow: bool) -> tuple[float, Array]:
    """Return the seconds per request of all clients, and the latencies, of one round.

    One call of each client before it is not timed, unless it takes long: what others have left in
    caches is not its own.
    """
    sleep(_REST_S)
    seconds = _SLICE_S if clients == 1 else _SHARED_S
    working = Clients(function, clients, duration_s=seconds, warmup_calls=0 if is_slow else 1)
    working.start()
    working.wait()
    measured = working.measured()
    return measured.seconds / len(measured.latencies_s), measured.latencies_s
