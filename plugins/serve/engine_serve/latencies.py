"""Latencies in buckets of equal ratio, counted since the model was loaded."""

from __future__ import annotations

from math import log2

_LEAST_S = 1e-6
_PER_OCTAVE = 8  # a quantile is known within 9 %


class Latencies:
    """Counts of latencies; any number of them takes the same memory. For one thread.

    Who keeps two readings has the latencies between them: the difference of the counts.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Count a latency."""
        place = int(_PER_OCTAVE * log2(seconds / _LEAST_S)) if seconds > _LEAST_S else 0
        self._counts[place] = self._counts.get(place, 0) + 1

    def buckets(self) -> list[tuple[float, int]]:
        """Return the upper ends of the buckets, in milliseconds, with their counts, in order."""
        return [
            (_LEAST_S * 1e3 * 2 ** ((place + 1) / _PER_OCTAVE), count)
            for place, count in sorted(self._counts.items())
        ]
