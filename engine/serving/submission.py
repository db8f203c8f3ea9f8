"""Requests that no thread waits with: each is a future, and leaves the queue when it is cancelled.

They wait in the semaphore's queue like all others, and workers run those that are admitted. One
more thread calls their done callbacks, which may so wait for other requests. The threads start when
first needed and end with `close`, or when nobody knows the submitter any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, Protocol

from engine.cancel import CancelToken
from engine.errors import Cancelled, DeadlineExceeded, ModelStateError, QueueFull
from engine.host import deadlines
from engine.host.imports import ready
from engine.host.interrupts import raised_by_handler, undisturbed
from engine.plan.fair_semaphore import FairSemaphore
from engine.serving.batching import Request
from engine.serving.threads import Admission, Tell, Turn, Workers, open_lock, thread
from engine.tensor import Tensor

_LOOK_S = 0.002
_RECHECK_S = 0.05  # of a thread that is woken in time, unless an interrupt came between

WhenFull = Literal["raise", "wait", "pass"]
"""For a request that finds no room: QueueFull, let its thread wait, or queue it all the same."""


class Server(Protocol):
    """Runs submitted requests. can_stop: it stops a run at its deadline or when it is cancelled.

    If not, one that is late or cancelled is abandoned: its future ends at once, and the slot is
    free when the run is over.
    """

    can_stop: bool

    def serve(
        self,
        request: Request | None,
        inputs: Any,
        timeout_s: float | None,
        deadline_s: float,
        token: CancelToken,
    ) -> list[Tensor]:
        """Run a request whose thread has a slot."""

    def ended(self, outcome: str, came_s: float, admitted_s: float) -> None:
        """Note the end of a request; see Recorder.ended."""


class _Condition(threading.Condition):
    """A Condition that is entered and left by its lock's own methods.

    In Python's, which are functions, a signal handler that raises leaves the lock held for ever.
    """

    __enter__ = property(lambda self: self._lock.__enter__)
    __exit__ = property(lambda self: self._lock.__exit__)


class RequestCancelled(Cancelled, CancelledError):
    """A submitted request was cancelled: for who catches ours, and for who catches Python's."""


