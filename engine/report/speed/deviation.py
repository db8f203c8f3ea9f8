"""How far a percentile would be off in another measurement of the same length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

_BLOCKS = 40
_RESAMPLES = 100


def deviations(latencies_s: Array, ranks: Sequence[float], seed: int = 0) -> list[float]:
    """Return the standard deviation of each percentile, by a bootstrap of blocks of runs.

    latencies_s: in the order in which they were taken. Neighbours in time meet the same noise, so
    stretches of runs are drawn, not runs: single ones would promise too much.
    """
    count = len(latencies_s)
    blocks = min(count, _BLOCKS)
    sorting = np.argsort(latencies_s, kind="stable")
    ordered = latencies_s[sorting]
    block_of = (np.arange(count) * blocks // count)[sorting]
    generator = np.random.default_rng(seed)
    found = np.empty((_RESAMPLES, len(ranks)))
    for row in found:
        drawn = np.bincount(generator.integers(blocks, size=blocks), minlength=blocks)
        reached = np.cumsum(drawn[block_of])
        wanted = np.asarray(ranks) / 100 * (reached[-1] - 1)
        row[:] = ordered[np.searchsorted(reached, wanted, side="right").clip(max=count - 1)]
    return [float(spread) for spread in found.std(axis=0)]
