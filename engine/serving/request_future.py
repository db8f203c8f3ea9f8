"""A request that no thread waits with: a future, which leaves the queue when it is cancelled.

It waits in the semaphore's queue like all others, and a worker runs it once it is admitted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from engine.errors import Cancelled, DeadlineExceeded, ModelStateError, QueueFull
from engine.host import deadlines
from engine.host.fair_semaphore import FairSemaphore
from engine.host.imports import ready
from engine.host.interrupts import undisturbed
from engine.host.tasks import open_lock
from engine.serving.batching import Request
from engine.serving.callbacks import Callbacks
from engine.serving.shared_cpus import lent
from engine.serving.threads import Admission, Tell, Workers
from engine.tensor import Tensor
from engine.types import CancelToken, PredictOptions

if TYPE_CHECKING:
    from engine.report.observing.request import ObservedRequest

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
        options: PredictOptions | None,
        observed: ObservedRequest | None,
    ) -> list[Tensor]:
        """Run a request whose thread has a slot."""

    def ended(self, outcome: str, came_s: float, admitted_s: float) -> None:
        """Note the end of a request; see Recorder.ended."""

    def ran(self) -> None:
        """Count a run of one request, which `serve` does itself."""


class Pending(Protocol):
    """A place of submitted requests until they end; see PendingRequests."""

    semaphore: FairSemaphore
    workers: Workers
    callbacks: Callbacks

    def ended(self, future: RequestFuture) -> None:
        """Forget a request, which has ended."""

    def begin(self, run: object, future: RequestFuture) -> bool:
        """See PendingRequests."""

    def landed(self, run: object) -> None:
        """See PendingRequests."""

    def keep_worker(self) -> None:
        """See PendingRequests."""


class _Condition(threading.Condition):
    """A Condition that is entered and left by its lock's own methods.

    In Python's, which are functions, a signal handler that raises leaves the lock held for ever.
    """

    __enter__ = property(lambda self: self._lock.__enter__)
    __exit__ = property(lambda self: self._lock.__exit__)


class RequestCancelled(Cancelled, CancelledError):
    """A submitted request was cancelled: for who catches ours, and for who catches Python's."""


