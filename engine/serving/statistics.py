"""Counts and times of requests, as a runner reports them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np

from engine.host.interrupts import undisturbed
from engine.serving.in_service import SharingInService

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

Summary: TypeAlias = tuple[dict[float, int], int, float, float]
"""Durations in buckets, by the place of each; how many; their sum and the longest, in seconds."""

T = TypeVar("T")

_PER_OCTAVE = 8  # buckets in a factor of two: a quantile is known within 9 %
_LEAST_S = 1e-6
_AT_ONCE = 256
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Times:
    """Times of something, in seconds. Quantiles are within 9 %; 0 where nothing was timed."""

    count: int = 0
    mean_s: float = 0.0
    p50_s: float = 0.0
    p90_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0

    def __str__(self) -> str:
        if not self.count:
            return "none"
        return (
            f"mean {_ms(self.mean_s)}, p50 {_ms(self.p50_s)}, p90 {_ms(self.p90_s)}, "
            f"p99 {_ms(self.p99_s)}, max {_ms(self.max_s)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStatistics:
    """A runner's requests since it was built.

    completed: with results. failed: with an error of the model or the input. cancelled: by their
    owner. expired: at their deadline. refused: QueueFull. waiting, running: now.
    queue: from coming to a slot. compute: from there to the results, as a request sees it: all in a
    batch take as long as the batch. latency: both. batch_sizes: runs by their number of samples.
    batching: why requests share runs, or why not.
    """

    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    refused: int = 0
    waiting: int = 0
    running: int = 0
    queue: Times = Times()
    compute: Times = Times()
    latency: Times = Times()
    batch_sizes: dict[int, int]
    batching: str = ""

    def __repr__(self) -> str:
        return str(self)  # what a prompt shows

    def __str__(self) -> str:
        sizes = ", ".join(f"{size}: {count}" for size, count in self.batch_sizes.items())
        return "\n".join(
            (
                f"requests   {self.completed} completed, {self.failed} failed, "
                f"{self.cancelled} cancelled, {self.expired} expired, {self.refused} refused; "
                f"{self.waiting} waiting, {self.running} running",
                f"queue      {self.queue}",
                f"compute    {self.compute}",
                f"latency    {self.latency}",
                f"batches    {sizes or 'none'} ({self.batching})",
            )
        )


class Recorder:
    """Collects what RunnerStatistics shows. Any thread may call any method.

    runs_s: `append` to it how long a request took that was completed by a run of its own without
    having waited, and call `look` where the moment is past look_s. sharing: looks when this does.
    """

    def __init__(self) -> None:
        self.look_s = 0.0
        self.runs_s: deque[float] = deque()
        self.sharing: SharingInService | None = None
        self._lock = threading.RLock()  # reentrant: a finalizer may predict too
        self._is_counting = False
        # Not counted yet: one by one that takes 3 us of a request, many at once 0.2.
        self._ended: deque[tuple[str, float, float, float, bool]] = deque()
        self._runs: deque[int] = deque()
        self._counts = dict.fromkeys(("completed", "failed", "cancelled", "expired", "refused"), 0)
        self._times = {name: _Histogram() for name in ("queue", "compute", "latency")}
        self._sizes: dict[int, int] = {}

    def ended(
        self,
        outcome: str,
        came_s: float,
        admitted_s: float,
        ended_s: float,
        is_run: bool = False,
    ) -> None:
        """Note the end of a request: one of `counts`, and moments of time.perf_counter().

        admitted_s: 0 where it never had a slot. is_run: it was a run by itself, which nobody has
        noted.
        """
        self._ended.append((outcome, came_s, admitted_s, ended_s, is_run))
        if ended_s >= self.look_s or len(self._ended) >= _AT_ONCE:
            self.look(ended_s)

    def look(self, now_s: float) -> None:
        """Count what has ended. now_s: of time.perf_counter()."""
        self.look_s = now_s + _LOOK_S
        undisturbed(partial(self._look, now_s))

    def _look(self, now_s: float) -> None:
        with self._lock:
            self._count()
            if self.sharing is not None and not self._is_counting:
                self.sharing.look(self._counts["completed"], now_s)

    def refused(self) -> None:
        """Note a request that was refused at once."""
        self.ended("refused", 0.0, 0.0, 0.0)

    def ran(self, samples: int) -> None:
        """Note a run of so many samples."""
        self._runs.append(samples)

    def _count(self) -> None:
        """Count what has been noted. Not where a signal handler may raise: some would be lost."""
        with self._lock:
            if self._is_counting:  # this is a finalizer's, in the middle of it
                return
            self._is_counting = True
            try:
                self._count_ended(_taken(self._ended))
                if count := len(runs_s := np.array(_taken(self.runs_s))):
                    self._counts["completed"] += count
                    self._add_runs(1, count)
                    run = _summary(runs_s)
                    self._add(({0.0: count}, count, 0.0, 0.0), run, run)
                for samples in _taken(self._runs):
                    self._add_runs(samples, 1)
            finally:
                self._is_counting = False

    def _count_ended(self, ended: Sequence[tuple[str, float, float, float, bool]]) -> None:
        moments = []
        for outcome, *times, is_run in ended:
            self._counts[outcome] += 1
            self._add_runs(1, is_run)
            if outcome == "completed":
                moments.append(times)
        if moments:
            came_s, admitted_s, ended_s = np.array(moments).T
            self._add(
                _summary(np.maximum(0.0, admitted_s - came_s)),
                _summary(ended_s - np.maximum(admitted_s, came_s)),
                _summary(ended_s - came_s),
            )

    def _add(self, queue: Summary, compute: Summary, latency: Summary) -> None:
        self._times["queue"].add(*queue)
        self._times["compute"].add(*compute)
        self._times["latency"].add(*latency)

    def _add_runs(self, samples: int, runs: int) -> None:
        if runs:
            self._sizes[samples] = self._sizes.get(samples, 0) + runs

    def report(self, waiting: int, running: int, batching: str) -> RunnerStatistics:
        """Return what there is now."""
        return undisturbed(lambda: self._report(waiting, running, batching))

    def _report(self, waiting: int, running: int, batching: str) -> RunnerStatistics:
        with self._lock:
            self._count()
            counts, times = self._counts, self._times
            return RunnerStatistics(
                completed=counts["completed"],
                failed=counts["failed"],
                cancelled=counts["cancelled"],
                expired=counts["expired"],
                refused=counts["refused"],
                waiting=waiting,
                running=running,
                queue=times["queue"].times(),
                compute=times["compute"].times(),
                latency=times["latency"].times(),
                batch_sizes=dict(sorted(self._sizes.items())),
                batching=batching,
            )


def _taken(noted: deque[T]) -> list[T]:
    """Take out what is there, and what others append meanwhile."""
    taken = []
    with suppress(IndexError):
        while True:
            taken.append(noted.popleft())
    return taken


def _summary(seconds: Array) -> Summary:
    octaves = np.log2(np.maximum(seconds, _LEAST_S) / _LEAST_S)
    places, counts = np.unique(np.ceil(_PER_OCTAVE * octaves), return_counts=True)
    buckets = dict(zip(places.tolist(), counts.tolist()))
    return buckets, len(seconds), float(seconds.sum()), float(seconds.max())


class _Histogram:
    """Durations in buckets of equal ratio: any number of them takes the same memory."""

    def __init__(self) -> None:
        self._buckets: dict[float, int] = {}
        self._count = 0
        self._sum_s = self._max_s = 0.0

    def add(self, buckets: dict[float, int], count: int, sum_s: float, max_s: float) -> None:
        for place, number in buckets.items():
            self._buckets[place] = self._buckets.get(place, 0) + number
        self._count += count
        self._sum_s += sum_s
        self._max_s = max(self._max_s, max_s)

    def times(self) -> Times:
        if not self._count:
            return Times()
        p50_s, p90_s, p99_s = self._quantiles((0.5, 0.9, 0.99))
        return Times(self._count, self._sum_s / self._count, p50_s, p90_s, p99_s, self._max_s)

    def _quantiles(self, parts: Sequence[float]) -> list[float]:
        """Return the upper ends of the buckets in which the quantiles lie."""
        found: list[float] = []
        below = 0
        for place, count in sorted(self._buckets.items()):
            below += count
            while len(found) < len(parts) and below >= parts[len(found)] * self._count:
                found.append(min(_LEAST_S * 2 ** (place / _PER_OCTAVE), self._max_s))
        return found


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
