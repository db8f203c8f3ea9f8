"""A fair semaphore: a number of predicts run at once, by priority, then first come, first served.

A waiter stands in its queue: a thread, or work that no thread waits for. A waiter may carry a
request. A thread that has a slot may dequeue such waiters and do their requests along with its own;
they are served without a slot.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

from engine.errors import DeadlineExceeded, ModelStateError, QueueFull
from engine.host.interrupts import raised_by_handler
from engine.types import CancelToken


class Shareable(Protocol):
    """A request that another thread's predict may do along with its own. is_done: it has."""

    is_done: bool


class Waiter:
    """A waiter in the queue of a semaphore.

    owner: by which the semaphore knows who has a slot. request: see FairSemaphore.dequeue. came_s,
    admitted_s: moments of time.perf_counter(); 0 until then. is_left: nobody waits any more.
    rank: the lowest is admitted first, of equals the first that came. extra: see FairSemaphore.
    """

    __slots__ = ("admitted_s", "came_s", "extra", "is_left", "owner", "priority", "rank", "request")

    def __init__(self, owner: int, request: Shareable | None = None, priority: int = 0) -> None:
        self.owner = owner
        self.request = request
        self.priority, self.rank = priority, -priority
        self.extra = 0
        self.came_s = time.perf_counter()
        self.admitted_s = 0.0
        self.is_left = False

    def wake(self) -> None:
        """Say that there is a slot, or that the request is done; more than once does no harm."""
        raise NotImplementedError


class CallbackWaiter(Waiter):
    """A waiter for work that no thread waits for.

    Its callbacks run in the thread that releases a slot or has done the request. They must be
    quick, and may be called again after an interrupt.
    """

    __slots__ = ()

    def __init__(self, request: Shareable | None = None, priority: int = 0) -> None:
        super().__init__(-next(_numbers), request, priority)  # no thread's number is negative

    def wake(self) -> None:
        """See Waiter."""
        if self.admitted_s:
            self.admitted()
        else:
            self.served()

    def admitted(self) -> None:
        """Called when it has a slot."""
        raise NotImplementedError

    def served(self) -> None:
        """Called when its request was done by another thread."""
        raise NotImplementedError


_numbers = itertools.count(1)
_STEP = 1000  # above the difference of any two priorities