class RequestFuture(Future[list[Tensor]]):
    """A submitted request. `cancel()` takes it out of the queue, or stops it where it runs.

    It has ended when that returns; a run may take a moment more to stop.
    inputs: as given. request: the same checked, if it may be batched. timeout_s, deadline_s: how
    long it may take, and the moment of time.monotonic() at which that is over. token: stops it.
    observed: the same request for observers; None where there are none. options: see Runnable.
    Once it has ended it holds its results alone.
    most_workers: how many workers such requests need; None for one a slot.
    """

    most_workers: int | None = None

    def __init__(
        self,
        server: Server,
        inputs: Any,
        timeout_s: float | None,
        cancel: CancelToken | None,
        observed: ObservedRequest | None = None,
        options: PredictOptions | None = None,
    ) -> None:
        super().__init__()
        self._condition = _Condition()
        self.inputs = inputs
        self.request: Request | None = None
        self.timeout_s = timeout_s
        self.deadline_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        self.token = CancelToken()
        self.options = options
        self.priority = 0 if options is None else options.priority
        self._server: Server | None = server
        self._pending: Pending | None = None
        self._waiter: Admission | None = None
        self._deadline: _Deadline | None = None
        self._observed = observed
        self._watch = None if cancel is None else cancel.watch(self._stop)
        self._ending = threading.Lock()  # held by who ends it
        self._reason = ""  # why it was cancelled

    def queue(self, pending: Pending, limit: int) -> None:
        """Take a place in the queue. Raises QueueFull."""
        self._pending = pending
        self._waiter = waiter = Admission(self, pending.workers.admitted)
        try:
            pending.semaphore.enqueue(waiter, limit)
        except QueueFull:
            self._waiter = self._pending = None
            raise
        watch = self._watch
        if watch is not None:
            watch.__enter__()
            if self._ending.locked():  # and who ends it may have left it before
                watch.__exit__(None, None, None)
        if self.timeout_s is not None:
            self._deadline = deadline = _Deadline(self)
            if self._ending.locked():  # and who ends it has not seen it
                deadline.future = None
            else:
                deadlines.watch(deadline)

    def add_done_callback(self, fn: Callable[[Future[list[Tensor]]], object]) -> None:
        """Call `fn` with the future when it is done: in a thread that does only this."""
        pending = self._pending
        if pending is None or self.done():
            super().add_done_callback(fn)
        else:
            super().add_done_callback(partial(pending.callbacks.put, fn))

    def result(self, timeout: float | None = None) -> list[Tensor]:
        """See concurrent.futures.Future."""
        self._wait(timeout)
        self._refuse_cancelled()
        try:
            return super().result()
        finally:
            del self  # the traceback of its error has this frame: no cycle

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
        wake = threading.Lock()
        wake.acquire()
        self.when_done(lambda _: open_lock(wake))
        left_s = -1.0 if timeout_s is None else min(max(0.0, timeout_s), threading.TIMEOUT_MAX)
        with lent():
            if not wake.acquire(timeout=left_s):
                raise TimeoutError

    def when_done(self, call: Callable[[object], None]) -> None:
        """Call back when it is done, in whatever thread ends it; to be quick."""
        super().add_done_callback(call)

    # ------------------------------------------------------------------- by the threads that run

    def run_admitted(self, semaphore: FairSemaphore, waiter: Admission, tell: Tell | None) -> None:
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
                    self.request,
                    self.inputs,
                    self.timeout_s,
                    self.deadline_s,
                    self.token,
                    self.options,
                    self._observed,
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
        pending, waiter = self._pending, self._waiter
        if pending is not None and waiter is not None and pending.semaphore.withdraw(waiter):
            self.fail(ModelStateError(reason))

    def give_way(self, error: QueueFull) -> bool:
        """End it with an error, if it stands in the queue; return whether."""
        return undisturbed(partial(self._give_way, error))

    def _give_way(self, error: QueueFull) -> bool:
        pending, waiter = self._pending, self._waiter
        if pending is None or waiter is None:
            return False
        if not pending.semaphore.is_queued(waiter) or not pending.semaphore.withdraw(waiter):
            return False
        self.fail(QueueFull(f"one of a higher priority has its place: {error}"))
        return True

    def _withdrawn(self) -> bool:
        """Return whether it does not run, and now will not, or runs to no purpose."""
        pending, waiter, server = self._pending, self._waiter, self._server
        if pending is None or waiter is None or server is None:
            return False
        return pending.semaphore.withdraw(waiter) or not server.can_stop

    def finish(self, results: list[Tensor]) -> None:
        """End it with results, unless it has ended."""
        self._end("completed", partial(self.set_result, results), None, results)

    def fail(self, error: BaseException) -> None:
        """End it with an error, unless it has ended."""
        if isinstance(error, Cancelled):
            self._end("cancelled", partial(self._set_cancelled, str(error)), error)
        else:
            self._end(outcome_of(error), partial(self.set_exception, error), error)

    def _set_cancelled(self, reason: str) -> None:
        self._reason = reason
        super().cancel()
        self.set_running_or_notify_cancel()  # for concurrent.futures.wait and as_completed

    def tell(self, error: BaseException | None, results: list[Tensor] | None = None) -> None:
        """Tell observers, if there are any, how it ended; only the first time counts."""
        observed, request, waiter = self._observed, self.request, self._waiter
        if observed is not None:
            run_s = began(request, 0.0 if waiter is None else waiter.admitted_s)
            observed.ended(error, self.inputs, results, run_s, *run_of(request))

    def _end(
        self,
        outcome: str,
        tell: Callable[[], None],
        error: BaseException | None,
        results: list[Tensor] | None = None,
    ) -> None:
        undisturbed(partial(self._end_once, outcome, tell, error, results))

    def _end_once(
        self,
        outcome: str,
        tell: Callable[[], None],
        error: BaseException | None,
        results: list[Tensor] | None,
    ) -> None:
        if not self._ending.acquire(blocking=False):
            return
        try:
            if self._observed is not None and self._server is not None:
                self.tell(error, results)
            self._note(outcome)
        finally:
            tell()
            pending, self._pending = self._pending, None
            if pending is not None:
                pending.ended(self)

    def _note(self, outcome: str) -> None:
        """Count it, and let go of what it needed: who keeps the future keeps results alone."""
        if self._watch is not None:
            self._watch.__exit__(None, None, None)
        if self._deadline is not None:
            self._deadline.future = None
        server, waiter, request = self._server, self._waiter, self.request
        self._watch = self._server = self._waiter = self.inputs = self.request = None
        self._observed = None
        came_s = 0.0 if waiter is None else waiter.came_s
        admitted_s = began(request, 0.0 if waiter is None else waiter.admitted_s)
        if server is not None:
            server.ended(outcome, came_s, admitted_s)


class _Deadline:
    """See engine.host.deadlines, which keeps it until the moment comes. future: None when done."""

    def __init__(self, future: RequestFuture) -> None:
        self.future: RequestFuture | None = future
        self.deadline_s = future.deadline_s

    @property
    def done(self) -> bool:
        return self.future is None

    def expire(self) -> None:
        future = self.future
        if future is not None:
            future.expire()


def began(request: Request | None, admitted_s: float) -> float:
    """Return when a request's run began: with those that share it, or as it got its slot."""
    return admitted_s if request is None else request.began_s or admitted_s


def run_of(request: Request | None) -> tuple[int, str]:
    """Return how many requests shared the run of one, and that run's id; "" for its own."""
    if request is None or request.run is None:
        return 1, ""
    return request.shared_by, request.run.id


def outcome_of(error: BaseException) -> str:
    """Return what an error means in the statistics."""
    if isinstance(error, Cancelled):
        return "cancelled"
    if isinstance(error, QueueFull):
        return "refused"
    return "expired" if isinstance(error, DeadlineExceeded) else "failed"


def late(timeout_s: float | None) -> DeadlineExceeded:
    """Return the error for a request that ran longer than it might."""
    return DeadlineExceeded(
        f"predict failed! it took longer than timeout_s, {timeout_s:g} s, waiting included; give "
        "it more time, or leave timeout_s out",
        timeout_s,
    )


async def awaited(future: RequestFuture) -> list[Tensor]:
    """Await a request; a task that is cancelled, or a coroutine that is dropped, cancels it."""
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

    future.when_done(tell)
    try:
        await done
        return future.result()
    finally:
        future.cancel()
        del future  # the traceback of its error has this frame: no cycle
