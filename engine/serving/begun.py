"""Requests whose runs no thread waits for: the backend begins them, and says when they have ended.

A few workers begin one after the other by engine_predict_async. Its `done` may be called in a
thread of the runtime, so that only queues the end, and a worker does the rest: it gives the context
back, makes the results, and tells those who wait.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.errors import DeadlineExceeded, ModelError, ModelStateError
from engine.host import deadlines, fork
from engine.host.interrupts import undisturbed
from engine.runtime.asked import USUAL, Stoppable, options
from engine.runtime.extensions import as_served
from engine.serving.request_future import RequestFuture, late
from engine.tensor.values import tensors_of
from engine.types import PredictOptions

if TYPE_CHECKING:
    from engine.host.fair_semaphore import FairSemaphore
    from engine.model.recipe import Built
    from engine.model.state import ModelState
    from engine.plan import Plan
    from engine.plan.contexts import Lease
    from engine.runtime.thread_state import ThreadState
    from engine.serving.request_future import Pending, Server
    from engine.serving.threads import Admission, Tell
    from engine.tensor import Tensor
    from engine.types import Values

WORKERS = 2
GRACE_S = 10.0
"""Time that a run may take to end after its deadline, or after it was cancelled."""


def can_begin(built: Built) -> bool:
    """Return whether the predicts of a built model are the backend's to begin and to end."""
    return built.predict is built.plan.predict and built.plan.begin is not None


