"""Calls back at deadlines of runs: one thread a process sleeps until the nearest of them.

It starts with the first deadline, and no run without one pays for it.
"""

from __future__ import annotations

import _thread
import heapq
import itertools
import math
import os
import threading
import time
from collections import deque
from typing import Protocol

from engine.host.interrupts import pass_interrupt


class Timed(Protocol):
    """A run with a deadline. deadline_s: a moment of time.monotonic()."""

    deadline_s: float

    @property
    def done(self) -> bool:
        """Return whether it has ended."""

    def expire(self) -> None:
        """Stop the run. Called once in another thread, perhaps just after it is done; quick."""


def watch(run: Timed) -> None:
    """Call `run.expire()` at its deadline, unless it is done by then."""
    _watch.add(run)


class _Watch:
    """The thread that waits for deadlines, nearest first.

    A signal handler may raise at any step of `add`. So there is no lock that it could leave held,
    and what one call has left undone, the thread's start or its waking, the next one does.
    """

    MOST_NEW = 128

    def __init__(self) -> None:
        self.new: deque[Timed] = deque()
        self.due: list[tuple[float, int, Timed]] = []  # the thread's alone
        self._until = math.inf  # the moment at which the thread wakes by itself
        self._asleep = threading.Lock()  # released to wake the thread
        self._asleep.acquire()
        self._runs = threading.Lock()  # the thread has it

    def add(self, deadline: Timed) -> None:
        self.new.append(deadline)
        if not self._runs.locked():
            # Not threading's Thread: its start waits, with locks that an exception leaves held.
            _thread.start_new_thread(self._run, ())
        # Later ones wait among the new until the thread wakes, unless they become too many.
        if deadline.deadline_s < self._until or len(self.new) > self.MOST_NEW:
            try:
                self._asleep.release()
            except RuntimeError as error:  # it is awake
                pass_interrupt(error)

    def _run(self) -> None:
        if not self._runs.acquire(blocking=False):
            return  # two runs have started one each
        order = itertools.count()
        latest = -math.inf
        while True:
            while self.new:
                deadline = self.new.popleft()
                latest = max(latest, deadline.deadline_s)
                heapq.heappush(self.due, (deadline.deadline_s, next(order), deadline))
            if len(self.due) > self.MOST_NEW:
                self.due = [entry for entry in self.due if not entry[2].done]
                heapq.heapify(self.due)
            now = time.monotonic()
            while self.due and (self.due[0][0] <= now or self.due[0][2].done):
                _, _, deadline = heapq.heappop(self.due)
                if not deadline.done:
                    _expire(deadline)
            # With none left, sleep to the last: runs with the same timeout then need not wake us.
            until = self.due[0][0] if self.due else latest if latest > now else math.inf
            self._until = until
            if self.new:  # which may be nearer, of a thread that has not seen `_until` yet
                continue
            wait_s = -1.0 if until == math.inf else min(until - now, threading.TIMEOUT_MAX)
            self._asleep.acquire(timeout=wait_s)


def _expire(run: Timed) -> None:
    try:
        run.expire()
    except Exception:  # the thread goes on: other runs have deadlines too
        import logging

        logging.getLogger("engine").exception("a run was not stopped at its deadline")


_watch = _Watch()


def _renew() -> None:
    """Begin anew in a forked child: it has the parent's objects but not its thread."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_renew)
