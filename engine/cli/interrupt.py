"""Handles Ctrl-C and its like: asks the work to stop, and ends the command soon all the same.

So do SIGTERM (`kill`, `timeout`, a service that stops) and SIGHUP (a terminal that is closed): what
lies half-done is taken away, as after Ctrl-C.
"""

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
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import Any, TypeVar
from weakref import WeakSet

from engine.types import CancelToken

Result = TypeVar("Result")

_SIGNALS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
"""Signals that interrupt a command, each with what is its handler where nobody has chosen one."""

_LOOK_S = 0.1
_GRACE_S = 1.0  # what threads get to end in good order
_LIMIT_S = 3.0  # after that the process ends, whatever it is doing

_started: WeakSet[threading.Thread] = WeakSet()
_interrupted_by = int(signal.SIGINT)
_has_come = False


def was_interrupted() -> bool:
    """Return whether a signal has interrupted the command, whatever became of its exception.

    The interrupted code may translate it: a half-way import is an ImportError of the next one.
    """
    return _has_come


def interrupted() -> int:
    """Return the exit status of an interrupted command, as shells have it: 128 + the signal."""
    return 128 + _interrupted_by


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


def expect_interrupts(instead_of: Callable[[int, FrameType | None], Any] | None = None) -> None:
    """Let the first signal of these raise KeyboardInterrupt: the process then has 3 s to end.

    A second one, or the key held down, must not break into what is printed on the way out.
    For a process that is the command's own, in its main thread. instead_of: a handler that the
    command itself has installed until now.
    """
    for number, default in _SIGNALS.items():
        # Not so where somebody ignores them: nohup, a script's "&".
        if signal.getsignal(number) in (default, instead_of):
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> Any:
    global _interrupted_by, _has_come
    if _is_loading_extension(frame):
        _thread.start_new_thread(_send_again, (number,))
        return
    _has_come = True
    _interrupted_by = number
    for signal_ in _SIGNALS:
        signal.signal(signal_, signal.SIG_IGN)
    # Not threading's: the thread that is interrupted here may hold a lock of its.
    _thread.start_new_thread(_expire, ())
    raise KeyboardInterrupt


def _is_loading_extension(frame: FrameType | None) -> bool:
    """Return whether an extension module is being loaded.

    Its C++ may call Python where it expects no exception, and then ends the process.
    """
    while frame is not None:
        # By its type: isinstance asks an object for its class, and a lazy one then does its work.
        if issubclass(type(frame.f_locals.get("self")), ExtensionFileLoader):
            return True
        frame = frame.f_back
    return False


def _send_again(number: int) -> None:
    time.sleep(_LOOK_S)
    os.kill(os.getpid(), number)


def _expire() -> None:
    time.sleep(_LIMIT_S)
    os._exit(interrupted())


def leave(status: int) -> None:
    """End the process now if a thread of `start` does not end: Python cannot end around it."""
    until = time.monotonic() + _GRACE_S
    for thread in list(_started):
        try:
            thread.join(max(0.0, until - time.monotonic()))
        except RuntimeError:  # an interrupt came as it was to start
            continue
        if thread.is_alive():
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):
                    stream.flush()
            os._exit(status)
