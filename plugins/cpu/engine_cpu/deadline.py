"""Stopping a run that takes too long.

ONNX Runtime looks at RunOptions.terminate between nodes; the core's thread for deadlines sets it.
"""

from __future__ import annotations

import time
from types import TracebackType

from engine.errors import DeadlineExceeded, EngineError
from engine.host import deadlines
from engine.host.interrupts import raised_by_handler
from engine_cpu.runtime import ort


class Deadline:
    """Block around one run, which gets `options`: it is stopped at the deadline, with its error.

    They are the run's own: the deadline may set their flag just after the run has ended.
    deadline_s: a moment of time.monotonic().
    """

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.options = ort.RunOptions()
        self.done = False
        self.stopped = False

    def __enter__(self) -> ort.RunOptions:
        if time.monotonic() >= self.deadline_s:
            raise DeadlineExceeded("the deadline had passed before the model could run")
        deadlines.watch(self)
        return self.options

    def expire(self) -> None:
        """Stop the run; called at the deadline."""
        self.stopped = True
        self.options.terminate = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.done = True
        if not self.stopped or not isinstance(error, Exception) or isinstance(error, EngineError):
            return
        if not raised_by_handler(error):
            raise DeadlineExceeded("the model was stopped at its deadline") from error