class FairSemaphore:
    """A semaphore that admits waiters in the order in which they came, of the highest priority.

    A free slot goes straight to the waiter whose turn it is: none that comes later with the same
    priority, or a lower one, overtakes it. Every `acquire` that returns True needs one `release`.

    A signal handler may raise between any two steps: so `_holders` alone says who has a slot, and
    each step may be done again. `enter` and `leave` take no lock: who takes a slot notes it in
    `_holders` first and counts then, and who waits stands in `_waiting` before it counts.

    extra, of what takes a slot: how many slots beyond `slots` it may take, for a run that is over
    sooner than a thread could be woken. None while a waiter is here that no thread waits for: who
    runs it has no part in them. width: see SharedSemaphore.
    """

    def __init__(self, slots: int) -> None:
        self.slots, self.width = slots, 0
        self._main = threading.main_thread().ident  # where signal handlers run
        self._holders: dict[int, int] = {}  # the owners of slots; see SharedSemaphore
        # By rank, in the order in which they came. Without a call, code is one step: between it and
        # the next neither a signal handler nor another thread comes.
        self._waiting: dict[int, dict[Waiter, None]] = {}
        self._admitting: dict[Waiter, None] = {}  # those that take a slot right now
        self._barriers = 1
        # Those that have a slot, or are about to get or release one, with their waiters.
        self._threads: dict[int, _ThreadWaiter | None] = {}
        self._called: dict[int, None] = {}  # the owners of CallbackWaiters, or who took them over
        self._pausing: dict[int, None] = {}  # threads with a slot that wait for others to come
        self._keeping: dict[int, None] = {}  # threads that do not release their slot for now
        self._reusing: dict[int, None] = {}  # threads whose next `acquire` finds a slot of theirs
        # Reentrant: a signal handler may predict, and is refused, in the middle of a step.
        self._lock = threading.RLock()
        self._arrival = threading.Lock()  # released to wake `wait_for_arrival`
        self._arrival.acquire()

    @property
    def waiting(self) -> int:
        """Return how many wait."""
        return sum(map(len, list(self._waiting.values())))

    @property
    def running(self) -> int:
        """Return how many have a slot."""
        return len(self._holders)

    def acquire(
        self,
        deadline_s: float | None = None,
        cancel: CancelToken | None = None,
        request: Shareable | None = None,
        limit: int = 0,
        priority: int = 0,
        extra: int = 0,
    ) -> bool:
        """Take a slot, waiting for it until `deadline_s`. extra: see the class.

        Returns False, without a slot, where another thread has done the request meanwhile.
        Raises DeadlineExceeded, Cancelled, QueueFull where `limit` wait already (0: no limit), or
        ModelStateError in a handler that interrupts who has a slot: it would wait for itself.
        """
        thread = threading.get_ident()
        if self.is_mine:
            if thread in self._reusing:
                del self._reusing[thread]
                return True
            self.refuse_nested()
        self._threads[thread] = None
        try:
            with self._lock:
                if self._takes(thread, request, extra, priority):
                    return True
                self._refuse_more_than(limit)
                waiter = _ThreadWaiter(thread, request, priority, extra)
                self._threads[thread] = waiter
                self._queue(waiter)
                self._admit()
            self.notify_arrival()
            waiter.wait(deadline_s, cancel)
            with self._lock:
                if thread in self._holders:
                    return True
            if request is not None and request.is_done:
                self.release(thread)
                return False
            if cancel is not None:
                cancel.check()
            raise DeadlineExceeded(
                f"other predicts lasted to the deadline: no more than {self.slots} run at once"
            )
        except BaseException:
            try:
                self.release(thread)
            finally:
                self.release(thread)  # again, for a signal handler that raised in the first
            raise

    def try_acquire(self, request: Shareable | None, extra: int = 0, priority: int = 0) -> bool:
        """Take a slot if one is free and nobody waits. Not for the main thread.

        Raises ModelStateError as `acquire` does.
        """
        self.refuse_nested()
        thread = threading.get_ident()
        with self._lock:
            if not self._takes(thread, request, extra, priority):
                return False
            self._threads[thread] = None
        return True

    def enter(self, thread: int, extra: int = 0) -> bool:
        """Take a slot for the calling thread without the lock, if one is free and nobody waits.

        thread: its number. extra: see the class. `leave` follows where it returns True, and
        `acquire` where not: also in the main thread, and in one that has a slot.
        """
        holders = self._holders
        if (
            self._waiting
            or self._pausing
            or thread in holders
            or thread in self._threads
            or thread == self._main
        ):
            return False
        if not extra and self.width:
            with self._lock:
                return self._takes(thread, None, 0, 0)
        holders[thread] = 0
        most = self.slots if self._called else self.slots + extra
        if len(holders) <= most and not (self._waiting or self._pausing):
            return True
        self.leave(thread)
        return False

    def leave(self, thread: int) -> None:
        """Give back the slot that `enter` took."""
        if self._holders.pop(thread) or self._waiting:
            self._threads[thread] = None  # a finalizer that predicts meanwhile is refused
            with self._lock:
                self._admit()
            del self._threads[thread]

    def enqueue(self, waiter: CallbackWaiter, limit: int = 0, *, is_barrier: bool = False) -> None:
        """Queue a waiter. `withdraw`, or `take_over` and `release`, follows.

        is_barrier: all that came before are admitted before it, and all that come later after it,
        whatever their priorities. Raises QueueFull where `limit` wait already; 0: no limit.
        """
        with self._lock:
            if waiter.is_left:  # withdrawn before it came
                return
            self._refuse_more_than(limit)
            if is_barrier:
                waiter.rank = _STEP // 2
            self._called[waiter.owner] = None
            self._queue(waiter)
            self._barriers += is_barrier
            self._admit()
        self.notify_arrival()

    def withdraw(self, waiter: CallbackWaiter) -> bool:
        """Take a waiter away from the queue, or from who dequeued it; False where it has a slot."""
        with self._lock:
            if waiter.admitted_s:
                return False
            waiter.is_left = True
            self._drop(waiter)
            self._called.pop(waiter.owner, None)
            self._holders.pop(waiter.owner, None)  # an interrupt stopped who was admitting it
        return True

    def is_queued(self, waiter: CallbackWaiter) -> bool:
        """Return whether a waiter stands in the queue."""
        return waiter in self._waiting.get(waiter.rank, ())

    def take_over(self, waiter: CallbackWaiter) -> None:
        """Make a waiter's slot the calling thread's: its next `acquire` returns at once."""
        thread = threading.get_ident()
        with self._lock:
            self._threads[thread] = None
            self._reusing[thread] = None
            self._called[thread], self._holders[thread] = None, self._holders.get(waiter.owner, 0)
            self._holders.pop(waiter.owner, None)
            self._called.pop(waiter.owner, None)

    def reuse_slot(self) -> None:
        """Have the next `acquire` of the calling thread, which has a slot, return at once."""
        self._reusing[threading.get_ident()] = None

    @contextmanager
    def keeping_slot(self) -> Iterator[None]:
        """Leave the calling thread its slot over a predict, which would release it.

        So that it can note how the run ended before the next one begins. Not for the main thread.
        """
        self.reuse_slot()
        thread = threading.get_ident()
        self._keeping[thread] = None
        try:
            yield
        finally:
            del self._keeping[thread]

    @property
    def is_mine(self) -> bool:
        """True where the calling thread has a slot, or is about to get or release one."""
        thread = threading.get_ident()
        return thread in self._threads or thread in self._holders

    def refuse_nested(self) -> None:
        """Raise ModelStateError where `is_mine`."""
        if self.is_mine:
            raise ModelStateError(
                "predict was called in the middle of a predict of the same thread, and no more "
                f"than {self.slots} of this model run at once; call it after that one has returned"
            )

    def is_used_by_others(self) -> bool:
        """Return whether any but the calling thread has a slot or waits."""
        own = threading.get_ident()
        with self._lock:
            waiting = [waiter.owner for waiter in self._in_turn()]
            return any(owner != own for owner in [*list(self._holders), *waiting])

    def dequeue(self, fits: Callable[[Shareable], bool]) -> list[Waiter]:
        """Take waiters out of the queue, whose requests the caller does, which has a slot.

        fits: asked for each in the order in which their turn is. Each waiter that is returned needs
        one `requeue`, or its request done and then one `wake`.
        """
        with self._lock:
            fitting = [
                waiter
                for waiter in self._in_turn()
                if waiter.request is not None and not waiter.admitted_s and fits(waiter.request)
            ]
            for waiter in fitting:
                self._drop(waiter)
                self._called.pop(waiter.owner, None)
        return fitting

    def requeue(self, waiters: list[Waiter]) -> None:
        """Put dequeued waiters back where they came from: before all others of their priority."""
        with self._lock:
            first: dict[int, dict[Waiter, None]] = {}
            for waiter in waiters:
                if not waiter.is_left:
                    first.setdefault(waiter.rank, {})[waiter] = None
            waiting = self._waiting
            self._waiting = {
                **waiting,
                **{rank: {**those, **waiting.get(rank, {})} for rank, those in first.items()},
            }
            self._admit()

    def pause_admission(self) -> None:
        """Have requests queue for the caller, which has a slot, even where slots are free.

        Until `resume_admission`, which must follow soon. Not for the main thread.
        """
        with self._lock:
            self._pausing[threading.get_ident()] = None

    def resume_admission(self) -> None:
        """Admit again the waiters that there are slots for."""
        with self._lock:
            self._pausing.pop(threading.get_ident(), None)
            self._admit()

    def wait_for_arrival(self, timeout_s: float) -> None:
        """Wait until somebody comes to the queue, or the time is over."""
        self._arrival.acquire(timeout=max(0.0, timeout_s))

    def notify_arrival(self) -> None:
        """End a wait for an arrival."""
        if self._arrival.locked():  # else the last arrival has left it open, as nearly always
            _release(self._arrival)

    def _refuse_more_than(self, limit: int) -> None:
        if limit and self.waiting >= limit:
            raise QueueFull(
                f"{limit} requests wait already, the runner's queue_limit; try again later, or "
                "let it wait: when_full='wait'"
            )

    def release(self, thread: int = 0) -> None:
        """Give a slot to the waiter whose turn it is, or back.

        thread: the owner of the slot; 0: the caller. Twice mends what an interrupt left undone.
        """
        thread = thread or threading.get_ident()
        if thread in self._keeping:
            return
        with self._lock:
            waiter = self._threads.get(thread)
            if waiter is not None:
                waiter.is_left = True
                self._drop(waiter)  # also where an interrupt left one that is admitted
            self._reusing.pop(thread, None)
            self._called.pop(thread, None)
            self._holders.pop(thread, None)
            self._admit()
        self._threads.pop(thread, None)

    def _takes(self, owner: int, request: Shareable | None, extra: int, priority: int) -> bool:
        """Take a slot, if one is free and nobody waits."""
        is_paused = self._pausing and request is not None
        return not self._waiting and not is_paused and self._holds(owner, extra, priority)

    def _holds(self, owner: int, extra: int, priority: int) -> bool:
        """Take a slot if one is free."""
        most = self.slots if self._called else self.slots + extra
        if len(self._holders) >= most:
            return False
        self._holders[owner] = 0
        if len(self._holders) <= most:
            return True
        del self._holders[owner]  # `enter` was quicker
        return False

    def _queue(self, waiter: Waiter) -> None:
        waiter.rank += self._barriers * _STEP
        try:
            self._waiting[waiter.rank][waiter] = None
        except KeyError:
            self._waiting[waiter.rank] = {waiter: None}

    def _drop(self, waiter: Waiter) -> None:
        """Take a waiter out, if it waits."""
        try:
            del self._waiting[waiter.rank][waiter]
            if not self._waiting[waiter.rank]:
                del self._waiting[waiter.rank]
        except KeyError:
            pass
        self._admitting.pop(waiter, None)

    def _in_turn(self) -> list[Waiter]:
        """Return those that wait, the first to be admitted first."""
        return [waiter for _, those in sorted(self._waiting.items()) for waiter in those]

    def _first(self) -> Waiter | None:
        """Return the waiter whose turn it is; None where there is none after all."""
        for waiter in list(self._admitting):
            if waiter.owner in self._holders:  # an interrupt stopped who was admitting it
                return waiter
        rank = min(self._waiting, default=0)
        try:
            for waiter in self._waiting[rank]:
                return waiter
            del self._waiting[rank]
        except KeyError:
            pass
        return None

    def _admit(self) -> None:
        while self._waiting and self._admits_one():
            pass

    def _admits_one(self) -> bool:
        """Admit the waiter whose turn it is, if there is a slot; False where there is none."""
        waiter = self._first()
        if waiter is None:
            return True
        if waiter.owner not in self._holders:
            if self._pausing and waiter.request:
                return False
            # First, so that whoever comes after an interrupt finds it first.
            self._admitting[waiter] = None
            if not self._holds(waiter.owner, waiter.extra, waiter.priority):
                self._admitting.pop(waiter, None)
                return False
        waiter.admitted_s = waiter.admitted_s or time.perf_counter()
        waiter.wake()
        # Last, so that whoever comes after an interrupt wakes it again.
        self._drop(waiter)
        return True


class _ThreadWaiter(Waiter):
    """A thread that waits for a slot."""

    __slots__ = ("_asleep",)

    def __init__(self, thread: int, request: Shareable | None, priority: int, extra: int) -> None:
        super().__init__(thread, request, priority)
        self.extra = extra
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wait(self, deadline_s: float | None, cancel: CancelToken | None) -> None:
        """Sleep until `wake`, the deadline, or the token is cancelled."""
        timeout_s = -1.0
        if deadline_s is not None:
            timeout_s = min(max(0.0, deadline_s - time.monotonic()), threading.TIMEOUT_MAX)
        with nullcontext() if cancel is None else cancel.watch(self.wake):
            self._asleep.acquire(timeout=timeout_s)

    def wake(self) -> None:
        """End the sleep; twice does nothing."""
        _release(self._asleep)


def _release(lock: threading.Lock) -> None:
    try:
        lock.release()
    except RuntimeError as error:  # it is released already
        if raised_by_handler(error):
            raise
