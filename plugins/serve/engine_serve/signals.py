"""SIGINT and SIGTERM as something to wait for."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress

_ENDS = (signal.SIGINT, signal.SIGTERM)
_WOKEN = 0  # no signal has this number


class Signals:
    """Lets the main thread wait for SIGINT and SIGTERM; none is lost, whenever it comes.

    A handler in Python runs between two instructions, so one that comes just before the thread
    waits for a lock would wait with it. The interpreter's own handler writes to a socket at once.
    """

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        for number in _ENDS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)

    def wait(self) -> int:
        """Return the number of the next signal, or 0 after `wake`."""
        while True:
            number = self._read.recv(1)[0]
            if number == _WOKEN or number in _ENDS:
                return number

    def wake(self) -> None:
        """End a wait, the next one where none waits. From any thread."""
        with suppress(BlockingIOError):  # full: who waits is awake
            self._write.send(bytes([_WOKEN]))
