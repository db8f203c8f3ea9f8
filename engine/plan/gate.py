"""Gate: lets a number of predicts run at once, first come, first served.

What waits is a place in the queue: a thread's, or that of work which no thread waits with. A place
may carry a request, and whoever is inside may take requests of others along (`collect`): these
are served without a slot of their own.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

from engine.cancel import CancelToken
from engine.errors import DeadlineExceeded, ModelStateError, QueueFull
from engine.host.interrupts import raised_by_handler


class Request(Protocol):
    """Work that another thread's predict may do along with its own. is_done: it has."""

    is_done: bool


class Place:
    """A place in the queue of a gate.

    owner: by which the gate knows who is inside. request: see Gate.collect. came_s, admitted_s:
    moments of time.perf_counter(); 0 until then. is_left: nobody waits there any more.
    """

    __slots__ = ("admitted_s", "came_s", "is_left", "owner", "request")

    def __init__(self, owner: int, request: Request | None = None) -> None:
        self.owner = owner
        self.request = request
        self.came_s = time.perf_counter()
        self.admitted_s = 0.0
        self.is_left = False

    def wake(self) -> None:
        """Tell that there is a slot, or that the request is done; more than once does no harm."""
        raise NotImplementedError


class Post(Place):
    """A place of work that no thread waits with.

    What it calls runs in whatever thread leaves the gate or has done the request, must be quick,
    and may be called again after an interrupt.
    """

    __slots__ = ()

    def __init__(self, request: Request | None = None) -> None:
        super().__init__(-next(_numbers), request)  # no thread's number is negative

    def wake(self) -> None:
        """See Place."""
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


