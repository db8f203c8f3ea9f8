"""Stopping a run that takes too long.

ONNX Runtime looks at RunOptions.terminate between nodes. One thread a process sleeps until the
nearest deadline of any run and sets that flag; it starts with the first deadline and no run
without one pays for it.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from types import TracebackType

import onnxruntime as ort


class Deadline:
    """Context manager around one run, which gets `options`; `stopped` is set where it was cut.

    deadline_s: a moment of time.monotonic().
    """

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.options = ort.RunOptions()
        self.done = False
        self.stopped = False

    def __enter__(self) -> Deadline:
        _watch().add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.done = True
        _watch().finished()

    @property
    def passed(self) -> bool:
        """Return True where the deadline is behind us."""
        return time.monotonic() >= self.deadline_s


class _Watch:
    """The thread that waits for deadlines, nearest first."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Deadline]] = []
        self._order = itertools.count()
        self._done = 0
        # Reentrant: a signal handler may predict with a deadline of its own.
        self._changed = threading.Condition(threading.RLock())
        threading.Thread(target=self._run, name="engine-cpu-deadlines", daemon=True).start()

    def add(self, deadline: Deadline) -> None:
        with self._changed:
            heapq.heappush(self._due, (deadline.deadline_s, next(self._order), deadline))
            if self._due[0][2] is deadline:
                self._changed.notify()

    def finished(self) -> None:
        """Note that a run has ended; entries of ended ones go before they are the most."""
        self._done += 1
        if self._done > 64 + len(self._due) // 2:
            with self._changed:
                self._due = [entry for entry in self._due if not entry[2].done]
                heapq.heapify(self._due)
                self._done = 0

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._due and self._due[0][2].done:
                    heapq.heappop(self._due)
                if not self._due:
                    self._changed.wait()
                    continue
                wait_s = self._due[0][0] - time.monotonic()
                if wait_s > 0:
                    self._changed.wait(min(wait_s, threading.TIMEOUT_MAX))
                    continue
                _, _, deadline = heapq.heappop(self._due)
            if not deadline.done:
                deadline.stopped = True
                deadline.options.terminate = True


_lock = threading.RLock()
_watches: dict[int, _Watch] = {}


def _watch() -> _Watch:
    # By process: a forked child has the parent's objects but not its thread.
    pid = os.getpid()
    if pid in _watches:
        return _watches[pid]
    with _lock:
        if pid not in _watches:
            _watches.clear()
            _watches[pid] = _Watch()
        return _watches[pid]


os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.RLock()))
