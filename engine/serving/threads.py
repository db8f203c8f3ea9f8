"""Threads that run what has waited: as many as the semaphore has slots.

A request that finds a free slot runs in the thread that asks. One that must wait is run by a
worker, which goes on to the next without a pause. To wake the thread that waits instead would leave
its core idle for as long as that takes: 0.1 ms, and often 4 ms, until the scheduler moves a thread
that it woke on a busy core.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeAlias

from engine.errors import Cancelled, DeadlineExceeded
from engine.host.fair_semaphore import CallbackWaiter, FairSemaphore
from engine.host.interrupts import raised_by_handler, undisturbed
from engine.host.tasks import Task
from engine.serving.batching import Request
from engine.tensor import Tensor
from engine.types import CancelToken

Tell: TypeAlias = Callable[[], None]
"""Wakes a thread whose request was run. Where another run follows it is called when that begins:
the runtime lets go of Python's lock then, which the thread that wakes would else wait for, and so
go to sleep and wake twice, on a core that another run has."""


class Work(Protocol):
    """Work for a worker. request: its inputs, if they may share a run. priority: in the queue."""

    request: Request | None
    priority: int

    def run_admitted(
        self, semaphore: FairSemaphore, waiter: Admission, tell: Tell | None
    ) -> Tell | None:
        """Run, in a thread that is given the work with its slot.

        tell: to be called as the run begins. Returns what is to be called as the next one does.
        """

    def finish(self, results: list[Tensor]) -> None:
        """End it with the results of a run that another thread did; quick, perhaps twice."""


class Admission(CallbackWaiter):
    """Work that waits in the semaphore's queue. queue: of what has a slot, for workers to run."""

    __slots__ = ("once", "queue", "work")

    def __init__(self, work: Work, queue: SimpleQueue[Ready | None]) -> None:
        super().__init__(work.request, work.priority)
        self.work = work
        self.queue = queue
        self.once = threading.Lock()  # held by the thread that runs it

    def admitted(self) -> None:
        """See CallbackWaiter."""
        self.queue.put(self)

    def served(self) -> None:
        """See CallbackWaiter."""
        assert isinstance(self.request, Request)
        assert self.request.results is not None
        self.work.finish(self.request.results)


class Ready(Protocol):
    """A worker's next step: work that has a slot, or the end of what another has begun.

    once: held by the worker that has it.
    """

    once: threading.Lock

    @property
    def work(self) -> Any:
        """The work that runs it: see Work."""


class Workers:
    """The threads, which start when they are needed and end with `end`."""

    def __init__(self, semaphore: FairSemaphore) -> None:
        self.semaphore = semaphore
        self.admitted: SimpleQueue[Ready | None] = SimpleQueue()
        self._count = 0

    def need(self, most: int | None = None) -> None:
        """Start another thread, unless there is one for each slot. Raises RuntimeError.

        By one thread at a time. most: no more than so many, for work that does not keep them.
        """
        if self._count < min(self.semaphore.slots, most or self.semaphore.slots):
            self._count += 1  # also where an interrupt cuts off the wait for its start
            try:
                undisturbed(thread(_work, self.admitted, self.semaphore).start)
            except RuntimeError as error:
                if not raised_by_handler(error):
                    self._count -= 1
                raise

    def end(self) -> None:
        """Have the threads end after what is admitted."""
        count, self._count = self._count, 0
        for _ in range(count):
            self.admitted.put(None)


def thread(target: Callable[..., None], *arguments: object) -> threading.Thread:
    """Return a thread of the runner, to be started."""
    return threading.Thread(target=target, args=arguments, name="engine-runner", daemon=True)


def _work(admitted: SimpleQueue[Ready | None], semaphore: FairSemaphore) -> None:
    tell: Tell | None = None  # whoever waits for the last run
    while True:
        try:
            waiter = admitted.get_nowait() if tell else admitted.get()
        except Empty:
            assert tell is not None
            tell()
            tell = None
            continue
        if waiter is None:
            break
        if waiter.once.acquire(blocking=False):  # an interrupt may have had it put here twice
            tell = waiter.work.run_admitted(semaphore, waiter, tell)
        del waiter  # its inputs and results are not kept until the next one
    if tell is not None:
        tell()


class HandOff(Task):
    """A request whose thread waits while a worker runs it.

    Not for the main thread: what a signal handler raises there would leave the worker to read
    inputs and fill outputs that are the caller's again.

    run_s: the moment of time.perf_counter() when its run began; 0 until then.
    """

    __slots__ = ("_waiter", "priority", "run_s")
    request: Request | None = None  # it shares no run

    def __init__(self, run: Callable[[], list[Tensor]], priority: int) -> None:
        super().__init__(run)
        self.priority = priority
        self.run_s = 0.0
        self._waiter: Admission | None = None

    def queue(self, workers: Workers, limit: int) -> None:
        """Take a place in the queue. Raises QueueFull."""
        self._waiter = Admission(self, workers.admitted)
        workers.semaphore.enqueue(self._waiter, limit)

    def results_by(
        self, semaphore: FairSemaphore, deadline_s: float | None, cancel: CancelToken | None
    ) -> list[Tensor]:
        """Return the results, or raise what the run raised.

        Raises DeadlineExceeded or Cancelled while it waits; the run sees to that itself.
        """
        try:
            with nullcontext() if cancel is None else cancel.watch(self.wake):
                while not self.is_over:
                    self.wait(self._left_s(semaphore, deadline_s, cancel))
            return self.result()  # type: ignore[no-any-return]
        finally:
            self._waiter = None  # no cycle: a waiter has its work

    def _left_s(
        self, semaphore: FairSemaphore, deadline_s: float | None, cancel: CancelToken | None
    ) -> float:
        """Return how long to wait, -1 for ever; or raise where that is over."""
        if cancel is not None and cancel.cancelled:
            self._leave(semaphore, Cancelled("cancelled by its owner"))
        elif deadline_s is not None:
            if (left_s := deadline_s - time.monotonic()) > 0:
                return min(left_s, threading.TIMEOUT_MAX)
            self._leave(semaphore, DeadlineExceeded("other requests lasted to the deadline"))
        return -1.0  # it runs, and the backend sees to its end

    def _leave(self, semaphore: FairSemaphore, error: BaseException) -> None:
        """Raise an error, unless it runs or has ended."""
        if self._waiter is not None and semaphore.withdraw(self._waiter) and not self.is_over:
            raise error

    def run_admitted(self, semaphore: FairSemaphore, waiter: Admission, tell: Tell | None) -> Tell:
        """See Work."""
        semaphore.take_over(waiter)
        self.run_s = time.perf_counter()
        if tell is not None:
            tell()
        try:
            self.attempt()
        finally:
            semaphore.release()
        self.is_over = True
        wake = self.wake
        del self, waiter  # the traceback of an error has this frame: no cycle
        return wake

    def finish(self, results: list[Tensor]) -> None:
        """See Work."""
        raise NotImplementedError
