"""Handles Ctrl-C: asks the work to stop, and ends the command soon whether or not it can."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar
from weakref import WeakSet

from engine.types import CancelToken

Result = TypeVar("Result")

INTERRUPTED = 130
"""The exit status of an interrupted command, as shells have it: 128 + SIGINT."""

_LOOK_S = 0.1
_GRACE_S = 1.0  # what threads get to end in good order
_LIMIT_S = 3.0  # after that the process ends, whatever it is doing

_started: WeakSet[threading.Thread] = WeakSet()


def start(work: Callable[[], None]) -> None:
    """Call `work` in a thread that does not keep the process alive; see `leave`."""
    thread = threading.Thread(target=work, name="engine", daemon=True)
    _started.add(thread)
    thread.start()


def interruptible(work: Callable[[], Result], cancel: CancelToken | None = None) -> Result:
    """Return what `work` returns, or raise what it raises, having run it in another thread.

    A thread inside a runtime sees no signal before the runtime returns. Here the caller waits
    outside of it, so that Ctrl-C raises KeyboardInterrupt at once; `cancel` then tells the work.
    """
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    start(run)
    try:
        while not outcome.done():
            # A signal that comes just before a wait, or to another thread, is seen after it.
            wait([outcome], _LOOK_S)
        return outcome.result()
    except KeyboardInterrupt:
        if cancel is not None:
            cancel.cancel()
        raise


def expect_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, once: the process then has 3 s to end.

    A second one, or the key held down, must not break into what is printed on the way out.
    For a process that is the command's own, in its main thread.
    """
    # Not so where somebody ignores them: nohup, a script's "&".
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> Any:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not threading's: the thread that is interrupted here may hold a lock of its.
    _thread.start_new_thread(_expire, ())
    raise KeyboardInterrupt


def _expire() -> None:
    time.sleep(_LIMIT_S)
    os._exit(INTERRUPTED)


def leave(status: int) -> None:
    """End the process now if a thread of `start` does not end: Python cannot end around it."""
    until = time.monotonic() + _GRACE_S
    for thread in list(_started):
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):
                    stream.flush()
            os._exit(status)
