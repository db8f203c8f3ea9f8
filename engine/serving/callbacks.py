"""The thread that calls the done callbacks of requests.

The threads that run models, watch deadlines or cancel must not wait for what users do there. A
callback may so wait for other requests.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias

from engine.host.interrupts import raised_by_handler, undisturbed
from engine.serving.threads import thread

Callback: TypeAlias = Callable[["Future[Any]"], object]


class Callbacks:
    """Calls done callbacks, in the order of ending, in a thread of its own."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._has_ended = False
        self._lock = threading.RLock()

    def put(self, call: Callback, future: Future[Any]) -> None:
        """Have `call` called with a future that is done."""
        with self._lock:
            if not self._has_ended and self._has_thread():
                self._calls.put(partial(call, future))
                return
        _logged(partial(call, future))  # given for a job that ended, with the last, just then

    def _has_thread(self) -> bool:
        """Start the thread unless there is one; return False where it cannot be started."""
        if self._thread is None:
            self._thread = thread(_call, self._calls)  # also where an interrupt ends the wait
            try:
                undisturbed(self._thread.start)
            except RuntimeError as error:
                if raised_by_handler(error):
                    raise
                self._thread = None
        return self._thread is not None

    def end(self) -> None:
        """Have the thread end after what there is."""
        with self._lock:
            self._has_ended = True
            if self._thread is not None:
                self._calls.put(None)

    def join(self) -> None:
        """Wait until all were called, but the one whose thread asks."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()


def _call(calls: SimpleQueue[Callable[[], object] | None]) -> None:
    while (call := calls.get()) is not None:
        _logged(call)
        del call


def _logged(call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException:  # as concurrent.futures does; also of SystemExit: others come
        logging.getLogger("engine").exception("a done callback of a request failed")