class Gate:
    """A semaphore that admits threads in the order in which they came.

    A slot that becomes free goes straight to the place that has waited longest, so that none
    overtakes it. Every `enter` that returns True needs one `leave`.

    A signal handler may raise between any two steps: so `_inside` alone says who has a slot, and
    each step may be done again.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._inside: dict[int, None] = {}  # the owners of places that have a slot
        self._waiting: dict[Place, None] = {}  # in the order in which they came
        # Those that are inside or on their way in or out, with what they wait or waited by.
        self._threads: dict[int, _Waiter | None] = {}
        self._gathering: dict[int, None] = {}  # threads that are inside and wait for others to come
        self._held: dict[int, None] = {}  # threads that do not leave for now
        self._adopted: dict[int, None] = {}  # threads whose next `enter` finds a slot of theirs
        # Reentrant: a signal handler may predict, and is refused, in the middle of a step.
        self._lock = threading.RLock()
        self._arrival = threading.Lock()  # released to wake `arrival`
        self._arrival.acquire()

    @property
    def waiting(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Return how many have a slot."""
        return len(self._inside)

    def enter(
        self,
        deadline_s: float | None = None,
        cancel: CancelToken | None = None,
        request: Request | None = None,
        limit: int = 0,
    ) -> bool:
        """Take a slot, waiting for it until `deadline_s`.

        Returns False, without a slot, where another thread has done the request meanwhile.
        Raises DeadlineExceeded, Cancelled, QueueFull where `limit` wait already (0: no limit), or
        ModelStateError in a signal handler or finalizer
        that interrupts a thread which is inside: it would wait for itself.
        """
        thread = threading.get_ident()
        if thread in self._threads:
            if thread in self._adopted:
                del self._adopted[thread]
                return True
            self.refuse_nested()
        self._threads[thread] = None
        try:
            with self._lock:
                if self._has_room(request):
                    self._inside[thread] = None
                    return True
                self._refuse_more_than(limit)
                waiter = _Waiter(thread, request)
                self._threads[thread] = waiter
                self._waiting[waiter] = None
            self.end_wait()
            waiter.wait(deadline_s, cancel)
            with self._lock:
                if thread in self._inside:
                    return True
            if request is not None and request.is_done:
                self.leave(thread)
                return False
            if cancel is not None:
                cancel.check()
            raise DeadlineExceeded(
                f"other predicts lasted to the deadline: no more than {self.slots} run at once"
            )
        except BaseException:
            try:
                self.leave(thread)
            finally:
                self.leave(thread)  # again, for a signal handler that raised in the first
            raise

    def enter_now(self, request: Request | None = None) -> bool:
        """Take a slot if one is free and nobody waits. Not for the main thread.

        Raises ModelStateError as `enter` does.
        """
        self.refuse_nested()
        thread = threading.get_ident()
        with self._lock:
            if not self._has_room(request):
                return False
            self._inside[thread] = None
            self._threads[thread] = None
        return True

    def queue(self, post: Post, limit: int = 0) -> None:
        """Queue work that no thread waits with. `withdraw`, or `adopt` and `leave`, follows.

        Raises QueueFull where `limit` wait already; 0: no limit.
        """
        with self._lock:
            if post.is_left:  # withdrawn before it came
                return
            self._refuse_more_than(limit)
            self._waiting[post] = None
            self._admit()
        self.end_wait()

    def withdraw(self, post: Post) -> bool:
        """Take work out of the queue, or away from who collected it; False where it has a slot."""
        with self._lock:
            if post.admitted_s:
                return False
            post.is_left = True
            self._waiting.pop(post, None)
            self._inside.pop(post.owner, None)  # an interrupt stopped who was admitting it
        return True

    def adopt(self, post: Post) -> None:
        """Make the slot of queued work the calling thread's: its next `enter` returns at once."""
        thread = threading.get_ident()
        with self._lock:
            self._threads[thread] = None
            self._adopted[thread] = None
            self._inside[thread] = None
            self._inside.pop(post.owner, None)

    def keep(self) -> None:
        """Have the next `enter` of the calling thread, which is inside, return at once."""
        self._adopted[threading.get_ident()] = None

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the calling thread inside over a predict; it leaves later. Not for the main thread.

        So that it can tell what came of the run before the next one begins.
        """
        self.keep()
        thread = threading.get_ident()
        self._held[thread] = None
        try:
            yield
        finally:
            del self._held[thread]

    @property
    def is_mine(self) -> bool:
        """True where the calling thread is inside, or on its way."""
        return threading.get_ident() in self._threads

    def refuse_nested(self) -> None:
        """Raise ModelStateError where the calling thread is inside, or on its way."""
        if self.is_mine:
            raise ModelStateError(
                "predict was called in the middle of a predict of the same thread, and no more "
                f"than {self.slots} of this model run at once; call it after that one has returned"
            )

    def is_used_by_others(self) -> bool:
        """Return whether any but the calling thread is inside or waits."""
        own = threading.get_ident()
        with self._lock:
            waiting = [place.owner for place in self._waiting]
            return any(owner != own for owner in (*self._inside, *waiting))

    def collect(self, fits: Callable[[Request], bool]) -> list[Place]:
        """Take places out of the queue, whose requests the caller, who is inside, does.

        fits: asked for each in the order in which they came. Each place that is returned needs one
        `restore`, or its request done and then one `wake`.
        """
        with self._lock:
            found = [
                place
                for place in self._waiting
                if place.request is not None and not place.admitted_s and fits(place.request)
            ]
            for place in found:
                del self._waiting[place]
        return found

    def restore(self, places: list[Place]) -> None:
        """Put collected places back where they came from: before all others."""
        with self._lock:
            there = [place for place in places if not place.is_left]
            self._waiting = {**dict.fromkeys(there), **self._waiting}
            self._admit()

    def gather(self) -> None:
        """Have requests queue for the caller, who is inside, even where slots are free.

        Until `end_gathering`, which must follow soon. Not for the main thread.
        """
        with self._lock:
            self._gathering[threading.get_ident()] = None

    def end_gathering(self) -> None:
        """Admit again whom there are slots for."""
        with self._lock:
            self._gathering.pop(threading.get_ident(), None)
            self._admit()

    def arrival(self, timeout_s: float) -> None:
        """Wait until somebody comes to the queue, or the time is over."""
        self._arrival.acquire(timeout=max(0.0, timeout_s))

    def end_wait(self) -> None:
        """End a wait for an arrival."""
        if self._arrival.locked():  # else the last arrival has left it open, as nearly always
            _release(self._arrival)

    def _refuse_more_than(self, limit: int) -> None:
        if limit and len(self._waiting) >= limit:
            raise QueueFull(
                f"{limit} requests wait already, the runner's queue_limit; try again later, or "
                "let it wait: when_full='wait'"
            )

    def leave(self, thread: int = 0) -> None:
        """Give a slot to the place that has waited longest, or back.

        thread: the owner of the slot; 0: the calling thread.
        Twice does nothing, and mends what an interrupt left undone.
        """
        thread = thread or threading.get_ident()
        if thread in self._held:
            return
        with self._lock:
            waiter = self._threads.get(thread)
            if waiter is not None:
                waiter.is_left = True
                self._waiting.pop(waiter, None)  # also where an interrupt left one that is admitted
            self._adopted.pop(thread, None)
            self._inside.pop(thread, None)
            self._admit()
        self._threads.pop(thread, None)

    def _has_room(self, request: Request | None) -> bool:
        is_gathered = self._gathering and request is not None
        return not self._waiting and not is_gathered and len(self._inside) < self.slots

    def _admit(self) -> None:
        while self._waiting:
            waiter = next(iter(self._waiting))
            if waiter.owner not in self._inside:
                if len(self._inside) >= self.slots or (self._gathering and waiter.request):
                    return
                self._inside[waiter.owner] = None
            waiter.admitted_s = waiter.admitted_s or time.perf_counter()
            waiter.wake()
            # Last, so that whoever comes after an interrupt wakes it again.
            self._waiting.pop(waiter, None)


class _Waiter(Place):
    """A thread that waits for a slot."""

    __slots__ = ("_asleep",)

    def __init__(self, thread: int, request: Request | None = None) -> None:
        super().__init__(thread, request)
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
