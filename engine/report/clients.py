"""Clients in a closed loop: threads that each call again as soon as their last call has ended."""

from __future__ import annotations

import itertools
import math
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter, sleep
from typing import Any

import numpy as np


def start_thread(work: Callable[[], None]) -> None:
    """Call `work` in a thread that does not keep the process alive."""
    threading.Thread(target=work, name="engine", daemon=True).start()


@dataclass(frozen=True, slots=True)
class Measured:
    """Timed calls of all clients.

    latencies_s: of every call that ended, float64[calls]. seconds: first begin to last end.
    first_s: how long the very first call took, that of the warm-up where there is one.
    """

    latencies_s: np.ndarray[Any, np.dtype[np.float64]]
    seconds: float
    first_s: float | None = None


class Clients:
    """Threads that time `work`, each call on its own, until the time or the calls are used up.

    warmup_s: each first calls untimed for so long, at least once; 0 for not at all. Then all
        begin together.
    warmup_calls: how often each first calls untimed, instead of for a time.
    duration_s: how long to go on; a call that has begun is ended and counts. calls: how many,
        of all clients together. One of the two is None.
    arrivals_s: when each call is due, in seconds after the begin, ascending: an open loop, in which
        a call's time counts from when it was due, so that waiting for a free client is in it. It
        ends after duration_s with what is served by then.
    start: calls what it is given in a thread that does not keep the process alive.
    """

    def __init__(
        self,
        work: Callable[[], object],
        count: int = 1,
        warmup_s: float = 0.0,
        duration_s: float | None = None,
        calls: int | None = None,
        start: Callable[[Callable[[], None]], None] = start_thread,
        warmup_calls: int | None = None,
        arrivals_s: Sequence[float] | None = None,
    ) -> None:
        self._work = work
        self._warmup_calls = warmup_calls
        self._started = 0.0
        self._start_thread = start
        self._warmup_s = warmup_s
        self._duration_s = math.inf if duration_s is None else duration_s
        self._arrivals_s = arrivals_s
        calls = calls if arrivals_s is None else len(arrivals_s)
        self._turns: Iterator[int] = itertools.repeat(0) if calls is None else iter(range(calls))
        self._first_s: float | None = None
        self._ready = threading.Barrier(count, self._begin)
        self._latencies = [array("d") for _ in range(count)]  # appended to, never changed
        self._ended = [0.0] * count
        self._left = count
        self._lock = threading.Lock()
        self._stopped = False
        self._done = threading.Event()
        self._error: BaseException | None = None
        self.began: float | None = None
        """When all had warmed up, by perf_counter; None before."""

    def start(self) -> None:
        """Start the threads, which do not keep the process alive; ValueError for too many."""
        self._started = perf_counter()
        for place in range(len(self._ended)):
            try:
                self._start_thread(partial(self._run, place))
            except RuntimeError as error:
                self.stop()
                raise ValueError(
                    f"{len(self._ended)} clients are too many, {place} could be started: {error}"
                ) from error

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return whether all have ended within that time. Raises what a call raised."""
        done = self._done.wait(timeout_s)
        if self._error is not None:
            raise self._error
        return done

    def stop(self) -> None:
        """Ask the clients to end with the call that each is in."""
        self._stopped = True
        self._ready.abort()

    @property
    def warmup_took_s(self) -> float:
        """Time that warming up took; 0 before its end."""
        return 0.0 if self.began is None else self.began - self._started

    @property
    def calls(self) -> int:
        """Number of timed calls that have ended."""
        return sum(map(len, self._latencies))

    def measured(self) -> Measured:
        """Return the calls timed up to now."""
        # Slices: a client may be appending, and an array that numpy looks into cannot grow.
        latencies = np.concatenate([np.array(kept[:]) for kept in self._latencies])
        return Measured(latencies, max(self._ended) - (self.began or 0.0), self._first_s)

    def _begin(self) -> None:
        self.began = perf_counter()

    def _run(self, place: int) -> None:
        try:
            self._warm_up()
            self._ready.wait()
            self._repeat(place)
        except threading.BrokenBarrierError:
            pass  # stopped while it waited
        except BaseException as error:
            self._error = self._error or error
            self.stop()
        finally:
            with self._lock:
                self._left -= 1
                if self._left == 0 or self._error is not None:
                    self._done.set()

    def _warm_up(self) -> None:
        if self._warmup_calls is not None:
            for _ in range(self._warmup_calls):
                if self._stopped:
                    return
                self._untimed()
            return
        until = perf_counter() + self._warmup_s
        while self._warmup_s > 0 and not self._stopped:
            self._untimed()
            if perf_counter() >= until:
                return

    def _untimed(self) -> None:
        """Call in the warm-up, of which only the first is told."""
        begin = perf_counter()
        self._work()
        if self._first_s is None:
            self._first_s = perf_counter() - begin

    def _repeat(self, place: int) -> None:
        assert self.began is not None
        work, keep, arrivals_s = self._work, self._latencies[place].append, self._arrivals_s
        until = self.began + self._duration_s
        for turn in self._turns:
            begin = perf_counter()
            if arrivals_s is not None:
                due = self.began + arrivals_s[turn]
                sleep(max(due - begin, 0.0))
                begin = due
                if self._stopped:
                    return
            work()
            end = perf_counter()
            keep(end - begin)
            if self._first_s is None:
                self._first_s = end - begin
            self._ended[place] = end
            if end >= until or self._stopped:
                return
