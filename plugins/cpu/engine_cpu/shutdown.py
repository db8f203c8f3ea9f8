"""How a process that has loaded ONNX Runtime ends.

From the import of onnxruntime on, its static destructors wait for a thread that a forked child
does not have: a child that ends by `sys.exit` would hang, whether it uses a model or not. It
flushes C's files, as `exit` does, and leaves before they run. And when the interpreter ends while
a daemon thread is inside a run, that thread wakes up in C++ without an interpreter and the process
aborts: new runs are held back at exit, and those under way are waited for.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from types import FrameType

EXIT_WAIT_S = 10.0

ending = False
"""The interpreter is ending; runs look at it before they begin."""


def park_thread() -> None:
    """Keep a thread from beginning a run while the interpreter ends; does not return then."""
    if threading.current_thread() is not threading.main_thread():
        threading.Event().wait()


def _wait_for_runs() -> None:
    global ending
    ending = True
    own = threading.get_ident()
    until = time.monotonic() + EXIT_WAIT_S
    while time.monotonic() < until and any(
        _is_running(frame) for ident, frame in sys._current_frames().items() if ident != own
    ):
        time.sleep(0.001)


def _is_running(frame: FrameType | None) -> bool:
    """Return True where a thread with this innermost frame is inside a run."""
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module in ("engine_cpu.run", __name__):
            return bool(module == "engine_cpu.run")
        frame = frame.f_back
    return False


def _leave_at_exit() -> None:
    # on_exit calls its function with the exit status, and functions in reverse order: these two,
    # registered last, come before ONNX Runtime's. Python has flushed its files by then.
    libc = ctypes.CDLL(None)
    if all(hasattr(libc, name) for name in ("on_exit", "_exit", "fcloseall")):  # glibc
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)


atexit.register(_wait_for_runs)
os.register_at_fork(after_in_child=_leave_at_exit)
