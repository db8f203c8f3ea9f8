"""Ends Python code that runs in a thread, from another thread, at its next step."""

from __future__ import annotations

import threading
from ctypes import c_ulong, py_object, pythonapi


class Stopped(BaseException):
    """Raised in the code that is ended. Not an Exception, which operators may catch."""


class Stopper:
    """Ends what the thread that made it runs next, until it sets `done`.

    That thread then calls `clear`, ready for a Stopped that is on its way. No lock: a handler of
    signals that raises could leave it held, and Stopped comes at any step itself.
    deadline_s: when to end it, for engine.host.deadlines.
    """

    def __init__(self, deadline_s: float = 0.0) -> None:
        self.deadline_s = deadline_s
        self.done = False
        self._thread = threading.get_ident()
        self._target = c_ulong(self._thread)
        self._sent = False

    def expire(self) -> None:
        """Raise Stopped in the thread; it comes at the next step of its Python code."""
        if self._sent or threading.get_ident() == self._thread:
            return  # a signal handler in that thread: it goes on, and is stopped at its next node
        self._sent = True
        send, target, error = pythonapi.PyThreadState_SetAsyncExc, self._target, py_object(Stopped)
        # In one step: Python changes threads after a call, not between these two.
        if not self.done:
            send(target, error)

    def clear(self) -> None:
        """Take back a Stopped that has not come yet. For the thread that made it."""
        if not self._sent:
            return
        # By receiving it: if it is only deleted, the interpreter goes on to look for it at every
        # step, and CPython 3.11 then hangs in the next function that a debugger traces.
        send = pythonapi.PyThreadState_SetAsyncExc
        try:
            send(self._target, py_object(Stopped))
            while True:
                pass
        except Stopped:
            return
        except BaseException:  # of a signal handler, which was first
            send(self._target, None)
            raise
