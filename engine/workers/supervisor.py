"""All workers of a runner: who gets which, and what is done when one is lost.

A part of a request goes to a worker that is free, first come, first served. Where its worker is
lost, it goes to another one; where that is lost too, to one that has run nothing else. A part
that has ended three workers is refused, so that it ends no more of them.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.errors import Cancelled, DeadlineExceeded, ModelError, ModelStateError, RequestRefused
from engine.host.fair_semaphore import FairSemaphore
from engine.host.lack import explained
from engine.workers.protocol import MOST_LOST, Lost
from engine.workers.watchdog import check
from engine.workers.weights import Weights
from engine.workers.worker_slot import SlotLease, WorkerSlot, WorkerState

if TYPE_CHECKING:
    from engine.report.observing.request import ObservedRequest
    from engine.types import CancelToken, Device, Progress, Value
    from engine.workers.protocol import Assignment, Ready, Start, Worker

_LOOK_S = 0.05
_NO_UPDATE = "update weight failed! Error is "


class Supervisor:
    """Workers for the devices of some assignments. Any thread may call any method.

    hang_s: a run that takes longer has hung, and its worker is ended; None for any time.
    retries: parts that were begun again. count: workers that there are, or will be again; at least
    1.
    """

    def __init__(
        self, assignments: Sequence[Assignment], start: Start, hang_s: float | None = None
    ) -> None:
        self._semaphore = FairSemaphore(len(assignments))  # of parts: first come, first served
        self.retries = 0
        self.hang_s = hang_s
        self.path = assignments[0].model_path
        self._lock = threading.RLock()
        self._sleepers: dict[threading.Lock, None] = {}  # released when anything has changed
        self._cautious: list[weakref.ref[SlotLease]] = []  # wait for workers that have run nothing
        self._reason = ""  # it is closed
        self.count = len(assignments)
        self._weights = Weights()
        with explained(f"{self.path}: a worker cannot be started"):
            self.slots = [
                WorkerSlot(task, start, self._lock, self._state_changed, lambda: self._weights)
                for task in assignments
            ]

    # --------------------------------------------------------------------------------- building

    def build(self, progress: Progress | None, cancel: CancelToken | None) -> Ready:
        """Start all workers, and return when all have built.

        progress: called with phases of each worker and with "workers", how many are ready.
        Raises what the first build that failed raised; then nothing is left running.
        """
        steps = None if progress is None else _Steps(progress)
        shown = -1
        try:
            for slot in self.slots:
                with explained(f"{self.path}: {slot} cannot be started"):
                    slot.begin(None if steps is None else steps.of(slot))
            while (done := self._built()) < len(self.slots):
                if cancel is not None:
                    cancel.check()
                if steps is not None and done != shown:
                    shown = done
                    steps("workers", done, len(self.slots))
                self._sleep(partial(self._has_built_other_than, done))
            if steps is not None:
                steps("workers", done, done)
        except BaseException:
            self.close("the runner was not built")
            raise
        ready = self.slots[0].ready
        assert ready is not None, "its state says so"
        for slot in self.slots:
            if slot.assignment.data_files != ready.data_files:
                self.close("the runner was not built")
                raise ModelError(
                    f"{self.path}: its data files were changed while the workers built it; build "
                    "the runner again when they are complete",
                    self.path,
                )
        return ready

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of all workers, in their order."""
        return tuple(dict.fromkeys(device for slot in self.slots for device in slot.devices))

    def _has_built_other_than(self, count: int) -> bool:
        return self._built() != count

    def _built(self) -> int:
        """Return how many workers have built; raise what a build raised that is not tried again."""
        for slot in self.slots:
            if slot.state is WorkerState.GIVEN_UP:
                error = slot.error
                if isinstance(error, Lost) or error is None:
                    text = f"{self.path}: {slot} {error} while it built the model"
                    raise ModelError(text, self.path)
                raise error
        return sum(slot.state is WorkerState.READY for slot in self.slots)

    # ---------------------------------------------------------------------------------- running

    def run(
        self,
        values: Sequence[Value],
        deadline_s: float | None,
        cancel: CancelToken | None,
        observed: ObservedRequest | None = None,
    ) -> list[Value]:
        """Run the model on a worker, in its turn. observed: the request, which notes its devices.

        Raises what the model raises, DeadlineExceeded, Cancelled; RequestRefused where it ends
        every worker that runs it, ModelError where no worker is left, ModelStateError where it is
        closed.
        """
        self._check(deadline_s, cancel)  # a run that is quick would be over before it is stopped
        lost: list[str] = []
        lease = SlotLease()
        self._semaphore.acquire(deadline_s, cancel)
        try:
            while True:
                slot = self._take(lease, len(lost) == MOST_LOST - 1, deadline_s, cancel)
                try:
                    results = slot.run(values, deadline_s, cancel, self.hang_s)
                    if observed is not None:
                        observed.ran_on(slot.devices)
                    return results
                except Lost as error:
                    if error.had_begun:
                        lost.append(f"{slot} {error}")
                slot.release(lease)
                self._changed()
                self._check(deadline_s, cancel)
                if len(lost) == MOST_LOST:
                    raise self._refused(lost)
                self.retries += 1
        finally:
            try:
                self._leave(lease)
            except BaseException:
                self._leave(lease)  # for a signal handler that raised in the first
                raise

    def _leave(self, lease: SlotLease) -> None:
        """Release the worker slot that is held, and the semaphore."""
        for slot in self.slots:
            slot.release(lease)
        if self._sleepers:
            self._changed()
        self._semaphore.release()

    def _check(self, deadline_s: float | None, cancel: CancelToken | None) -> None:
        """Raise what is to be said of a request that is not served any more."""
        if self._reason:
            raise ModelStateError(f"predict failed! {self._reason}")
        if deadline_s is None and cancel is None:
            return
        try:
            check(deadline_s, cancel)
        except Cancelled as error:
            error.args = (f"predict failed! {error}",)
            raise
        except DeadlineExceeded as error:
            why = self.why_none_is_ready()
            error.args = (f"predict failed! {error}{'; ' * bool(why)}{why}",)
            raise

    def why_none_is_ready(self) -> str:
        """Say why each worker is away; "" where one is ready, whoever holds it."""
        if any(slot.is_ready for slot in self.slots):
            return ""
        return f"no worker is ready: {self._reasons()}"

    def _reasons(self) -> str:
        return "; ".join(f"{slot} {slot.why or 'starts'}" for slot in self.slots)

    def _refused(self, lost: Sequence[str]) -> RequestRefused:
        return RequestRefused(
            f"predict failed! the request has ended {len(lost)} workers, the last of which ran "
            f"nothing else, and is not tried again: {'; '.join(lost)}",
            self.path,
        )

    # --------------------------------------------------------------------------------- updates

    @contextmanager
    def reserved(self, slots: Sequence[WorkerSlot]) -> Iterator[list[Worker | None]]:
        """Keep requests from slots and wait for those there; yield the workers that are ready.

        None for a slot that has none. Raises ModelStateError where this is closed.
        """
        lease = SlotLease()
        try:
            for slot in slots:
                slot.is_reserved = True
            while self._reason or any(slot.is_held for slot in slots):
                if self._reason:
                    raise ModelStateError(f"{_NO_UPDATE}{self._reason}")
                self._sleep(lambda: not any(slot.is_held for slot in slots))
            with self._lock:
                ready = [slot for slot in slots if slot.is_ready]
                for slot in ready:
                    slot.hold(lease)
            yield [slot.worker if slot in ready else None for slot in slots]
        finally:
            for slot in slots:
                slot.is_reserved = False
                slot.release(lease)
            self._changed()

    def begin_with(self, weights: Mapping[str, Any]) -> list[WorkerSlot]:
        """Have each worker that turns ready from now on have these weights; return the others."""
        with self._lock:
            number, values = self._weights
            self._weights = Weights(number + 1, {**values, **weights})
            return [slot for slot in self.slots if slot.is_ready]

    def wait_for_one(self) -> None:
        """Wait until a worker is free. Raises ModelError where none is left, ModelStateError."""
        lease = SlotLease()
        try:
            self._take(lease, False, None, None).release(lease)
        except (ModelError, ModelStateError) as error:
            text = str(error).removeprefix("predict failed! ")
            error.args = (_NO_UPDATE + text, *error.args[1:])
            raise
        self._changed()

    # ----------------------------------------------------------------------------------- slots

    def _take(
        self,
        lease: SlotLease,
        is_fresh: bool,
        deadline_s: float | None,
        cancel: CancelToken | None,
    ) -> WorkerSlot:
        """Take a slot whose worker is ready, waiting for one.

        is_fresh: one whose worker has run nothing yet. Nobody else gets such a one meanwhile.
        """
        if not is_fresh and not self._cautious:  # nearly always
            with self._lock:
                for slot in self.slots:
                    if slot.is_free:
                        slot.hold(lease)
                        return slot
        if is_fresh:
            lease.waits_for_fresh = True
            with self._lock:
                self._cautious = [*self._waiting_for_fresh(), weakref.ref(lease)]
        found: list[WorkerSlot] = []
        while not found:
            self._check(deadline_s, cancel)
            self._sleep(lambda: self._took(lease, found), deadline_s)
        return found[0]

    def _took(self, lease: SlotLease, found: list[WorkerSlot]) -> bool:
        with self._lock:
            self._cautious = self._waiting_for_fresh()
            free = fitting = [slot for slot in self.slots if slot.is_free]
            if self._cautious:
                fitting = [slot for slot in free if (not slot.runs) == lease.waits_for_fresh]
            if fitting:
                fitting[0].hold(lease)
                lease.waits_for_fresh = False
                found.append(fitting[0])
                return True
            is_coming = any(
                s.state in (WorkerState.STARTING, WorkerState.PAUSED) for s in self.slots
            )
            if lease.waits_for_fresh and free and not is_coming:
                free[0].end("was ended for a request that needs a worker which has run nothing")
        if all(slot.state is WorkerState.GIVEN_UP for slot in self.slots):
            raise ModelError(
                f"predict failed! no worker is left, and none is started over files that have "
                f"changed: {self._reasons()}; put them back, or build another runner",
                self.path,
            )
        return False

    def _waiting_for_fresh(self) -> list[weakref.ref[SlotLease]]:
        there = ((reference, reference()) for reference in self._cautious)
        return [reference for reference, lease in there if lease and lease.waits_for_fresh]

    def _sleep(self, is_over: Callable[[], bool], deadline_s: float | None = None) -> None:
        """Wait until something is so that others tell of by `_changed`, or for a moment."""
        wake = threading.Lock()
        wake.acquire()
        self._sleepers[wake] = None
        try:
            if not is_over():
                left_s = _LOOK_S
                if deadline_s is not None:
                    left_s = min(left_s, max(0.0, deadline_s - time.monotonic()))
                wake.acquire(timeout=left_s)
        finally:
            self._sleepers.pop(wake, None)

    def _state_changed(self) -> None:
        """Note that a slot has another state."""
        self.count = max(1, sum(slot.state is not WorkerState.GIVEN_UP for slot in self.slots))
        self._changed()

    def _changed(self) -> None:
        if self._sleepers:
            for wake in list(self._sleepers):
                with suppress(RuntimeError):  # it is awake
                    wake.release()

    # ------------------------------------------------------------------------------------ the end

    def abort(self, reason: str) -> None:
        """Fail what runs and what waits for a worker, and close. Does not wait."""
        self._reason = self._reason or reason
        for slot in self.slots:
            slot.close(reason)
        self._changed()

    def close(self, reason: str) -> None:
        """Close all workers and wait until nothing of them is left. Twice does nothing."""
        self.abort(reason)
        for slot in self.slots:
            slot.join()


class _Steps:
    """Progress of several workers, told by their threads one after the other."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        with self._lock:
            self._progress(phase, done, total)

    def of(self, slot: WorkerSlot) -> Progress:
        """Return what the build of one worker calls."""
        return lambda phase, done, total: self(f"{slot}: {phase}", done, total)
