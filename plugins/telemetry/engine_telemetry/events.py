"""Helpers of several observers: times of the wall clock, and which states are errors."""

from __future__ import annotations

import time

from engine.types import Status

NS = 1_000_000_000
SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025,
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper ends of the buckets of requests' durations: from a small model's predict to a large one's.
From 5 ms on they are those that OpenTelemetry advises for HTTP servers."""

BUILD_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128)

FAULTS = frozenset({Status.FAILED, Status.EXPIRED, Status.REFUSED})
"""The states that are errors. A request that its owner has cancelled is none."""


def wall_offset_ns() -> int:
    """Return what makes time of the wall clock, in ns since 1970, out of time.monotonic()'s.

    Asked for each event: the wall clock is set now and then, and a process may run for months.
    """
    return time.time_ns() - time.monotonic_ns()


def wall_ns(begin_s: float, offset_ns: int) -> int:
    """Return a time of time.monotonic() as ns since 1970."""
    return int(begin_s * NS) + offset_ns
