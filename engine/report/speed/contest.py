"""Contenders side by side: built anew, timed in turn, until the ratios are known.

A block builds each contender anew and times all in interleaved rounds; it gives one ratio for each
contender. Two builds of one model differ a little (by where their memory lies), and no number of
rounds of one build tells that from a change. So blocks are what is counted. Only where building
would take most of the time are the contenders built once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from random import Random
from time import perf_counter
from typing import NamedTuple

from engine.report.speed.interval import FEWEST, Change, Verdict, paired
from engine.report.speed.rounds import Call, times_in_rounds

CONTROL = 1
"""The place of the control among the contenders."""

_BLOCK_S = 0.3
_GROWTH = 1.25
"""From look to look there are more blocks by this factor: each look is one more chance to err."""


class Contender(NamedTuple):
    """One of the models or settings that are compared. open: gives a call, of a new build."""

    name: str
    open: Callable[[], AbstractContextManager[Call]]


class Contest:
    """A contest, and what is known of it until now.

    contenders: the first is the one that the others are held against; the second is the first once
    more, a control: where equals differ, nothing is said of the others. limit: a change that would
    matter, 0.03 for 3 %. budget_s: for all blocks; the fewest that tell anything are made in any
    case. check: called between timings; may raise. is_decided: returns whether more blocks would
    tell nothing; by default it is asked of each contender but the first, see `is_known`.
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        limit: float,
        budget_s: float,
        check: Callable[[], None] = lambda: None,
        is_decided: Callable[[Contest], bool] | None = None,
        seed: int = 0,
    ) -> None:
        self.contenders = contenders
        self.limit = limit
        self.seconds: list[list[float]] = [[] for _ in contenders]
        """The typical time of a call, by contender and block."""
        self.build_s: list[list[float]] = [[] for _ in contenders]
        """How long each build took, by contender and block."""
        self.first_s: list[list[float]] = [[] for _ in contenders]
        """The time of the first call, by contender and new build."""
        self.is_rebuilt = True
        """False where building takes so long that each is built once."""
        self._budget_s = budget_s
        self._check = check
        self._is_decided = is_decided or Contest.is_known
        self._order = Random(seed)

    def run(self) -> Iterator[float]:
        """Make blocks until all is known or the time is up; yield the seconds that have passed."""
        begin, look = perf_counter(), FEWEST
        with ExitStack() as kept:
            calls, took = self._opened(kept)
            self.is_rebuilt = FEWEST * sum(took) < self._budget_s / 2
            while True:
                self._time(calls, took)
                passed_s, blocks = perf_counter() - begin, len(self.seconds[0])
                yield passed_s
                if blocks >= look:
                    if self._is_decided(self):
                        return
                    look = math.ceil(blocks * _GROWTH)
                if blocks >= FEWEST and passed_s >= self._budget_s:
                    return
                if self.is_rebuilt:
                    kept.close()
                    calls, took = self._opened(kept)

    def change(self, place: int, base: int = 0) -> Change:
        """Return the ratio of a contender's time to another's, the first's."""
        pairs = zip(self.seconds[place], self.seconds[base], strict=True)
        return paired([math.log(own / other) for own, other in pairs])

    def verdict(self, place: int) -> Verdict:
        """Return what may be said of a contender; of the control, what is measured of it."""
        verdict = self.change(place).verdict(self.limit)
        return Verdict.UNKNOWN if place > CONTROL and not self.is_reliable else verdict

    @property
    def is_reliable(self) -> bool:
        """False where the first differs from itself."""
        control = self.change(CONTROL).verdict(self.limit)
        return control not in (Verdict.SLOWER, Verdict.FASTER)

    def is_known(self) -> bool:
        """Return whether it is known of each contender if it differs from the first."""
        places = range(CONTROL + 1, len(self.contenders))
        return all(self.verdict(place) is not Verdict.UNKNOWN for place in places)

    def _opened(self, stack: ExitStack) -> tuple[list[Call], list[float]]:
        """Open all, in an order drawn anew, until `stack` ends; return also how long each took."""
        places = range(len(self.contenders))
        calls: dict[int, Call] = {}
        took: dict[int, float] = {}
        for place in self._order.sample(places, len(places)):
            self._check()
            begin = perf_counter()
            calls[place] = stack.enter_context(self.contenders[place].open())
            took[place] = perf_counter() - begin
        return [calls[place] for place in places], [took[place] for place in places]

    def _time(self, calls: Sequence[Call], took: Sequence[float]) -> None:
        seconds = min(_BLOCK_S, self._budget_s / FEWEST)
        if self.is_rebuilt:
            seconds = max(seconds, 2 * sum(took))  # most of the time is for timing
        found = times_in_rounds(calls, seconds, self._order, self._check)
        self._check()  # an interrupt leaves no half block
        for place, (first_s, own_s) in enumerate(found):
            if self.is_rebuilt or not self.first_s[place]:
                self.first_s[place].append(first_s)
            self.seconds[place].append(own_s)
            self.build_s[place].append(took[place])
