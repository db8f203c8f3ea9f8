"""Workers that are processes of this machine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from engine.host import fork
from engine.host.channel import Caller
from engine.host.interrupts import pass_interrupt
from engine.host.lack import explained
from engine.host.worker import Ended
from engine.host.worker import Worker as Process
from engine.workers.protocol import Assignment, Lost, Question, Ready

if TYPE_CHECKING:
    from engine.types import Progress, Value
    from engine.weights.variables import Update

_TRIM_EVERY = 64  # runs


class ProcessWorker:
    """A process of this machine, started as `python -m engine.workers`. See Worker.

    Tensors go through memory that both have mapped; the thread that runs waits for them itself.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._why = ""  # it was ended
        self._number = 1  # of the run under way, or the next
        self._is_idle = False
        self._sentinel: int | None = None
        self._sending = threading.Lock()
        with explained("a worker process cannot be started"):
            self._caller = Caller()
        try:
            self._process = Process("", assignment, module="engine.workers")
        except BaseException:
            self._caller.close()
            raise
        try:
            self._sentinel = _pidfd(self._process.pid)
            self._process.send(("channel",), self._caller.fds)
            self._caller.sent()
        except BaseException:
            self.close()
            raise
        fork.watch(self)

    @property
    def pid(self) -> int:
        """See Worker."""
        return self._process.pid

    @property
    def sentinel(self) -> int | None:
        """See Worker."""
        return self._sentinel

    @property
    def has_ended(self) -> bool:
        """See Worker."""
        return self._process.has_ended

    def build(self, progress: Progress | None) -> Ready:
        """See Worker."""
        while True:
            try:
                kind, value = self._process.receive()
            except Ended as ended:
                raise self._lost(ended) from None
            if kind == "error":
                try:
                    raise value
                finally:
                    del value  # the traceback of an error has this frame: no cycle
            if kind == "ready":
                self._is_idle = True
                return value  # type: ignore[no-any-return]
            if progress is not None:
                progress(*value)

    def run(
        self, values: Sequence[Value], deadline_s: float | None, may_stop: bool = True
    ) -> list[Value]:
        """See Worker."""
        return self._asked(values, deadline_s, Question.RUN_STOPPABLE if may_stop else Question.RUN)

    def prepare(self, weights: Update) -> list[str]:
        """See Worker."""
        try:
            [names] = self._asked([weights], None, Question.PREPARE)
        finally:
            self._caller.forget()  # as large as the model, maybe
        return names  # type: ignore[no-any-return]

    def settle(self, take: bool) -> None:
        """See Worker."""
        self._asked([take], None, Question.SETTLE)

    def _asked(
        self, values: Sequence[Any], deadline_s: float | None, question: Question
    ) -> list[Any]:
        """Return the answer to a question, or raise what it raised, and Lost."""
        self._is_idle = False
        if not self._number % _TRIM_EVERY:
            self._process.trim_errors()
        try:
            self._caller.ask(values, deadline_s, question)
        except ConnectionError as error:
            pass_interrupt(error)
            raise self._lost(had_begun=False) from None
        while not (reply := self._caller.reply()):
            if reply is not None or self.has_ended:
                raise self._lost()
        try:
            return self._caller.own(reply)
        finally:
            self._number += 1
            self._is_idle = True

    def stop(self) -> None:
        """See Worker."""
        with self._sending:
            self._process.send(("stop", self._number))

    def end(self, why: str) -> None:
        """See Worker."""
        self._why = self._why or why
        with suppress(ProcessLookupError):
            self._process.signal(signal.SIGKILL)  # what it has started goes with `close`

    def close(self) -> None:
        """See Worker. One that is idle is let free its model first."""
        self._caller.close()
        if self._is_idle and not self._why:
            self._process.finish()
        self._let_go()

    def _let_go(self) -> None:
        sentinel, self._sentinel = self._sentinel, None
        self._process.close()
        if sentinel is not None:
            os.close(sentinel)

    def _lost(self, ended: Ended | None = None, had_begun: bool = True) -> Lost:
        how = self._why or str(ended or self._process.end())
        return Lost(f"{how} (process {self.pid})", had_begun)

    def _abandon(self) -> None:
        """In a forked child: let go of what is the parent's; its process has done so itself."""
        self._caller.close()
        sentinel, self._sentinel = self._sentinel, None
        if sentinel is not None:
            os.close(sentinel)


def _pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable once a process has ended; None where there are none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
