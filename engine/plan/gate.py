"""Gate: lets a number of predicts run at once, first come, first served."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import nullcontext, suppress

from engine.cancel import CancelToken
from engine.errors import DeadlineExceeded, ModelStateError


class Gate:
    """A semaphore that admits threads in the order in which they came.

    A slot that becomes free goes straight to the thread that has waited longest, so that none
    overtakes it. Every `enter` that returns needs one `leave`.

    A signal handler may raise between any two steps: so `_inside` alone says who has a slot, and
    each step may be done again.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._inside: dict[int, None] = {}  # the threads that have a slot
        self._waiting: deque[_Waiter] = deque()
        # Those that are inside or on their way in or out, with what they wait or waited by.
        self._threads: dict[int, _Waiter | None] = {}
        # Reentrant: a finalizer leaves for a lost lease, at any moment of the same thread.
        self._lock = threading.RLock()

    def enter(self, deadline_s: float | None = None, cancel: CancelToken | None = None) -> None:
        """Take a slot, waiting for it until `deadline_s`.

        Raises DeadlineExceeded, Cancelled, or ModelStateError in a signal handler or finalizer
        that interrupts a thread which is inside: it would wait for itself.
        """
        thread = threading.get_ident()
        if thread in self._threads:
            raise ModelStateError(
                "predict was called in the middle of a predict of the same thread, and no more "
                f"than {self.slots} of this model run at once; call it after that one has returned"
            )
        self._threads[thread] = None
        try:
            with self._lock:
                if not self._waiting and len(self._inside) < self.slots:
                    self._inside[thread] = None
                    return
                waiter = _Waiter(thread)
                self._threads[thread] = waiter
                self._waiting.append(waiter)
            waiter.wait(deadline_s, cancel)
            with self._lock:
                if thread in self._inside:
                    return
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

    def leave(self, thread: int = 0) -> None:
        """Give a thread's slot to that which has waited longest, or back. 0: the calling thread's.

        Twice does nothing, and mends what an interrupt left undone.
        """
        thread = thread or threading.get_ident()
        with self._lock:
            waiter = self._threads.get(thread)
            if waiter is not None:
                is_first = bool(self._waiting) and self._waiting[0] is waiter
                if is_first:  # also one that is admitted, where an interrupt left it
                    self._waiting.popleft()
                elif thread not in self._inside:
                    with suppress(ValueError):  # it is out already
                        self._waiting.remove(waiter)
            self._inside.pop(thread, None)
            self._admit()
        self._threads.pop(thread, None)

    def _admit(self) -> None:
        while self._waiting:
            waiter = self._waiting[0]
            if waiter.thread not in self._inside:
                if len(self._inside) >= self.slots:
                    return
                self._inside[waiter.thread] = None
            waiter.wake()
            # Last, so that whoever comes after an interrupt wakes it again. A finalizer may have
            # done all this in the meantime.
            if self._waiting and self._waiting[0] is waiter:
                self._waiting.popleft()


class _Waiter:
    """A thread that waits for a slot."""

    __slots__ = ("_asleep", "thread")

    def __init__(self, thread: int) -> None:
        self.thread = thread
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
        with suppress(RuntimeError):  # it is awake already
            self._asleep.release()
