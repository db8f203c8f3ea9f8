"""Confidence bounds by the order of values: they suppose nothing of how values are distributed.

The number of independent values that lie above a percentile is binomial. So a value bounds the
percentile, but for the chance that only so few lie beyond it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

LEAST = 7
"""Values from which on the interval of a median, from the least to the largest, is one of 95 %."""

Array = np.ndarray[Any, np.dtype[np.float64]]


class Interval(NamedTuple):
    """A median, and the ends of its confidence interval."""

    middle: float
    low: float
    high: float


def interval(values: Sequence[float], chance: float = 0.025) -> Interval:
    """Return the median of values with its confidence interval; all of them where they are few.

    chance: that the true median is beyond an end, for each of the two.
    """
    ordered = sorted(values)
    place = max(1, rank(len(ordered), 0.5, chance))
    return Interval(statistics.median(ordered), ordered[place - 1], ordered[-place])


def percentile_bounds(values: Array, beyond: float, chance: float) -> tuple[float, float]:
    """Return bounds of the value that a share of all is above; 0 and infinite where values are few.

    beyond: the share. chance: that the value is beyond a bound, for each of the two.
    """
    ordered, count = np.sort(values), len(values)
    least, most = rank(count, beyond, chance), rank(count, beyond, 1 - chance)
    low = float(ordered[-1 - most]) if most < count else 0.0
    return low, float(ordered[-least]) if least else math.inf


def rank(count: int, share: float, chance: float) -> int:
    """Return the largest number that a binomial one is below with so much chance at most.

    Of `count` values, each counts with a probability of `share`.
    """
    log_odds = math.log(share) - math.log1p(-share)
    log_term, total = count * math.log1p(-share), 0.0
    for number in range(count):
        total += math.exp(log_term)
        if total > chance:
            return number
        log_term += math.log((count - number) / (number + 1)) + log_odds
    return count
