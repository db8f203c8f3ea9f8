"""Ratios of times with intervals, and what may be said of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from statistics import NormalDist, fmean
from typing import NamedTuple

LEVEL = 0.995
"""The probability with which an interval holds the true ratio, at each look: 99 % of all looks."""

FLOOR = 0.005
"""A change counts only if all of its interval is beyond this: builds of one model differ too."""

FEWEST = 8
"""Blocks of which something can be said: of fewer, trimming leaves too little."""

_TRIMMED = 0.2


class Verdict(StrEnum):
    """The outcome of a comparison."""

    SLOWER = "slower"
    FASTER = "faster"
    UNCHANGED = "no change"
    UNKNOWN = "cannot tell"


class Change(NamedTuple):
    """A ratio of times, and the interval that holds the true one; 0 and infinity for any."""

    ratio: float
    low: float
    high: float

    def verdict(self, limit: float) -> Verdict:
        """Return what may be said. limit: a change that would matter, 0.03 for 3 %."""
        if self.low > 1 + FLOOR:
            return Verdict.SLOWER
        if self.high < 1 / (1 + FLOOR):
            return Verdict.FASTER
        if 1 / (1 + limit) < self.low and self.high < 1 + limit:
            return Verdict.UNCHANGED
        return Verdict.UNKNOWN

    def text(self, limit: float) -> str:
        """Return the verdict for people."""
        verdict = self.verdict(limit)
        if verdict is Verdict.UNCHANGED:
            return f"no change beyond {100 * limit:g} %"
        if verdict is Verdict.UNKNOWN:
            return str(verdict)
        return f"{verdict} by {100 * abs(self.ratio - 1):.1f} %"

    @property
    def interval(self) -> str:
        """The interval for people."""
        if self.low == 0:
            return "unknown"
        return f"{self.low:.3f} to {self.high:.3f}"


class Middle(NamedTuple):
    """A trimmed mean. variance: of the mean itself; freedom: degrees of it."""

    mean: float
    variance: float
    freedom: float


def middle_of(values: Sequence[float]) -> Middle:
    """Return the mean without the least and the greatest fifths, with its variance (Yuen 1974).

    A block that met another process is an outlier, which the plain mean would follow.
    """
    count, ordered = len(values), sorted(values)
    cut = int(_TRIMMED * count)
    kept = ordered[cut : count - cut]
    winsorised = [kept[0]] * cut + kept + [kept[-1]] * cut
    mean, freedom = fmean(winsorised), len(kept) - 1
    spread = sum((value - mean) ** 2 for value in winsorised)
    variance = spread / (len(kept) * freedom) if freedom else math.inf
    return Middle(fmean(kept), variance, freedom)


def paired(logs: Sequence[float]) -> Change:
    """Return the change that logarithms of ratios show, one of each block: Student's interval."""
    middle = middle_of(logs)
    return _change(len(logs), middle.mean, middle.variance, middle.freedom)


def between(now: Sequence[float], before: Sequence[float], drift: float = 0.0) -> Change:
    """Return the change of logarithms of times from `before` to `now`: Welch's interval.

    drift: standard deviation of what changes between the two and not within them.
    """
    parts = middle_of(now), middle_of(before)
    variance = sum(part.variance for part in parts)
    weights = sum(part.variance**2 / part.freedom for part in parts if part.freedom)
    freedom = variance**2 / weights if weights else 1e9
    mean = parts[0].mean - parts[1].mean
    blocks = min(len(now), len(before))
    return _change(blocks, mean, variance, freedom, NormalDist().inv_cdf((1 + LEVEL) / 2) * drift)


def _change(blocks: int, mean: float, variance: float, freedom: float, more: float = 0.0) -> Change:
    """Return a change. more: half an interval of something independent of the variance."""
    if blocks < FEWEST:
        return Change(math.exp(mean), 0.0, math.inf)
    half = math.hypot(student(freedom) * math.sqrt(variance), more)
    low, high = (math.exp(min(max(end, -700.0), 700.0)) for end in (mean - half, mean + half))
    return Change(math.exp(mean), low, high)


def student(freedom: float, level: float = LEVEL) -> float:
    """Return the quantile of Student's t that leaves half of 1 - level above it.

    By the expansion of Abramowitz and Stegun, 26.7.5: within 1 % from 4 degrees of freedom on.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
