"""One of a runner's devices, and the thread that sees to it that a worker serves it.

The thread starts the worker, has it build the model, waits for its end, and begins anew: at once
after a worker that was of use, after pauses of at most a second where starts fail, for as long as
the runner lives. Only over files that have changed no worker is started, until they are back.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from engine.errors import one_line
from engine.host.interrupts import raised_by_handler
from engine.workers.protocol import Lost
from engine.workers.watchdog import Watchdog
from engine.workers.weights import catch_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.types import CancelToken, Device, Progress, Value
    from engine.workers.protocol import Assignment, Ready, Start, Worker
    from engine.workers.weights import Weights

FIRST_STARTS = 2
"""The number of starts of a device's first worker, if it dies while it builds."""
_PAUSE_S = 0.1  # after the first start that failed; doubled after each
_LONGEST_PAUSE_S = 1.0  # a device is back soon after what kept it away has passed
_HEALTHY_S = 1.0  # a worker that ends sooner and has run nothing counts as a start that failed
_LOOK_S = 0.5  # how often a worker without a sentinel is asked whether it has ended

log = logging.getLogger("engine")


class WorkerState(StrEnum):
    """WorkerState of a device's worker."""

    STARTING = "starting"  # it starts, or builds the model
    READY = "ready"
    PAUSED = "paused"  # the last start failed; the next comes soon
    GIVEN_UP = "given up"  # no start: the first ones failed, or the files have changed
    CLOSED = "closed"


class SlotLease:
    """A request's part, for as long as it exists: a slot that a dead one holds is free.

    waits_for_fresh: for a worker that has run nothing yet.
    """

    waits_for_fresh = False