class BegunFuture(RequestFuture):
    """A submitted request, which the backend runs without a thread of the queue."""

    most_workers = WORKERS

    def __init__(self, state: ModelState, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._model = state  # Future has a `_state`
        self._is_taken = False  # by a worker: until then it has not begun, slot or not

    def run_admitted(self, semaphore: FairSemaphore, waiter: Admission, tell: Tell | None) -> None:
        """See Work: the run has begun on return, and keeps the waiter's slot to its end."""
        if tell is not None:
            tell()
        self._is_taken = True
        thread = self._thread(semaphore)
        if thread is None:
            self._run_here(semaphore, waiter)
            return
        server, pending = self._server, self._pending
        if server is None or pending is None or self.done():
            self._waiter = None  # where it ended beside the next lines
            semaphore.release(waiter.owner)
            return
        run = BegunRun(self, thread, server, pending, waiter.owner)
        if not pending.begin(run, self):
            semaphore.release(waiter.owner)
        elif not run.begin(self.inputs):  # the model was built anew meanwhile
            pending.landed(run)
            self._run_here(semaphore, waiter)
        del self, waiter, run  # the traceback of an error has this frame: no cycle

    def is_of_another(self, plan: Plan) -> bool:
        """Return whether the model has another plan by now."""
        return self._model.plan not in (None, plan)

    def _run_here(self, semaphore: FairSemaphore, waiter: Admission) -> None:
        """Run it in the worker, which it keeps."""
        pending = self._pending
        if pending is not None:
            pending.keep_worker()
        super().run_admitted(semaphore, waiter, None)

    def _withdrawn(self) -> bool:
        return super()._withdrawn() or not self._is_taken

    def _thread(self, semaphore: FairSemaphore) -> ThreadState | None:
        """Return the worker's state; None where its predicts are run, not begun.

        So it is where the model is closed, or was built anew and its predicts have other slots.
        """
        state = self._model
        thread: ThreadState | None = getattr(state.threads, "state", None)
        try:
            thread = thread or as_served(state.open_thread)
            built = state.require_built()
        except ModelStateError:
            return None
        plan = thread.plan
        if built.plan is not plan or not can_begin(built):
            return None
        return thread if plan.pool.semaphore in (None, semaphore) else None


class BegunRun(Stoppable):
    """A run from its begin to its end, which is told once.

    owner: of its slot. is_given_up: its backend has not ended it in time, and may still use its
    context.
    """

    def __init__(
        self,
        future: BegunFuture,
        thread: ThreadState,
        server: Server,
        pending: Pending,
        owner: int,
    ) -> None:
        super().__init__()
        self.is_given_up = False
        self._future = future
        self._thread = thread
        self._server = server
        self._pending = pending
        self._owner = owner
        self._timeout_s = future.timeout_s if server.can_stop else None
        self._watch = future.token.watch(self._stop) if server.can_stop else None
        self._inputs: Values = ()  # alive as long as the backend reads them
        self._is_of_input = False  # its error: raised as it is
        self._lease: Lease | None = None
        self._overdue: list[_Overdue] = []
        self._telling = threading.Lock()  # held by who tells its end, for ever

    def begin(self, inputs: Any) -> bool:
        """Begin, in a worker. An exception here is the end too.

        False where the model was built anew meanwhile, and this plan is closed.
        """
        thread, deadline_s = self._thread, None
        begin = thread.plan.begin
        assert begin is not None
        try:
            self._inputs = thread.take(inputs)
        except BaseException as error:
            self._telling.acquire()
            self._is_of_input = True
            self.end(None, error)
            return True
        try:
            self._lease = lease = thread.pool.lend(self._owner)
            context = lease.context
            if self._watch is not None:
                self._may_stop(context)
                self._watch.__enter__()
            if self._timeout_s is not None:
                deadline_s = self._future.deadline_s
                self._limit(deadline_s)
            arguments: tuple[Any, ...] = (context, self._inputs, None, deadline_s, self.done)
            if thread.plan.backend.begin_with is not None:
                arguments += (self._options(),)
            begin(*arguments)
        except BaseException as error:
            is_closed = self._lease is None and isinstance(error, ModelStateError)
            if is_closed and self._future.is_of_another(thread.plan):
                return False
            if self._telling.acquire(blocking=False):
                self.end(None, error)
            else:
                self._log("raised an error after it had called done", error)
        return True

    def _options(self) -> PredictOptions:
        wanted = self._future.options or USUAL
        return options(wanted.priority, wanted.id, self._watch is not None)

    def done(self, values: Values | None, error: BaseException | None) -> None:
        """See engine.types.Done."""
        if self._telling.acquire(blocking=False):
            self._pending.workers.admitted.put(_End(self, values, error))
        elif self.is_given_up:
            self._log(f"called done more than {GRACE_S:g} s after it was to stop", error)
        else:
            self._log("called done twice, or after it had raised", error)

    def _log(self, fault: str, error: BaseException | None) -> None:
        logging.getLogger("engine").error(
            "backend %r is at fault: its engine_predict_async %s; that is ignored",
            self._thread.plan.backend.name,
            fault,
            exc_info=error,
        )

    # ------------------------------------------------------------------------- what may stop it

    def _stopping(self) -> None:
        self._limit(time.monotonic())

    def _limit(self, moment_s: float) -> None:
        """Wait no longer for its end than some time after `moment_s`, when it is to stop."""
        overdue = _Overdue(self, moment_s + GRACE_S)
        self._overdue.append(overdue)
        if self._telling.locked():  # who tells its end may not have seen it
            overdue.run = None
        deadlines.watch(overdue)

    def give_up(self) -> None:
        """End it without its backend, which has not ended it in time."""
        if not self._telling.acquire(blocking=False):
            return
        self.is_given_up = True
        name = self._thread.plan.backend.name
        error = ModelError(
            f"backend {name!r} is at fault: it has not called done {GRACE_S:g} s after the predict "
            "was to stop; its context stays open",
            at_fault=name,
        )
        logging.getLogger("engine").error("%s", error)
        self._pending.workers.admitted.put(_End(self, None, error))

    # ------------------------------------------------------------------------------ how it ends

    def end(self, values: Values | None, error: BaseException | None) -> None:
        """Give back the context, tell those who wait, and give back the slot. In a worker."""
        future, pending = self._future, self._pending
        try:
            self._let_go()
            try:
                results = self._results(values, error)
            except BaseException as failure:
                future.fail(failure)
            else:
                self._server.ran()
                future.finish(results)
        finally:
            pending.semaphore.release(self._owner)
            pending.landed(self)
            del self._future, self._server  # a backend may keep `done`
            del self, values, error, future  # the traceback of an error has this frame: no cycle

    def _let_go(self) -> None:
        """Stop nothing any more, and give the context back."""
        for overdue in self._overdue:
            overdue.run = None
        self._is_through()
        if self._watch is not None:
            self._watch.__exit__(None, None, None)
            self._watch = None  # no cycle: it has `_stop`
        inputs, lease, self._inputs = self._inputs, self._lease, ()
        if lease is None:
            return
        if self.is_given_up:
            fork.never_free(lease, inputs)  # its backend may still use them
            return
        pool = self._thread.pool
        undisturbed(partial(pool.discard if self.is_cancelled else pool.take_back, lease))

    def _results(self, values: Values | None, error: BaseException | None) -> list[Tensor]:
        """Return the results as predict does, or raise what it raises."""
        thread = self._thread
        try:
            if error is not None:
                raise error
            if not isinstance(values, list | tuple) or len(values) != thread.output_count:
                got = type(values) if values is None else f"{len(values)} values"
                raise TypeError(f"engine_predict_async gave {got} for {thread.output_count}")
            if thread.is_plain:
                return tensors_of(values, thread.descriptions)
            return thread.give(values, None)
        except BaseException as failure:
            if self._is_of_input:
                thread.refuse(failure)
                raise
            try:
                thread.fail(failure, self._timeout_s)
            except DeadlineExceeded as expired:
                if self._timeout_s is None:
                    raise
                raise late(self._timeout_s) from expired
        finally:
            del self, error  # as in `end`


class _End:
    """The end of a run, for a worker: see Ready and Work."""

    def __init__(self, run: BegunRun, values: Values | None, error: BaseException | None) -> None:
        self.once = threading.Lock()
        self._told = run, values, error

    @property
    def work(self) -> _End:
        """The work that a worker runs."""
        return self

    def run_admitted(self, semaphore: FairSemaphore, waiter: object, tell: Tell | None) -> None:
        """See Work."""
        if tell is not None:
            tell()
        run, values, error = self._told
        run.end(values, error)
        del self, run, values, error


class _Overdue:
    """See engine.host.deadlines, which keeps it until the moment comes. run: None when done."""

    def __init__(self, run: BegunRun, deadline_s: float) -> None:
        self.run: BegunRun | None = run
        self.deadline_s = deadline_s

    @property
    def done(self) -> bool:
        """True where it has ended."""
        return self.run is None

    def expire(self) -> None:
        """Give it up."""
        run = self.run
        if run is not None:
            run.give_up()
