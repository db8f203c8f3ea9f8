"""A worker with one model of an isolated backend, and what its parent asks of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from engine.backends.backend import Backend
from engine.errors import Cancelled, ModelError
from engine.host.channel import LOOK_S, Caller
from engine.host.child import FROM_OUTSIDE
from engine.host.interrupts import undisturbed
from engine.host.worker import Ended, Worker
from engine.types import Capability, CompileOptions, ModelSource

LOADING, COMPILING = "while it loaded the model", "while it compiled the model"
RUNNING = "while it ran the model"
_AT_WORK = (LOADING, COMPILING, RUNNING)
"""A worker's work on the model's nodes: a crash at other times is none of theirs."""

GRACE_S = 1.0  # for what is asked to stop and can


class Process:
    """A worker with one model, and what is asked of it."""

    def __init__(self, backend: Backend, source: ModelSource) -> None:
        self.backend = backend
        self.source = source
        self.ended = ""  # why somebody here ended it
        self.worker = Worker("engine.backends.isolation.worker:serve", backend.name)
        self._turn = threading.RLock()
        self._sending = threading.Lock()
        self._contexts = 0

    def call(
        self,
        what: str,
        *arguments: Any,
        doing: str,
        fds: Sequence[int] = (),
        options: CompileOptions | None = None,
    ) -> Any:
        """Have the worker do something; raises what it raises, ModelError where it ends."""
        cancel = options.cancel if options else None
        progress = options.progress if options else None
        asked_s: float | None = None
        with self._turn:
            try:
                self._send((what, *arguments), fds)
                while True:
                    if cancel is not None and cancel.cancelled:
                        if asked_s is None and self.backend.can(Capability.CANCEL_COMPILE):
                            self._send(("cancel", None))
                        asked_s = asked_s or time.monotonic()
                        can_stop = self.backend.can(Capability.CANCEL_COMPILE)
                        if not can_stop or time.monotonic() - asked_s > 10 * GRACE_S:
                            raise Cancelled("cancelled by its owner")
                    try:
                        kind, value = self.worker.receive(LOOK_S if cancel else None)
                    except TimeoutError:
                        continue
                    if kind == "progress":
                        if progress is not None:
                            progress(*value)
                    else:
                        if kind != "error" and cancel is not None:
                            cancel.check()  # it was through before it heard of that
                        break
            except Ended as ended:
                raise self.failed(doing, ended) from None
            except BaseException:  # an interrupt, or the user's own: there is no way back
                self.worker.kill()
                raise
        if kind == "error":
            try:
                raise value
            finally:
                del value  # the traceback of an error has this frame: no cycle
        return value

    def open(self) -> tuple[int, Caller]:
        """Open a context; returns its number and the way to it."""
        # Others use the worker, and what a signal handler raises in the middle of a question would
        # end it. Whoever is interrupted leaves a context that is closed when it is forgotten.
        return undisturbed(self._open)

    def ask(self, what: str, doing: str) -> Any:
        """Have a worker that others may use answer a question. Raises what `call` raises."""
        return undisturbed(partial(self.call, what, doing=doing))

    def _open(self) -> tuple[int, Caller]:
        caller = Caller()
        try:
            with self._turn:
                self._contexts += 1
                number = self._contexts
            self.call("open", number, doing="while a context was opened", fds=caller.fds)
        except BaseException:
            caller.close()
            raise
        caller.sent()
        return number, caller

    def cancel(self, number: int) -> None:
        """Stop what runs in a context, if the backend can."""
        self._send(("cancel", number))

    def _send(self, message: tuple[Any, ...], fds: Sequence[int] = ()) -> None:
        with self._sending:
            self.worker.send(message, fds)

    def end(self, why: str) -> None:
        """End the process, because of one of its predicts."""
        self.ended = self.ended or why
        self.worker.kill()

    def failed(self, doing: str, ended: Ended | None = None) -> ModelError:
        """Return the error of a process that has ended."""
        is_crash = False
        if self.ended:
            how = f"was ended: {self.ended}"
        else:
            ended = ended or self.worker.end()
            how, is_crash = str(ended), -ended.status not in FROM_OUTSIDE
        nodes = self.source.graph.nodes if self.source.graph else ()
        where = ""
        if is_crash and doing in _AT_WORK and len(nodes) == 1:
            named = f" {nodes[0].name!r}" if nodes[0].name else ""
            where = f", in its only node{named} ({nodes[0].op_type})"
        path = "" if self.source.path is None else self.source.name
        return ModelError(
            f"{self.source.name}: backend {self.backend.name!r}, isolated in a process of its "
            f"own, {how} {doing}{where}",
            path,
            at_fault=self.backend.name,
        )

    def close(self) -> None:
        """Let the backend free what it holds, and end the process."""
        if not self.worker.has_ended:
            self._send(("end",))
            self.worker.finish()
        self.worker.close()