class WorkerSlot:
    """A device with its worker, one after the other.

    lock: held by who holds a slot, and while its state changes. changed: called, by its thread,
    after that. error: what the last start failed with. restarts: workers that took the place of
    another. runs: that the present worker has begun. weights: those that a worker is to have.
    is_reserved: nobody may take it who does not hold it.
    """

    def __init__(
        self,
        assignment: Assignment,
        start: Start,
        lock: threading.RLock,
        changed: Callable[[], None],
        weights: Callable[[], Weights],
    ) -> None:
        self.assignment = assignment
        self.state = WorkerState.STARTING
        self.error: BaseException | None = None
        self.ready: Ready | None = None
        self.restarts = 0
        self.runs = 0
        self.worker: Worker | None = None
        self._start = start
        self._lock = lock
        self._changed = changed
        self._weights = weights
        self.is_reserved = False
        self._lease: Callable[[], SlotLease | None] = _nobody
        self._reason = ""  # it is to be closed
        self._is_lost = False  # who ran the worker has seen it end
        self._was_ready = False
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._thread = threading.Thread(
            target=self._keep, name=f"engine-worker-{assignment.place}", daemon=True
        )

    def __str__(self) -> str:
        return f"worker {self.assignment.place} (device {self.assignment.device_id})"

    @property
    def pid(self) -> int:
        """The number of the worker's process, 0 where there is none."""
        worker = self.worker
        return 0 if worker is None else worker.pid

    @property
    def devices(self) -> Sequence[Device]:
        """The devices that its worker has said it runs on, the target's first.

        On the host one is a group of CPUs: it has the number that the user gave.
        """
        return () if self.ready is None else self.ready.devices

    @property
    def shown_state(self) -> str:
        """The state, "busy" for a ready worker that somebody holds."""
        if self.state is WorkerState.READY and not self.is_free:
            return "busy"
        return str(self.state)

    def begin(self, progress: Progress | None) -> None:
        """Start the first worker; `progress` is for its build."""
        self._progress = progress
        self._thread.start()

    # ------------------------------------------------------------------------- for who holds it

    @property
    def is_free(self) -> bool:
        """True where a worker is ready and nobody holds it."""
        # The end of the worker is not asked for: that takes as long as all else here, and who
        # runs it, or the thread, sees it.
        return (
            self.state is WorkerState.READY
            and not self._is_lost
            and not self.is_reserved
            and self._lease() is None
        )

    @property
    def is_ready(self) -> bool:
        """True where a worker is ready, whoever holds it."""
        return self.state is WorkerState.READY and not self._is_lost

    @property
    def is_held(self) -> bool:
        """True where somebody holds a worker that is ready."""
        return self.is_ready and self._lease() is not None

    def hold(self, lease: SlotLease) -> None:
        """Take it, with the lock held."""
        self._lease = weakref.ref(lease)

    def release(self, lease: SlotLease) -> None:
        """Let go of it, where `lease` has it; twice does nothing."""
        if self._lease() is not lease:
            return
        self._lease = _nobody
        if self._is_lost:
            self.wake()

    def run(
        self,
        values: Sequence[Value],
        deadline_s: float | None,
        cancel: CancelToken | None,
        hang_s: float | None,
    ) -> list[Value]:
        """Run the worker's model. Raises what Worker.run raises."""
        worker, ready = self.worker, self.ready
        assert worker is not None, "it is held"
        assert ready is not None, "it is ready"
        self.runs += 1
        try:
            if deadline_s is None and cancel is None and hang_s is None:
                return worker.run(values, None, False)
            kept_s = deadline_s if ready.keeps_deadlines else None
            with Watchdog(worker, ready, deadline_s, cancel, hang_s):
                return worker.run(values, kept_s, cancel is not None)
        except Lost as lost:
            self._is_lost = True
            self.runs -= not lost.had_begun
            raise
        except BaseException as error:
            # An answer may come that nobody asks for any more.
            if not isinstance(error, Exception) or raised_by_handler(error):
                self.end("was ended by an interrupt")
            raise

    def end(self, why: str) -> None:
        """End the worker; another one follows."""
        worker = self.worker
        if worker is not None:
            self._is_lost = True
            worker.end(why)

    # ------------------------------------------------------------------------------- its thread

    def close(self, reason: str) -> None:
        """Have the worker closed, and no other follow. Does not wait."""
        self._reason = reason
        worker = self.worker
        if worker is not None and not self.is_free:
            worker.end(reason)
        self.wake()

    def join(self) -> None:
        """Wait until `close` is through."""
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            ends, self._wake, self._waker = (self._wake, self._waker), -1, -1
        for descriptor in ends:
            if descriptor >= 0:
                os.close(descriptor)

    def wake(self) -> None:
        """Have the thread look at what has changed."""
        with self._lock, suppress(BlockingIOError):  # full: it will look
            if self._waker >= 0:
                os.write(self._waker, b".")

    def _keep(self) -> None:
        failures = 0
        while not self._reason:
            try:
                self._serve()
                failures = 0
            except BaseException as error:
                self.error = error
                failures += 1
            self._discard()
            if self._reason:
                break
            if not self._was_ready and failures >= self._first_starts:
                self._turn(WorkerState.GIVEN_UP)
                return
            if failures:
                self._pause(failures)
                self._await_files()
            if self._reason:
                break
            self.restarts += 1
            self._turn(WorkerState.STARTING)
        self._discard()
        self._turn(WorkerState.CLOSED)

    @property
    def _first_starts(self) -> int:
        """The number of starts until the first build counts as failed."""
        return FIRST_STARTS if isinstance(self.error, Lost) else 1

    def _pause(self, failures: int) -> None:
        """Wait before the next start, after so many in a row that failed."""
        pause_s = min(_PAUSE_S * 2 ** min(failures - 1, 30), _LONGEST_PAUSE_S)
        if not failures & (failures - 1):  # the first, second, fourth: it may go on for days
            log.warning("%s: %s; failed start %d in a row, more follow", self, self.why, failures)
        self._turn(WorkerState.PAUSED)
        self._sleep(pause_s)

    def _await_files(self) -> None:
        """Wait until the files are those that the first worker was built of."""
        if not self._was_ready or self.assignment.is_current:
            return
        log.error("%s is given up until the model's files are back: %s", self, self.why)
        self._turn(WorkerState.GIVEN_UP)
        while not self._reason and not self.assignment.is_current:
            self._sleep(_LONGEST_PAUSE_S)

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._reason and time.monotonic() < until:  # wakes may be of before
            self._wait(None, until)

    @property
    def why(self) -> str:
        """Return the reason why the last start failed or the last worker ended; "" for none."""
        if self.error is None:
            return ""
        return str(self.error) if isinstance(self.error, Lost) else one_line(self.error)

    def _serve(self) -> None:
        """Start a worker, build, and wait for its end. Raises where it does not get ready."""
        self.runs = 0
        self.worker = worker = self._start(self.assignment)
        self._is_lost = False
        if self._reason:
            return
        self.ready = ready = worker.build(self._progress)
        self.assignment = replace(self.assignment, data_files=ready.data_files)
        self._progress, self.error, self._was_ready = None, None, True
        self._catch_up(worker)
        began_s = time.monotonic()
        while not worker.has_ended and not self._reason:
            self._wait(worker.sentinel, None)
        lived_s = time.monotonic() - began_s
        self._turn(WorkerState.STARTING)
        while self._lease() is not None:  # who holds it has seen it too, and is about to let go
            self._wait(None, time.monotonic() + _LOOK_S)
        if self._reason:
            return
        if not self.runs and lived_s < _HEALTHY_S:
            raise Lost("ended as soon as it had built, and ran nothing")
        log.warning("%s has ended; another one is started", self)

    def _catch_up(self, worker: Worker) -> None:
        """Turn ready with the weights that the workers have by now."""
        had = 0
        while True:
            with self._lock:
                now = self._weights()
                if now.number == had:
                    self._turn(WorkerState.READY)
                    return
            had = catch_up(worker, had, now)

    def _turn(self, state: WorkerState) -> None:
        with self._lock:
            self.state = state
        self._changed()

    def _discard(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.close()

    def _wait(self, sentinel: int | None, until: float | None) -> None:
        """Wait until `wake`, the worker's end, or a time of the monotonic clock."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if sentinel is not None:
            poll.register(sentinel, select.POLLIN)
        elif until is None:
            until = time.monotonic() + _LOOK_S
        left_ms = None if until is None else max(0.0, until - time.monotonic()) * 1000
        if any(descriptor == self._wake for descriptor, _ in poll.poll(left_ms)):
            os.read(self._wake, 1 << 12)


def _nobody() -> None:
    return None