class Job(Future[list[Tensor]]):
    """A submitted request. `cancel()` takes it out of the queue, or stops it where it runs.

    It has ended when that returns; a run may take a moment more to stop.
    inputs: as given. request: the same checked, if it may be batched. timeout_s, deadline_s: how
    long it may take, and the moment of time.monotonic() at which that is over. token: stops it.
    Once it has ended it holds its results alone.
    """

    def __init__(
        self,
        server: Server,
        inputs: Any,
        timeout_s: float | None,
        cancel: CancelToken | None,
    ) -> None:
        super().__init__()
        self._condition = _Condition()
        self.inputs = inputs
        self.request: Request | None = None
        self.timeout_s = timeout_s
        self.deadline_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        self.token = CancelToken()
        self._server: Server | None = server
        self._submitter: Submitter | None = None
        self._waiter: Admission | None = None
        self._deadline: _Deadline | None = None
        self._watch = None if cancel is None else cancel.watch(self._stop)
        self._ending = threading.Lock()  # held by who ends it
        self._reason = ""  # why it was cancelled

    def queue(self, submitter: Submitter, limit: int) -> None:
        """Take a place in the queue. Raises QueueFull."""
        self._submitter = submitter
        self._waiter = waiter = Admission(self, submitter.workers.admitted)
        try:
            submitter.semaphore.enqueue(waiter, limit)
        except QueueFull:
            self._waiter = self._submitter = None
            raise
        watch = self._watch
        if watch is not None:
            watch.__enter__()
            if self._ending.locked():  # and who ends it may have left it before
                watch.__exit__(None, None, None)
        if self.timeout_s is not None:
            self._deadline = deadline = _Deadline(self)
            if self._ending.locked():  # and who ends it has not seen it
                deadline.job = None
            else:
                deadlines.watch(deadline)

    def add_done_callback(self, fn: Callable[[Future[list[Tensor]]], object]) -> None:
        """Call `fn` with the future when it is done: in a thread that does only this."""
        submitter = self._submitter
        if submitter is None or self.done():
            super().add_done_callback(fn)
        else:
            super().add_done_callback(partial(submitter.callbacks.put, fn))

    def result(self, timeout: float | None = None) -> list[Tensor]:
        """See concurrent.futures.Future."""
        self._wait(timeout)
        self._refuse_cancelled()
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See concurrent.futures.Future."""
        self._wait(timeout)
        self._refuse_cancelled()
        return super().exception()

    def _refuse_cancelled(self) -> None:
        if self.cancelled():
            raise RequestCancelled(self._reason)

    def running(self) -> bool:
        """Return whether it has a slot, or is in the run of another that has."""
        waiter, request = self._waiter, self.request
        if waiter is None or self.done():
            return False
        return bool(waiter.admitted_s or (request is not None and request.began_s))

    def _wait(self, timeout_s: float | None) -> None:
        """Wait until it is done. Raises TimeoutError.

        By a lock of its own: what a signal handler raises while Python's Condition goes to sleep
        or wakes leaves that without its lock, or with it for ever.
        """
        if self.done():
            return
        turn = threading.Lock()
        turn.acquire()
        self.when_done(lambda _: open_lock(turn))
        left_s = -1.0 if timeout_s is None else min(max(0.0, timeout_s), threading.TIMEOUT_MAX)
        if not turn.acquire(timeout=left_s):
            raise TimeoutError

    def when_done(self, call: Callable[[object], None]) -> None:
        """Call back when it is done, in whatever thread ends it; to be quick."""
        super().add_done_callback(call)

    # ------------------------------------------------------------------- by the threads that run

    def run(self, semaphore: FairSemaphore, waiter: Admission, tell: Tell | None) -> None:
        """See Work: a future is done at once."""
        semaphore.take_over(waiter)
        if tell is not None:
            tell()
        try:
            server = self._server
            if server is None or self.done():
                self._waiter = None  # where it ended beside the next lines
                return
            try:
                results = server.serve(
                    self.request, self.inputs, self.timeout_s, self.deadline_s, self.token
                )
            except BaseException as error:
                self.fail(error)
            else:
                self.finish(results)
        finally:
            semaphore.release()
            del self, waiter  # the traceback of an error has this frame: no cycle

    # ------------------------------------------------------------------------------- how it ends

    def cancel(self) -> bool:
        """Cancel the request, also one that runs; False where it has ended otherwise."""
        if not self.done():
            undisturbed(self._stop)
            if self._ending.locked():  # by the thread that ran it, perhaps
                self._wait(None)
        return self.cancelled()

    def _stop(self) -> None:
        self.token.cancelled = True
        is_running = not self._withdrawn()
        if self._waiter is not None:  # else it was never queued, and nobody has it
            self.fail(Cancelled("predict failed! cancelled by its owner"))
        if is_running:
            self.token.cancel()

    def expire(self) -> None:
        """End it at its deadline, unless it runs and the backend sees to that."""
        if self._withdrawn():
            self.fail(
                DeadlineExceeded(
                    f"predict failed! it took longer than timeout_s, {self.timeout_s:g} s: other "
                    "requests lasted to the deadline; give it more time, or leave timeout_s out",
                    self.timeout_s,
                )
            )

    def refuse(self, reason: str) -> None:
        """End it, if it still waits, because the runner closes."""
        submitter, waiter = self._submitter, self._waiter
        if submitter is not None and waiter is not None and submitter.semaphore.withdraw(waiter):
            self.fail(ModelStateError(reason))

    def _withdrawn(self) -> bool:
        """Return whether it does not run, and now will not, or runs to no purpose."""
        submitter, waiter, server = self._submitter, self._waiter, self._server
        if submitter is None or waiter is None or server is None:
            return False
        return submitter.semaphore.withdraw(waiter) or not server.can_stop

    def finish(self, results: list[Tensor]) -> None:
        """End it with results, unless it has ended."""
        self._end("completed", partial(self.set_result, results))

    def fail(self, error: BaseException) -> None:
        """End it with an error, unless it has ended."""
        if isinstance(error, Cancelled):
            self._end("cancelled", partial(self._set_cancelled, str(error)))
        else:
            self._end(outcome_of(error), partial(self.set_exception, error))

    def _set_cancelled(self, reason: str) -> None:
        self._reason = reason
        super().cancel()
        self.set_running_or_notify_cancel()  # for concurrent.futures.wait and as_completed

    def _end(self, outcome: str, tell: Callable[[], None]) -> None:
        undisturbed(partial(self._end_once, outcome, tell))

    def _end_once(self, outcome: str, tell: Callable[[], None]) -> None:
        if not self._ending.acquire(blocking=False):
            return
        try:
            self._note(outcome)
        finally:
            tell()
            submitter, self._submitter = self._submitter, None
            if submitter is not None:
                submitter.ended(self)

    def _note(self, outcome: str) -> None:
        """Count it, and let go of what it needed: who keeps the future keeps results alone."""
        if self._watch is not None:
            self._watch.__exit__(None, None, None)
        if self._deadline is not None:
            self._deadline.job = None
        server, waiter, request = self._server, self._waiter, self.request
        self._watch = self._server = self._waiter = self.inputs = self.request = None
        came_s = 0.0 if waiter is None else waiter.came_s
        admitted_s = 0.0 if waiter is None else waiter.admitted_s
        if request is not None and request.began_s:
            admitted_s = request.began_s
        if server is not None:
            server.ended(outcome, came_s, admitted_s)


class _Deadline:
    """See engine.host.deadlines, which keeps it until the moment comes. job: None when done."""

    def __init__(self, job: Job) -> None:
        self.job: Job | None = job
        self.deadline_s = job.deadline_s

    @property
    def done(self) -> bool:
        return self.job is None

    def expire(self) -> None:
        job = self.job
        if job is not None:
            job.expire()


def outcome_of(error: BaseException) -> str:
    """Return what an error means in the statistics."""
    if isinstance(error, Cancelled):
        return "cancelled"
    return "expired" if isinstance(error, DeadlineExceeded) else "failed"


class Submitter:
    """Takes requests for a semaphore. Any thread may call any method.

    limit: how many may wait.
    """

    def __init__(self, semaphore: FairSemaphore, limit: int) -> None:
        self.semaphore = semaphore
        self.workers = Workers(semaphore)
        self.callbacks = _Callbacks()
        self._limit = limit
        self._jobs: dict[Job, None] = {}
        self._turns: dict[Turn, None] = {}
        self._blocked: dict[threading.Lock, None] = {}  # threads that wait for room
        # No Condition: what a signal handler raises as one is entered leaves it locked.
        self._lock = threading.RLock()
        self._closed = ""

    def submit(self, job: Job, when_full: WhenFull) -> Job:
        """Queue a job and return it. Raises QueueFull, ModelStateError."""
        try:
            self._take(job)
            job.queue(self, self._limit if when_full == "raise" else 0)
            if when_full == "wait" and self._is_full():
                self._wait_for_room(job)
        except (QueueFull, ModelStateError):
            self.ended(job)
            raise
        except BaseException:  # a signal handler's: nobody will have the future
            job.cancel()
            self.ended(job)
            raise
        return job

    def _take(self, job: Job) -> None:
        with self._lock:
            if self._closed:
                raise ModelStateError(self._closed)
            self.workers.need()
            self._jobs[job] = None

    def take_turn(self, turn: Turn, limit: int) -> bool:
        """Queue a request of a thread that waits; False where there is no worker for it.

        `ended` follows. Raises QueueFull where `limit` wait already; 0: no limit.
        """
        with self._lock:
            if self._closed:
                return False
            try:
                self.workers.need()
            except RuntimeError:
                return False
            self._turns[turn] = None
        turn.queue(self.workers, limit)
        return True

    def end_turn(self, turn: Turn) -> None:
        """Forget a turn, which has ended."""
        self._turns.pop(turn, None)
        if self._closed:
            self._end_threads()

    def _is_full(self) -> bool:
        return len(self._jobs) > self._limit + self.semaphore.slots

    def _wait_for_room(self, job: Job) -> None:
        """Wait until so many others have ended that there is room, or the job has.

        It has its place in the queue: nobody who comes later overtakes it.
        """
        turn = threading.Lock()
        turn.acquire()
        self._blocked[turn] = None
        job.when_done(lambda _: open_lock(turn))
        try:
            while self._is_full() and not job.done():
                turn.acquire(timeout=_RECHECK_S)
        finally:
            self._blocked.pop(turn, None)

    def ended(self, job: Job) -> None:
        """Forget a job, which has ended."""
        self._jobs.pop(job, None)
        for turn in list(self._blocked):
            if self._is_full():
                break
            if self._blocked.pop(turn, self) is None:
                open_lock(turn)
        if self._closed:
            self._end_threads()

    def close(self, reason: str, finish: bool) -> None:
        """Take no more; let those that there are end, or refuse those that wait."""
        with self._lock:
            self._closed = self._closed or reason
        if not finish:
            for job in list(self._jobs):
                job.refuse(reason)
        self._end_threads()

    def join(self) -> None:
        """Wait until all have ended, and their callbacks were called."""
        while self._jobs:
            time.sleep(_LOOK_S)
        self.callbacks.join()

    def _end_threads(self) -> None:
        with self._lock:
            if self._jobs or self._turns:
                return
            self.workers.end()
        self.callbacks.end()

    def __del__(self) -> None:
        if hasattr(self, "workers"):
            self.workers.end()
        if hasattr(self, "callbacks"):
            self.callbacks.end()


class _Callbacks:
    """Calls done callbacks, in the order of ending, in a thread of its own.

    The threads that run models, watch deadlines or cancel must not wait for what users do there.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._has_ended = False
        self._lock = threading.RLock()

    def put(self, call: Callable[[Future[list[Tensor]]], object], job: Job) -> None:
        with self._lock:
            if not self._has_ended and self._has_thread():
                self._calls.put(partial(call, job))
                return
        _logged(partial(call, job))  # given for a job that ended, with the last, just then

    def _has_thread(self) -> bool:
        """Start the thread unless there is one; return False where it cannot be started."""
        if self._thread is None:
            self._thread = thread(_call, self._calls)  # also where an interrupt ends the wait
            try:
                undisturbed(self._thread.start)
            except RuntimeError as error:
                if raised_by_handler(error):
                    raise
                self._thread = None
        return self._thread is not None

    def end(self) -> None:
        """Have the thread end after what there is."""
        with self._lock:
            self._has_ended = True
            if self._thread is not None:
                self._calls.put(None)

    def join(self) -> None:
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()


def _call(calls: SimpleQueue[Callable[[], object] | None]) -> None:
    while (call := calls.get()) is not None:
        _logged(call)
        del call


def _logged(call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException:  # as concurrent.futures does; also of SystemExit: others come
        logging.getLogger("engine").exception("a done callback of a request failed")


async def awaited(job: Job) -> list[Tensor]:
    """Await a job; a task that is cancelled, or a coroutine that is dropped, cancels it."""
    ready("asyncio")
    import asyncio  # a process without it starts sooner

    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def wake() -> None:
        if not done.done():
            done.set_result(None)

    def tell(_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(wake)

    job.when_done(tell)
    try:
        await done
        return job.result()
    finally:
        job.cancel()
