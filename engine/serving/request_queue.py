"""The queue where all requests for a model meet: by priority, then first come, first served.

A thread that finds a free slot runs the model itself. Others are served by a worker; what is
submitted waits in the same queue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from engine.config.checks import require, require_seconds
from engine.errors import DeadlineExceeded, EngineError, ModelStateError, QueueFull
from engine.host.fair_semaphore import CallbackWaiter, FairSemaphore
from engine.host.interrupts import in_main_thread, raised_by_handler, undisturbed
from engine.host.tasks import open_lock
from engine.runtime.asked import check
from engine.serving.batching import Batcher, Request
from engine.serving.pending import PendingRequests
from engine.serving.request_future import (
    RequestFuture,
    WhenFull,
    awaited,
    began,
    late,
    outcome_of,
    run_of,
)
from engine.serving.shared_cpus import lent
from engine.serving.statistics import Recorder
from engine.serving.threads import HandOff
from engine.tensor import Tensor
from engine.types import CancelToken, Device, PredictOptions

if TYPE_CHECKING:
    from engine.report.observing.observation import Observation
    from engine.report.observing.request import ObservedRequest

_LOOK_S = 0.002
# A run that takes less is over before a worker is awake.
_SHORT_RUN_S = 200e-6


class Runnable(Protocol):
    """The target of a queue's requests: a built model, or many that behave as one.

    semaphore: before its runs. can_stop: see Server. run_s: how long the last run took. batcher:
    of requests that share runs, whose runs it counts; None where each runs alone. observation:
    what tells observers of the requests; None where there are none. takes_options: `run` passes
    options on to who takes them. wants_options: who wants them always. devices: those that run
    every request; () where `run` notes which do.
    """

    semaphore: FairSemaphore
    can_stop: bool
    run_s: float
    observation: Observation | None
    takes_options: bool
    wants_options: bool
    devices: Sequence[Device]

    @property
    def batcher(self) -> Batcher | None:
        """See the class."""

    def run(
        self,
        request: Request | None,
        inputs: Any,
        outputs: list[Tensor] | None,
        deadline_s: float | None,
        cancel: CancelToken | None,
        options: PredictOptions | None,
        observed: ObservedRequest | None,
    ) -> list[Tensor]:
        """Run a request whose thread has a slot; see Model.predict. The slot may be released.

        request: from `batcher`, with the inputs checked, for a run that others may share.
        options: its id and priority; None for neither. observed: the same request for observers.
        """

    def extra(self, inputs: Any) -> int:
        """Return how many slots beyond the semaphore's a request may take."""

    def checked(self, inputs: Any) -> list[Any]:
        """Return a request's inputs in the model's order. Raises what Model.predict raises."""

    def abort(self) -> None:
        """Fail what runs, if that can be. Does not wait."""

    def close(self) -> None:
        """Free what runs."""


R = TypeVar("R", bound=Runnable)


