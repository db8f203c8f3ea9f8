"""The last comparison of a tuning: a setup is proven to be better than the default, or is not.

It is by fresh rounds, not by those that have picked the setup. They are looked at several times,
so that what is clear ends early, and each look may take chance for a gain: so the first may err
with half of the whole chance, the next with half of the rest, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.report.choice.contest import MARGIN
from engine.report.tuning.order import LEAST, Interval, interval
from engine.report.tuning.rounds import Timings

CHANCE = 0.02
"""Probability that a setup is called faster than the default and is not, at all looks together."""
P99_CHANCE = 0.05
"""Probability that a p99 is called within the limit and is not, at all looks together."""


class Proof:
    """What fresh timings prove of a setup; nothing before the first look.

    limit_s: the most that 99 of 100 requests may take; None for no limit. ratio: of its time per
    request to the default's, with an interval that allows for all looks. p99_bounds_s: of the
    default and of the setup.
    """

    def __init__(self, limit_s: float | None) -> None:
        self.ratio = Interval(1.0, 0.0, math.inf)
        self.p99_bounds_s = [(0.0, math.inf)] * 2
        self._limit_s = limit_s
        self._count = 0
        self._looks = 0

    def is_due(self, count: int) -> bool:
        """Return whether it is time for a look: after so many ratios, twice as many for each."""
        return count == LEAST << self._looks

    def look(self, ratios: Sequence[float], timings: Sequence[Timings]) -> bool:
        """Look at all ratios until now; return whether more would change nothing.

        timings: of the default and of the setup.
        """
        if len(ratios) > self._count:
            self._count = len(ratios)
            self._looks += 1
            part = 0.5**self._looks
            self.ratio = interval(ratios, CHANCE * part)
            if self._limit_s is not None:
                self.p99_bounds_s = [each.p99_bounds_s(P99_CHANCE * part) for each in timings]
        default, own = self.keeps
        if own is not True:
            return own is False
        return self.is_faster or (self.ratio.low >= MARGIN and default is not None)

    @property
    def keeps(self) -> list[bool | None]:
        """Whether the default and the setup keep the limit; None where that is not known."""
        return [within(bounds, self._limit_s) for bounds in self.p99_bounds_s]

    @property
    def is_faster(self) -> bool:
        """True where all of the interval is below 1, and its middle below `MARGIN`."""
        return self._count >= LEAST and self.ratio.high < 1 and self.ratio.middle < MARGIN

    @property
    def is_better(self) -> bool:
        """True where it is to be chosen: faster, or it alone is known to keep the limit."""
        default, own = self.keeps
        return own is True and (self.is_faster or default is not True)


def within(bounds_s: tuple[float, float], limit_s: float | None) -> bool | None:
    """Return whether a p99 is within a limit, by its bounds; None where that is not known."""
    low_s, high_s = bounds_s
    if limit_s is None or high_s <= limit_s:
        return True
    return False if low_s > limit_s else None
