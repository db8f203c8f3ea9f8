"""The requests under way that their threads do not run: submitted ones, and those handed off.

They wait in a semaphore's queue. Workers run those that are admitted, and one more thread calls
done callbacks. These threads start when first needed and end with `close`, or when nobody knows the
requests any more.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from engine.errors import ModelStateError, QueueFull
from engine.host.cpus import usable_cpus
from engine.host.tasks import open_lock
from engine.serving.callbacks import Callbacks
from engine.serving.threads import Workers

if TYPE_CHECKING:
    from engine.host.fair_semaphore import FairSemaphore
    from engine.serving.request_future import RequestFuture, WhenFull
    from engine.serving.threads import HandOff

T = TypeVar("T")

_LOOK_S = 0.002
_RECHECK_S = 0.05  # of a thread that is woken in time, unless an interrupt came between


class PendingRequests:
    """Takes requests for a semaphore. Any thread may call any method.

    limit: how many may wait.
    """

    def __init__(self, semaphore: FairSemaphore, limit: int) -> None:
        self.semaphore = semaphore
        self.workers = Workers(semaphore)
        self.callbacks = Callbacks()
        self._limit = limit
        self._futures: dict[RequestFuture, None] = {}
        self._refusable: dict[int, dict[RequestFuture, None]] = {}  # by priority, as they came
        self._hand_offs: dict[HandOff, None] = {}
        self._begun: dict[object, None] = {}
        self._blocked: dict[threading.Lock, None] = {}  # threads that wait for room
        # No Condition: what a signal handler raises as one is entered leaves it locked.
        self._lock = threading.RLock()
        self._closed = ""

    def submit(self, future: RequestFuture, when_full: WhenFull) -> RequestFuture:
        """Queue a request and return it. Raises QueueFull, ModelStateError."""
        try:
            self._take(future)
            limit = self._limit if when_full == "raise" else 0
            self.with_room(future.priority, partial(future.queue, self, limit))
            if limit:
                self._refusable.setdefault(future.priority, {})[future] = None
                if future.done():  # and `ended` came before
                    self._refusable[future.priority].pop(future, None)
            if when_full == "wait" and self._is_full():
                self._wait_for_room(future)
        except (QueueFull, ModelStateError):
            self.ended(future)
            raise
        except BaseException:  # a signal handler's: nobody will have the future
            future.cancel()
            self.ended(future)
            raise
        return future

    def with_room(self, priority: int, queue: Callable[[], T]) -> T:
        """Return what `queue` returns, which raises QueueFull where there is no room.

        There is room in place of the newest of the lowest that wait, if it is below this priority,
        was submitted and could be refused: it is now.
        """
        while True:
            try:
                return queue()
            except QueueFull as error:
                if not self._make_room(priority, error):
                    raise

    def _make_room(self, priority: int, error: QueueFull) -> bool:
        """Refuse the newest of the lowest that wait below a priority; False where there is none.

        One that no longer waits is looked at once: it keeps its place from then on.
        """
        for lower in sorted(self._refusable):
            if lower >= priority:
                break
            futures = self._refusable[lower]
            with suppress(KeyError):  # there is none left
                while not futures.popitem()[0].give_way(error):
                    pass
                return True
        return False

    def _take(self, future: RequestFuture) -> None:
        with self._lock:
            if self._closed:
                raise ModelStateError(self._closed)
            most = future.most_workers  # beside those that hand-offs keep
            self.workers.need(most and most + len(self._hand_offs))
            self._futures[future] = None

    def hand_off(self, hand_off: HandOff, limit: int) -> bool:
        """Queue a request of a thread that waits; False where there is no worker for it.

        `ended` follows. Raises QueueFull where `limit` wait already; 0: no limit.
        """
        with self._lock:
            if self._closed:
                return False
            try:
                self.workers.need()
            except RuntimeError:
                return False
            self._hand_offs[hand_off] = None
        hand_off.queue(self.workers, limit)
        return True

    def forget(self, hand_off: HandOff) -> None:
        """Forget a hand-off, which has ended."""
        self._hand_offs.pop(hand_off, None)
        if self._closed:
            self._end_threads()

    def begin(self, run: object, future: RequestFuture) -> bool:
        """Keep a run that no thread waits for, and the workers for its end; `landed` follows.

        False where its request has ended already.
        """
        with self._lock:
            if future not in self._futures:
                return False
            self._begun[run] = None
        return True

    def keep_worker(self) -> None:
        """Start another worker beside one that a run keeps, if that can be."""
        with self._lock, suppress(RuntimeError):
            if not self._closed:
                self.workers.need(usable_cpus() if self.semaphore.slots == sys.maxsize else None)

    def landed(self, run: object) -> None:
        """Forget a run that was begun: it has ended."""
        self._begun.pop(run, None)
        if self._closed:
            self._end_threads()

    def _is_full(self) -> bool:
        return len(self._futures) > self._limit + self.semaphore.slots

    def _wait_for_room(self, future: RequestFuture) -> None:
        """Wait until so many others have ended that there is room, or the request has.

        It has its place in the queue: nobody who comes later overtakes it.
        """
        wake = threading.Lock()
        wake.acquire()
        self._blocked[wake] = None
        future.when_done(lambda _: open_lock(wake))
        try:
            while self._is_full() and not future.done():
                wake.acquire(timeout=_RECHECK_S)
        finally:
            self._blocked.pop(wake, None)

    def ended(self, future: RequestFuture) -> None:
        """Forget a request, which has ended."""
        self._futures.pop(future, None)
        self._refusable.get(future.priority, {}).pop(future, None)
        for wake in list(self._blocked):
            if self._is_full():
                break
            if self._blocked.pop(wake, self) is None:
                open_lock(wake)
        if self._closed:
            self._end_threads()

    def close(self, reason: str, finish: bool) -> None:
        """Take no more; let those that there are end, or refuse those that wait."""
        with self._lock:
            self._closed = self._closed or reason
        if not finish:
            for future in list(self._futures):
                future.refuse(reason)
        self._end_threads()

    def join(self) -> None:
        """Wait until all have ended, and their callbacks were called."""
        while self._futures:
            time.sleep(_LOOK_S)
        self.callbacks.join()

    def _end_threads(self) -> None:
        with self._lock:
            if self._futures or self._hand_offs or self._begun:
                return
            self.workers.end()
        self.callbacks.end()

    def __del__(self) -> None:
        if hasattr(self, "workers"):
            self.workers.end()
        if hasattr(self, "callbacks"):
            self.callbacks.end()
