"""A built model and its semaphore: where all requests for it meet, first come, first served.

A thread that finds a free slot runs the model itself. Who must wait is served by a worker; what is
submitted waits in the same queue.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np

from engine.config.checks import require
from engine.errors import DeadlineExceeded, EngineError, ModelStateError, QueueFull
from engine.host.cpus import usable_cpus
from engine.host.interrupts import raised_by_handler, undisturbed
from engine.model.model import Model, model_state
from engine.plan.fair_semaphore import CallbackWaiter, FairSemaphore
from engine.runtime import fitting
from engine.serving.batchable import Batching
from engine.serving.batching import Batcher, Request
from engine.serving.statistics import Recorder
from engine.serving.submission import Job, Submitter, WhenFull, awaited, outcome_of
from engine.serving.threads import Turn, open_lock
from engine.tensor import Tensor
from engine.types import CancelToken, Capability

_LOOK_S = 0.002
# A run that takes less is over before a worker is awake.
_SHORT_RUN_S = 200e-6


class Runnable(Protocol):
    """What a lane runs: a built model, or many that behave as one.

    semaphore: before its runs. can_stop: see Server.
    """

    semaphore: FairSemaphore
    can_stop: bool

    def require_open(self) -> None:
        """Raise ModelStateError where nothing can run."""

    def predict(
        self,
        inputs: Any,
        outputs: list[Tensor] | None = None,
        *,
        timeout_s: float | None = None,
        cancel: CancelToken | None = None,
    ) -> list[Tensor]:
        """See Model.predict."""

    def values(self, inputs: Any) -> list[Any]:
        """Return inputs checked, in the model's order, for a run that others share."""

    def close(self) -> None:
        """Free what runs."""


R = TypeVar("R", bound=Runnable)


class BuiltModel:
    """A model with as many slots as its pool of contexts has, or else this machine CPUs.

    predict: the model's, where that is not to be held.
    """

    def __init__(self, model: Model, predict: Callable[..., list[Tensor]] | None = None) -> None:
        self.model = model
        self.predict = predict or model.predict
        plan = model_state(model).require_built().plan
        self.semaphore = plan.pool.semaphore or FairSemaphore(usable_cpus())
        self.can_stop = not any(
            plan.lacks(capability)[0]
            for capability in (Capability.DEADLINES, Capability.CANCEL_PREDICT)
        )

    def require_open(self) -> None:
        """See Runnable."""
        model_state(self.model).require_built("predict")

    def values(self, inputs: Any) -> list[Any]:
        """See Runnable."""
        return fitting.values(model_state(self.model).require_built().signature, inputs, ())

    def close(self) -> None:
        """See Runnable."""
        self.model.close()


def of_model(model: Model) -> Lane[BuiltModel]:
    """Return the queue of a model's own requests: see Model.predict_async."""
    # A proxy: a model that nobody has any more is freed at once, not by a collector.
    proxy = cast("Model", weakref.proxy(model))

    def predict(*arguments: Any, **options: Any) -> list[Tensor]:
        return proxy.predict(*arguments, **options)

    return Lane(BuiltModel(proxy, predict), Recorder(), 0)


