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
    overtakes it. Every `enter` that returns needs one `leave` by the same thread.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._free = slots
        self._waiting: deque[_Waiter] = deque()
        self._threads: dict[int, None] = {}  # those that are inside or on their way in or out
        self._lock = threading.Lock()

    def enter(self, deadline_s: float | None = None, cancel: CancelToken | None = None) -> None:
        """Take a slot, waiting for it until `deadline_s`.

        Raises DeadlineExceeded, Cancelled, or ModelStateError in a signal handler or finalizer
        that interrupts a thread which is inside: it would wait for itself.
        """
        thread = threading.get_ident()
        if thread in self._threads:
            raise ModelStateError(
                "predict was called in the middle of a predict of the same thread, and the "
                f"backend runs no more than {self.slots} at once; call it after that one has "
                "returned"
            )
        self._threads[thread] = None
        try:
            with self._lock:
                if self._free:  # nobody waits then: `leave` hands its slot on
                    self._free -= 1
                    return
                waiter = _Waiter()
                self._waiting.append(waiter)
            try:
                waiter.wait(deadline_s, cancel)
            finally:
                with self._lock:
                    is_admitted = waiter.is_admitted
                    if not is_admitted:
                        self._waiting.remove(waiter)
            if not is_admitted:
                if cancel is not None:
                    cancel.check()
                raise DeadlineExceeded(
                    f"other predicts lasted to the deadline: the backend runs {self.slots} at once"
                )
        except BaseException:
            self._threads.pop(thread, None)
            raise

    def leave(self) -> None:
        """Give the slot to the thread that has waited longest, or back."""
        try:
            with self._lock:
                while self._waiting:
                    waiter = self._waiting[0]
                    is_next = not waiter.is_admitted  # else an interrupt left it here
                    if is_next:
                        waiter.is_admitted = True
                        waiter.wake()
                    self._waiting.popleft()
                    if is_next:
                        return
                self._free += 1
        finally:
            self._threads.pop(threading.get_ident(), None)


class _Waiter:
    """A thread that waits for a slot."""

    __slots__ = ("_asleep", "is_admitted")

    def __init__(self) -> None:
        self.is_admitted = False
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
