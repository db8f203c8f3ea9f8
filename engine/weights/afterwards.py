"""Work that a build leaves for later: one thread of this process does one piece after the other."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

EXIT_WAIT_S = 30.0


class Afterwards(Generic[T]):
    """Pieces of work of one kind, and the thread that does them while there are any.

    finish: does a piece, and raises nothing. leave: called with each piece that this process does
    not do, because it ends or is a forked child. turn: lock it to change a model, and check
    `is_ending` first.
    """

    def __init__(
        self,
        thread_name: str,
        finish: Callable[[T], None],
        leave: Callable[[T], object] = lambda piece: None,
    ) -> None:
        self.is_ending = False
        self.turn = threading.Lock()
        self.pieces: deque[T] = deque()
        self._name = thread_name
        self._finish = finish
        self._leave = leave
        self._changing = threading.RLock()  # held to look at them; a signal handler may build too
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forget)

    def add(self, piece: T) -> None:
        """Have a piece done. Raises RuntimeError where no thread can be started for it."""
        with self._changing:
            if self._thread is None and not self.is_ending:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                thread.start()  # it waits for this lock
                self._thread = thread
            self.pieces.append(piece)
            if self.is_ending:
                self._leave(piece)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all is done; return whether it is."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return not self.pieces and self._thread is None

    def end(self) -> None:
        """Let the thread change no model while the interpreter ends. To be called at exit."""
        self.is_ending = True
        self.turn.acquire(timeout=EXIT_WAIT_S)
        self._leave_all()

    def _work(self) -> None:
        while True:
            with self._changing:
                if not self.pieces:
                    self._thread = None
                    return
                piece = self.pieces[0]
            self._finish(piece)
            if self.is_ending:
                return
            with self._changing:
                self.pieces.popleft()
            del piece

    def _leave_all(self) -> None:
        for piece in list(self.pieces):  # a copy: the thread may be at work on it
            self._leave(piece)

    def _forget(self) -> None:
        """In a forked child: there is no thread, and the models are the parent's."""
        self._leave_all()
        self.pieces.clear()
        self._changing, self.turn, self._thread = threading.RLock(), threading.Lock(), None
