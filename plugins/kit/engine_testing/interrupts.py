"""Signal handlers that raise at random moments, for tests of what a raised exception leaves."""

from __future__ import annotations

import gc
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from traceback import walk_stack
from types import FrameType
from typing import Any


class Expired(Exception):
    """The exception of a time limit, as task queues raise it."""


KINDS: tuple[type[BaseException], ...] = (
    Expired,
    KeyboardInterrupt,
    SystemExit,
    RuntimeError,
    ValueError,
    TimeoutError,
    MemoryError,
    KeyError,
)
"""Exceptions that a handler raises in turn; backends and runtimes raise some of them too."""


_SHORTEST_S = 60e-6


class Interrupter:
    """Calls work while a signal handler may raise, and notes what became of the exceptions.

    raised: how many the handler has raised. lost: what went wrong with them, a line each; none
    where all arrived. unraisable: those that Python could only print.
    """

    def __init__(self, seed: int, kinds: tuple[type[BaseException], ...] = KINDS) -> None:
        self.raised = 0
        self.lost: list[str] = []
        self.unraisable: list[str] = []
        self._random = random.Random(seed)
        self._kinds = kinds
        self._last: BaseException | None = None
        self._where = ""
        self._printed: BaseException | None = None
        self._is_armed = False

    @contextmanager
    def installed(self) -> Iterator[Interrupter]:
        """Handle SIGALRM, and look at what cannot be raised, inside the block.

        Objects dropped before are collected first: a handler that raises in the finalizer of an
        object says nothing of the work.
        """
        gc.collect()
        before = signal.signal(signal.SIGALRM, self._handle)
        hook, sys.unraisablehook = sys.unraisablehook, self._note
        try:
            yield self
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            sys.unraisablehook = hook

    def calls(self, work: Callable[[], Any], count: int, span_s: float = 0.0) -> Iterator[Any]:
        """Call `work` with a signal at a random moment, yield its result, None where it raised.

        span_s: the moments are in it, from the call on; 0 for a bit more than the work takes, which
        is tried first, and done several times in a row where it is shorter than a timer is exact.
        """
        repeats = 1
        if not span_s:
            needed_s = _needed_s(work)
            repeats = max(1, int(_SHORTEST_S / needed_s))
            span_s = max(2e-6, repeats * needed_s * 1.2)
        for _ in range(count):
            self._last = None
            result = None
            delay_s = self._random.uniform(1e-6, span_s)
            try:
                self._is_armed = True
                signal.setitimer(signal.ITIMER_REAL, delay_s)
                for _ in range(repeats):
                    result = work()
                self._is_armed = False  # not only the timer: another thread may have the signal
                signal.setitimer(signal.ITIMER_REAL, 0)
            except BaseException as error:
                self._is_armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
                if error is not self._last:
                    expected = repr(self._last) if self._last else "nothing"
                    self.lost.append(f"expected {expected}, got {error!r}: {self._where}")
            else:
                if self._last is not None and self._last is not self._printed:
                    self.lost.append(f"{self._last!r} did not arrive: {self._where}")
            self._last = self._printed = None  # with what their tracebacks hold
            yield result

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._is_armed or any(
            f.f_code.co_name == "gc_callback" for f, _ in walk_stack(frame)
        ):
            return  # hypothesis measures garbage collections, where Python can only print
        self.raised += 1
        self._last = self._kinds[self.raised % len(self._kinds)](f"number {self.raised}")
        calls = (f"{caller.f_code.co_qualname}:{line}" for caller, line in walk_stack(frame))
        self._where = " < ".join(islice(calls, 8))
        raise self._last

    def _note(self, unraisable: sys.UnraisableHookArgs) -> None:
        self._printed = unraisable.exc_value
        self.unraisable.append(f"{unraisable.exc_value!r} in {unraisable.object!r}")


def _needed_s(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