class Lane(Generic[R]):
    """The requests for one model.

    limit: how many requests may wait. is_waiting: what comes then waits as well; else QueueFull.
    """

    def __init__(
        self, runnable: R, recorder: Recorder, limit: int, is_waiting: bool = True
    ) -> None:
        self.runnable = runnable
        self.semaphore, self.can_stop = runnable.semaphore, runnable.can_stop
        self._recorder = recorder
        self._limit = limit
        self._is_waiting = is_waiting
        self._batcher: Batcher | None = None
        self._run_s = _SHORT_RUN_S  # how long the last run took
        self._refusal = ""  # for threads that wait, when it is their turn
        self.submitter = Submitter(self.semaphore, limit)

    def batch(self, batching: Batching) -> None:
        """Have requests share runs from now on."""
        if batching.most > 1:
            self._batcher = Batcher(self.semaphore, batching, self._recorder)

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
    ) -> list[Tensor]:
        """Run the model, in the calling thread where a slot is free; see Model.predict."""
        self.runnable.require_open()  # in a forked child the semaphore may be full for ever
        semaphore = self.semaphore
        if cancel is not None:
            require("cancel", cancel, CancelToken)
        is_limited = timeout_s is not None or cancel is not None
        if is_limited and not self.can_stop and not outputs:
            return self._abandonable(inputs, timeout_s, cancel)
        semaphore.refuse_nested()
        request = None
        came_s = time.perf_counter()
        admitted_s = 0.0
        deadline_s = None if timeout_s is None else time.monotonic() + _seconds(timeout_s)
        try:
            try:
                request = self._request(inputs) if not outputs else None
                served = None
                if _is_main_thread() or not semaphore.try_acquire(request):
                    served = self._served(request, inputs, outputs, deadline_s, cancel)
                if served is not None:
                    results, admitted_s = served
                else:
                    if self._refusal:
                        raise ModelStateError(self._refusal)
                    admitted_s = time.perf_counter()
                    semaphore.reuse_slot()
                    results = self._run(request, inputs, outputs, deadline_s, cancel)
            finally:
                try:
                    semaphore.release()
                except BaseException:
                    semaphore.release()  # for a signal handler that raised in the first
                    raise
        except QueueFull:
            self._recorder.refused()
            raise
        except BaseException as error:
            self._recorder.ended(outcome_of(error), came_s, admitted_s, time.perf_counter())
            if isinstance(error, DeadlineExceeded) and error.timeout_s != timeout_s:
                raise _late(timeout_s) from error
            raise
        self._recorder.ended("completed", came_s, admitted_s, time.perf_counter())
        return results

    def _served(
        self,
        request: Request | None,
        inputs: Any,
        outputs: list[Tensor] | None,
        deadline_s: float | None,
        cancel: CancelToken | None,
    ) -> tuple[list[Tensor], float] | None:
        """Wait for the turn of a request; return the results, and when its run began.

        None where no other thread runs it: the calling thread has a slot then.
        """
        limit = 0 if self._is_waiting else self._limit
        if self._run_s >= _SHORT_RUN_S and not _is_main_thread():

            def run() -> list[Tensor]:
                if self._refusal:
                    raise ModelStateError(self._refusal)
                return self._run(request, inputs, outputs, deadline_s, cancel)

            turn = Turn(run, request)
            try:
                if self.submitter.take_turn(turn, limit):
                    return turn.wait(self.semaphore, deadline_s, cancel), turn.run_s
            finally:
                self.submitter.end_turn(turn)
        if self.semaphore.acquire(deadline_s, cancel, request, limit):
            return None
        assert request is not None
        return request.results or [], request.began_s

    def _abandonable(
        self, inputs: Any, timeout_s: float | None, cancel: CancelToken | None
    ) -> list[Tensor]:
        """Run a request that cannot be stopped in another thread, to be left to itself if late."""
        jobs: list[Job] = []

        def work() -> list[Tensor]:
            # Without waiting for room, which the caller who waits anyway has no use for.
            when_full: WhenFull = "pass" if self._is_waiting else "raise"
            jobs.append(self.submit(inputs, timeout_s, cancel, when_full))
            return jobs[0].result()

        try:
            return undisturbed(work)
        except BaseException:
            for job in jobs:  # a signal handler's exception ended the wait
                undisturbed(job.cancel)
            raise

    # -------------------------------------------------------------------------------- submitted

    def submit(
        self,
        inputs: Any,
        timeout_s: float | None,
        cancel: CancelToken | None,
        when_full: WhenFull | None = None,
    ) -> Job:
        """Queue a request. Raises QueueFull, ModelStateError, and for arguments but the inputs.

        when_full: None as the lane does.
        """
        self.runnable.require_open()
        if timeout_s is not None:
            timeout_s = _seconds(timeout_s)
        if cancel is not None:
            require("cancel", cancel, CancelToken)
        job = Job(self, inputs, timeout_s, cancel)
        try:
            job.request = self._request(inputs)
        except (EngineError, TypeError, ValueError) as error:
            if raised_by_handler(error):
                raise
            job.fail(error)
            return job
        try:
            if when_full is None:
                when_full = "wait" if self._is_waiting else "raise"
            return self.submitter.submit(job, when_full)
        except QueueFull:
            self._recorder.refused()
            raise

    async def predict_async(
        self, inputs: Any, timeout_s: float | None, cancel: CancelToken | None
    ) -> list[Tensor]:
        """Await the results of one request. It waits for its turn, never for room in the queue."""
        return await awaited(
            self.submit(inputs, timeout_s, cancel, "pass" if self._is_waiting else "raise")
        )

    def serve(
        self,
        request: Request | None,
        inputs: Any,
        timeout_s: float | None,
        deadline_s: float,
        token: CancelToken,
    ) -> list[Tensor]:
        """See Server."""
        if not self.can_stop:
            return self._run(request, inputs, None, None, None)
        if timeout_s is None:
            return self._run(request, inputs, None, None, token)
        try:
            return self._run(request, inputs, None, deadline_s, token)
        except DeadlineExceeded as error:
            raise _late(timeout_s) from error

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
                self.semaphore.enqueue(waiter)
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
        self.submitter.close(reason, finish)

    def join(self) -> None:
        """Wait until all requests but one of the calling thread have ended; free the model."""
        self.submitter.join()
        while self.semaphore.is_used_by_others():
            time.sleep(_LOOK_S)
        self.runnable.close()

    # ---------------------------------------------------------------------------------- running

    def _run(
        self,
        request: Request | None,
        inputs: Any,
        outputs: list[Tensor] | None,
        deadline_s: float | None,
        cancel: CancelToken | None,
    ) -> list[Tensor]:
        """Run a request whose thread has a slot, and has still to release it."""
        # What a signal handler raises in the main thread must not meet others' requests.
        if self._batcher is None or request is None or _is_main_thread():
            results = self._predict(inputs, outputs, deadline_s, cancel)
        else:
            shared = self._batcher.run_with_others(
                request,
                lambda arrays: self._predict(list(arrays), None, deadline_s, cancel),
                deadline_s,
                cancel,
            )
            if shared is not None:
                return shared
            with self.semaphore.keeping_slot():
                results = self._predict(inputs, outputs, deadline_s, cancel)
                self._batcher.served(1)
        self._recorder.ran(request.size if request is not None else 1)
        return results

    def _predict(
        self,
        inputs: Any,
        outputs: list[Tensor] | None,
        deadline_s: float | None,
        cancel: CancelToken | None,
    ) -> list[Tensor]:
        left_s = None if deadline_s is None else max(1e-6, deadline_s - time.monotonic())
        begin_s = time.perf_counter()
        results = self.runnable.predict(inputs, outputs, timeout_s=left_s, cancel=cancel)
        self._run_s = time.perf_counter() - begin_s
        return results

    def _request(self, inputs: Any) -> Request | None:
        """Return a request that may be batched; None where there is no batching."""
        if self._batcher is None:
            return None
        values = self.runnable.values(inputs)
        if not all(isinstance(value, np.ndarray) for value in values):
            return None
        return Request(values, self._batcher.batching)


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


def _is_main_thread() -> bool:
    """Return whether this is where signal handlers run."""
    return threading.get_ident() == threading.main_thread().ident


def _seconds(timeout_s: object) -> float:
    number = isinstance(timeout_s, int | float | np.integer | np.floating)
    if not number or isinstance(timeout_s, bool):
        raise TypeError(f"timeout_s must be a number of seconds, but got {type(timeout_s)}")
    assert isinstance(timeout_s, int | float | np.integer | np.floating)
    if not timeout_s > 0:
        raise ValueError(f"timeout_s must be above 0 s, but got {timeout_s}")
    return float(min(timeout_s, threading.TIMEOUT_MAX))


def _late(timeout_s: float | None) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"predict failed! it took longer than timeout_s, {timeout_s:g} s, waiting included; give "
        "it more time, or leave timeout_s out",
        timeout_s,
    )
