"""End of a process that has loaded ONNX Runtime.

From the import of onnxruntime on, its static destructors wait for a thread that a forked child
does not have: a child that ends by `sys.exit` would hang, whether it uses a model or not. It
flushes C's files, as `exit` does, and leaves before they run. And when the interpreter ends while
a daemon thread is inside a run, that thread wakes up in C++ without an interpreter and the process
aborts: new runs are held back at exit, those under way are stopped and waited for, and around one
that does not end, in a kernel that takes for ever, the process leaves like such a child.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

EXIT_WAIT_S = 2.0

ending = False
"""The interpreter is ending; runs look at it before they begin."""


def park_thread() -> None:
    """Keep a thread from beginning a run while the interpreter ends; does not return then."""
    if threading.current_thread() is not threading.main_thread():
        threading.Event().wait()


def _end_runs() -> None:
    global ending
    ending = True
    until = time.monotonic() + EXIT_WAIT_S
    while contexts := [*_running_contexts()]:
        for context in contexts:
            context.cancel()  # each round: it may have taken up a run just now
        if time.monotonic() > until:
            _leave_at_exit()
            return
        time.sleep(0.001)


def _running_contexts() -> Iterator[Any]:
    """Yield the contexts in which other threads are inside a run."""
    own = threading.get_ident()
    for ident, innermost in sys._current_frames().items():
        frame: FrameType | None = None if ident == own else innermost
        while frame is not None:
            module = frame.f_globals.get("__name__")
            if module == __name__:
                break  # it is parked
            if module == "engine_cpu.run" and frame.f_code.co_name == "run":
                context = frame.f_locals.get("self")
                if hasattr(context, "cancel"):
                    yield context
                    break
            frame = frame.f_back


def _leave_at_exit() -> None:
    # on_exit calls its function with the exit status, and functions in reverse order: these two,
    # registered last, come before ONNX Runtime's. Python has flushed its files by then.
    libc = ctypes.CDLL(None)
    if all(hasattr(libc, name) for name in ("on_exit", "_exit", "fcloseall")):  # glibc
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)


atexit.register(_end_runs)
os.register_at_fork(after_in_child=_leave_at_exit)