class RequestQueue(Generic[R]):
    """The requests for one model.

    limit: how many requests may wait. is_waiting: what comes then waits as well; else QueueFull.
    futures: makes those of submitted requests that share no runs.
    """

    def __init__(
        self,
        runnable: R,
        recorder: Recorder,
        limit: int,
        is_waiting: bool = True,
        futures: Callable[..., RequestFuture] = RequestFuture,
    ) -> None:
        self.runnable = runnable
        self.semaphore, self.can_stop = runnable.semaphore, runnable.can_stop
        self._recorder = recorder
        self._limit = limit
        self._is_waiting = is_waiting
        self._futures = futures
        self._refusal = ""  # for threads that wait, when it is their turn
        self.pending = PendingRequests(self.semaphore, limit)

    @property
    def load(self) -> float:
        """Return how many requests are here, over the slots."""
        return (self.semaphore.waiting + self.semaphore.running) / self.semaphore.slots

    # ------------------------------------------------------------------ for a thread that waits

    def predict(
        self,
        inputs: Any,
        outputs: list[Tensor] | None,
        timeout_s: float | None,
        cancel: CancelToken | None,
        priority: int = 0,
        request_id: str = "",
    ) -> list[Tensor]:
        """Run the model, in the calling thread where a slot is free; see Model.predict."""
        semaphore = self.semaphore
        if cancel is not None:
            require("cancel", cancel, CancelToken)
        check(priority, request_id)
        is_limited = timeout_s is not None or cancel is not None
        if is_limited and not self.can_stop and not outputs:
            return self._abandonable(inputs, timeout_s, cancel, priority, request_id)
        has_handlers = in_main_thread()
        semaphore.refuse_nested()
        request = None
        came_s = time.perf_counter()
        admitted_s = 0.0
        deadline_s = None if timeout_s is None else time.monotonic() + _seconds(timeout_s)
        observed, options = self._begun(priority, request_id)

        def run() -> list[Tensor]:
            if self._refusal:
                raise ModelStateError(self._refusal)
            return self.runnable.run(
                request, inputs, outputs, deadline_s, cancel, options, observed
            )

        try:
            try:
                if self.runnable.batcher is not None and not outputs:
                    request = self.runnable.batcher.request(inputs, priority)
                served = None
                extra = self.runnable.extra(inputs)
                if has_handlers or not semaphore.try_acquire(request, extra, priority):
                    with lent():
                        served = self._served(run, request, deadline_s, cancel, priority, extra)
                if served is not None:
                    results, admitted_s = served
                else:
                    admitted_s = time.perf_counter()
                    semaphore.reuse_slot()
                    results = run()
            finally:
                try:
                    semaphore.release()
                except BaseException:
                    semaphore.release()  # for a signal handler that raised in the first
                    raise
        except QueueFull as error:
            self._recorder.refused()
            if observed is not None:
                observed.ended(error, inputs)
            raise
        except BaseException as error:
            self._recorder.ended(outcome_of(error), came_s, admitted_s, time.perf_counter())
            if observed is not None:
                observed.ended(error, inputs, None, began(request, admitted_s), *run_of(request))
            if isinstance(error, DeadlineExceeded) and error.timeout_s != timeout_s:
                raise late(timeout_s) from error
            raise
        runs = request is None  # the batcher counts those of others
        self._recorder.ended("completed", came_s, admitted_s, time.perf_counter(), runs)
        if observed is not None:
            observed.ended(None, inputs, results, began(request, admitted_s), *run_of(request))
        return results

    def _begun(
        self, priority: int, request_id: str
    ) -> tuple[ObservedRequest | None, PredictOptions | None]:
        """Tell observers, if there are any, that a request has come; return what its run gets."""
        runnable = self.runnable
        observed = None
        if runnable.observation is not None:
            observed = runnable.observation.begin(runnable.checked, request_id)
        if observed is not None:
            observed.devices.extend(runnable.devices)
            if priority or runnable.wants_options:
                request_id = observed.id
        if not priority and not request_id:
            return observed, None
        return observed, PredictOptions(id=request_id, priority=priority)

    def _served(
        self,
        run: Callable[[], list[Tensor]],
        request: Request | None,
        deadline_s: float | None,
        cancel: CancelToken | None,
        priority: int,
        extra: int,
    ) -> tuple[list[Tensor], float] | None:
        """Wait for the turn of a request; return the results, and when its run began.

        None where no other thread runs it: the calling thread has a slot then.
        """
        limit = 0 if self._is_waiting else self._limit
        is_short = extra or self.runnable.run_s < _SHORT_RUN_S
        # One whose run others may share needs no worker: who has a slot takes along who waits.
        if request is None and not is_short and not in_main_thread():
            hand_off = HandOff(run, priority)
            try:
                queue = partial(self.pending.hand_off, hand_off, limit)
                if self.pending.with_room(priority, queue):
                    results = hand_off.results_by(self.semaphore, deadline_s, cancel)
                    return results, hand_off.run_s
            finally:
                self.pending.forget(hand_off)
        arguments = deadline_s, cancel, request, limit, priority, extra
        if self.pending.with_room(priority, partial(self.semaphore.acquire, *arguments)):
            return None
        assert request is not None
        return request.results or [], request.began_s

    def _abandonable(
        self,
        inputs: Any,
        timeout_s: float | None,
        cancel: CancelToken | None,
        priority: int,
        request_id: str,
    ) -> list[Tensor]:
        """Run a request that cannot be stopped in another thread, to be left to itself if late."""
        futures: list[RequestFuture] = []

        def work() -> list[Tensor]:
            # Without waiting for room, which the caller who waits anyway has no use for.
            when_full: WhenFull = "pass" if self._is_waiting else "raise"
            futures.append(
                self.submit(
                    inputs,
                    timeout_s,
                    cancel,
                    when_full,
                    priority=priority,
                    request_id=request_id,
                )
            )
            return futures[0].result()

        try:
            return undisturbed(work)
        except BaseException:
            for future in futures:  # a signal handler's exception ended the wait
                undisturbed(future.cancel)
            raise

    # -------------------------------------------------------------------------------- submitted

    def submit(
        self,
        inputs: Any,
        timeout_s: float | None,
        cancel: CancelToken | None,
        when_full: WhenFull | None = None,
        *,
        priority: int = 0,
        request_id: str = "",
    ) -> RequestFuture:
        """Queue a request. Raises QueueFull, ModelStateError, and for arguments but the inputs.

        when_full: None as the queue does.
        """
        if timeout_s is not None:
            timeout_s = _seconds(timeout_s)
        if cancel is not None:
            require("cancel", cancel, CancelToken)
        check(priority, request_id)
        make = RequestFuture if self.runnable.batcher is not None else self._futures
        future = make(self, inputs, timeout_s, cancel, *self._begun(priority, request_id))
        try:
            if self.runnable.batcher is not None:
                future.request = self.runnable.batcher.request(inputs, priority)
        except (EngineError, TypeError, ValueError) as error:
            if raised_by_handler(error):
                raise
            future.fail(error)
            return future
        try:
            if when_full is None:
                when_full = "wait" if self._is_waiting else "raise"
            return self.pending.submit(future, when_full)
        except QueueFull as error:
            self._recorder.refused()
            future.tell(error)
            raise
        except BaseException as error:  # it is closed; or a signal handler's
            future.tell(error)
            raise

    async def predict_async(
        self,
        inputs: Any,
        timeout_s: float | None,
        cancel: CancelToken | None,
        priority: int = 0,
        request_id: str = "",
    ) -> list[Tensor]:
        """Await the results of one request. It waits for its turn, never for room in the queue."""
        when_full: WhenFull = "pass" if self._is_waiting else "raise"
        return await awaited(
            self.submit(
                inputs, timeout_s, cancel, when_full, priority=priority, request_id=request_id
            )
        )

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
        """See Server."""
        if not self.can_stop:
            return self._run(request, inputs, None, None, options, observed)
        if timeout_s is None:
            return self._run(request, inputs, None, token, options, observed)
        try:
            return self._run(request, inputs, deadline_s, token, options, observed)
        except DeadlineExceeded as error:
            raise late(timeout_s) from error

    def ran(self) -> None:
        """See Server."""
        self._recorder.ran(1)

    def ended(self, outcome: str, came_s: float, admitted_s: float) -> None:
        """See Server."""
        self._recorder.ended(outcome, came_s, admitted_s, time.perf_counter())

    # ------------------------------------------------------------------------------------ nobody

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no request run: after those that came before, and before those that come later.

        Not for the main thread.
        """
        waiters = [_SlotWaiter() for _ in range(self.semaphore.slots)]
        try:
            for waiter in waiters:
                self.semaphore.enqueue(waiter, is_barrier=True)
            for waiter in waiters:
                waiter.has_come.acquire()
            yield
        finally:
            for waiter in waiters:
                if not self.semaphore.withdraw(waiter):
                    self.semaphore.release(waiter.owner)

    # ------------------------------------------------------------------------------------ the end

    def close(self, reason: str, finish: bool) -> None:
        """Take no more; let those that wait end, or fail them. Does not wait."""
        if not finish:
            self._refusal = reason
        self.pending.close(reason, finish)
        if not finish:
            self.runnable.abort()

    def join(self) -> None:
        """Wait until all requests but one of the calling thread have ended; free the model."""
        self.pending.join()
        while self.semaphore.is_used_by_others():
            time.sleep(_LOOK_S)
        self.runnable.close()

    # ---------------------------------------------------------------------------------- running

    def _run(
        self,
        request: Request | None,
        inputs: Any,
        deadline_s: float | None,
        cancel: CancelToken | None,
        options: PredictOptions | None,
        observed: ObservedRequest | None,
    ) -> list[Tensor]:
        """Run a request whose thread has a slot, and has still to release it."""
        results = self.runnable.run(request, inputs, None, deadline_s, cancel, options, observed)
        if request is None:
            self._recorder.ran(1)
        return results


class _SlotWaiter(CallbackWaiter):
    """A slot that nobody runs in. has_come: locked until it is had."""

    __slots__ = ("has_come",)

    def __init__(self) -> None:
        super().__init__()
        self.has_come = threading.Lock()
        self.has_come.acquire()

    def admitted(self) -> None:
        """See CallbackWaiter."""
        open_lock(self.has_come)

    def served(self) -> None:
        """See CallbackWaiter: it has no request."""


def _seconds(timeout_s: object) -> float:
    return min(require_seconds("timeout_s", timeout_s), threading.TIMEOUT_MAX)
