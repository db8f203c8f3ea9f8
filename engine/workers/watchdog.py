"""A watch over one run of a worker: its deadline, its cancel, and whether it hangs."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from engine.errors import DeadlineExceeded
from engine.host import deadlines

if TYPE_CHECKING:
    from engine.types import CancelToken
    from engine.workers.protocol import Ready, Worker

GRACE_S = 1.0
"""Seconds that a run may take to stop that is asked to and can; then its worker is ended."""


class Watchdog:
    """Stops a run through its worker, if that can stop it, and else ends the worker.

    hang_s: how long it may take before it counts as hung; None for any time. A context manager
    around Worker.run; once it is left nothing more happens to the worker.
    """

    def __init__(
        self,
        worker: Worker,
        ready: Ready,
        deadline_s: float | None,
        cancel: CancelToken | None,
        hang_s: float | None,
    ) -> None:
        self._worker = worker
        self._can_stop = ready.can_stop
        self._lock = threading.RLock()
        self._is_over = False
        self._is_cancelled = False
        self._alarms: list[_Alarm] = []
        self._watch = None if cancel is None else cancel.watch(self._cancelled)
        if deadline_s is not None:
            grace_s = GRACE_S if ready.keeps_deadlines else 0.0
            self._at(deadline_s + grace_s, "did not stop at its deadline")
        if hang_s is not None:
            self._at(time.monotonic() + hang_s, f"hung: it ran for longer than {hang_s:g} s")

    def __enter__(self) -> Watchdog:
        for alarm in self._alarms:
            deadlines.watch(alarm)
        if self._watch is not None:
            self._watch.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._is_over = True
            for alarm in self._alarms:
                alarm.done = True
        if self._watch is not None:
            self._watch.__exit__(None, None, None)

    def _at(self, moment_s: float, why: str) -> None:
        self._alarms.append(_Alarm(self, moment_s, why))

    def _cancelled(self) -> None:
        with self._lock:
            if self._is_over or self._is_cancelled:
                return
            self._is_cancelled = True
            if not self._can_stop:
                self._worker.end("was cancelled")
                return
            self._worker.stop()
            self._at(time.monotonic() + GRACE_S, "did not stop when it was cancelled")
            deadlines.watch(self._alarms[-1])

    def end(self, why: str) -> None:
        """End the worker, unless the run is over."""
        with self._lock:
            if not self._is_over:
                self._worker.end(why)


class _Alarm:
    """See engine.host.deadlines.Timed."""

    def __init__(self, watchdog: Watchdog, deadline_s: float, why: str) -> None:
        self.deadline_s = deadline_s
        self.done = False
        self._watchdog = watchdog
        self._why = why

    def expire(self) -> None:
        self._watchdog.end(self._why)


def check(deadline_s: float | None, cancel: CancelToken | None) -> None:
    """Raise Cancelled or DeadlineExceeded where a request is not wanted any more."""
    if cancel is not None:
        cancel.check()
    if deadline_s is not None and time.monotonic() >= deadline_s:
        raise DeadlineExceeded("it took longer than it was given, waiting included")
