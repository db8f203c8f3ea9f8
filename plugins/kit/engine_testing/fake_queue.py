"""The fake device's queue of predicts: one thread runs them when each is due.

No thread waits for one of them: `engine.host.deadlines` says when a time has come.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import count
from queue import PriorityQueue

from engine.host import deadlines
from engine.types import Done, Values


class QueuedRun:
    """A predict that waits for its time, or for what ends it before: see engine.host.deadlines.

    run: computes, or raises what stopped it. due_s: when, a moment of time.monotonic(); the
    deadline where that is earlier. priority: of those that are due, the highest runs first.
    """

    def __init__(
        self,
        run: Callable[[], Values],
        done: Done,
        due_s: float,
        deadline_s: float | None,
        priority: int = 0,
    ) -> None:
        self.deadline_s = due_s if deadline_s is None else min(due_s, deadline_s)
        self.priority = priority
        self.done = False  # it needs no time any more
        self._told: tuple[Callable[[], Values], Done] | None = run, done

    def queue(self) -> None:
        """Have it run at its time."""
        deadlines.watch(self)

    def expire(self) -> None:
        """Have it run: its time has come."""
        self.done = True
        _device.put(self)

    def hurry(self) -> None:
        """Have it run now, because it was cancelled; more than once does no harm."""
        self.expire()

    def finish(self) -> None:
        """Run, and say so; twice does nothing. In the device's thread."""
        told, self._told = self._told, None
        if told is None:
            return
        run, done = told
        try:
            values = run()
        except BaseException as error:
            done(None, error)
        else:
            done(values, None)


class _Device:
    """The thread, which starts with the first predict and serves all models."""

    def __init__(self) -> None:
        self._due: PriorityQueue[tuple[int, int, QueuedRun]] = PriorityQueue()
        self._numbers = count()
        self._starting = threading.Lock()
        self._has_thread = False

    def put(self, run: QueuedRun) -> None:
        """Have a run finished, after those that came before with the same priority."""
        self._due.put((-run.priority, next(self._numbers), run))
        with self._starting:
            if not self._has_thread:
                threading.Thread(target=self._work, name="fake-device", daemon=True).start()
                self._has_thread = True

    def _work(self) -> None:
        while True:
            _, _, run = self._due.get()
            run.finish()
            del run  # it is not kept until the next one


_device = _Device()


def _renew() -> None:
    """Begin anew in a forked child: it has no threads."""
    global _device
    _device = _Device()


os.register_at_fork(after_in_child=_renew)
