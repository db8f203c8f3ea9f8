"""Execution contexts, lent to threads and taken back when a thread ends."""

from __future__ import annotations

import threading
from typing import Protocol

from engine.errors import ModelStateError
from engine.types import ExecutionContext


class Opener(Protocol):
    """What contexts come from: an executable, or a wrapper of one."""

    def open_context(self) -> ExecutionContext:
        """See Executable."""

    def close(self) -> None:
        """See Executable."""


class ContextPool:
    """The contexts of one executable.

    A context costs activations, streams, perhaps a copy of the weights: as many are open as
    threads ever ran at once, and a thread that ends leaves its own to the next. Closing never
    pulls memory from under a running predict: what is lent is closed when it comes back, and
    the executable after the last of them.
    """

    def __init__(self, executable: Opener) -> None:
        self._executable = executable
        self._idle: list[ExecutionContext] = []
        self._open = 0
        self._closed = False
        # Reentrant: give_back also runs from a finalizer, at any moment of the same thread.
        self._lock = threading.RLock()

    def take(self) -> ExecutionContext:
        """A context for the calling thread: an idle one, else a new one."""
        with self._lock:
            if self._closed:
                raise ModelStateError("predict failed! the model is closed; build a new one")
            if self._idle:
                return self._idle.pop()
            self._open += 1
        try:
            return self._executable.open_context()
        except BaseException:
            self._returned()
            raise

    def give_back(self, context: ExecutionContext) -> None:
        """Take a context back; it is closed if the pool was."""
        reset = getattr(context, "reset", None)
        if reset is not None:
            reset()
        with self._lock:
            if not self._closed:
                self._idle.append(context)
                return
        close(context)
        self._returned()

    def close(self) -> None:
        """Close what is idle now and what is lent when it comes back; twice does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            idle, self._idle = self._idle, []
            self._open += 1  # this call's own: the executable outlives the loop below
        for context in idle:
            close(context)
            self._returned()
        self._returned()

    def _returned(self) -> None:
        with self._lock:
            self._open -= 1
            last = self._closed and self._open == 0
        if last:
            close(self._executable)


class _Closable(Protocol):
    def close(self) -> None: ...


def close(thing: _Closable) -> None:
    """Close it; an error is logged, because nobody who could mend it is there to catch it."""
    try:
        thing.close()
    except KeyboardInterrupt:
        raise
    except BaseException:  # SystemExit, or a panic of a compiled extension
        import logging

        logging.getLogger("engine").exception("closing %s failed", type(thing).__name__)
