"""Models with state: parameters they assign to, passed on from one predict to the next.

A lowered MindIR has such a parameter as an input and an output of its ONNX form, after those that
a user sees. They live with the model, not with a thread: predicts of all threads take turns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from engine.errors import DeadlineExceeded, ModelStateError
from engine.formats.opened import state_of
from engine.plan.compile import Opener, Plan
from engine.plan.contexts import ContextPool
from engine.types import Executable, ExecutionContext, MemoryReport, Placement, Values


def with_state(plan: Plan) -> Plan:
    """Return the plan as a user sees it: without the inputs and outputs that carry state."""
    values = [slot.initial for slot in state_of(plan.source)]
    if not values:
        return plan
    executable = StatefulExecutable(plan, values)
    pool = ContextPool(Opener(plan.backend, executable))
    return replace(plan, executable=executable, predict=executable.predict, pool=pool)


class StatefulExecutable:
    """An executable that keeps some of its outputs as its next inputs."""

    def __init__(self, plan: Plan, values: list[np.ndarray[Any, Any]]) -> None:
        inner: Executable = plan.executable
        self._inner = inner
        self._run = plan.predict
        self._values: list[Any] = values
        self._count = len(inner.outputs) - len(values)
        self._turn = threading.Lock()
        self.concurrency: int = getattr(inner, "concurrency", 0)
        self._running = 0  # the thread whose turn it is
        self.inputs = inner.inputs[: len(inner.inputs) - len(values)]
        self.outputs = inner.outputs[: self._count]

    def predict(
        self,
        context: ExecutionContext,
        inputs: Values,
        outputs: Values | None,
        deadline_s: float | None,
    ) -> Values:
        """See engine_predict. A run that fails leaves the state as it was.

        Raises DeadlineExceeded, also where the turn does not come in time; ModelStateError in a
        signal handler or finalizer that interrupts a predict of its own thread.
        """
        given = None if outputs is None else [*outputs, *[None] * len(self._values)]
        with self._taking_turns(deadline_s):
            results = self._run(context, [*inputs, *self._values], given, deadline_s)
            self._values = list(results[self._count :])
        results = results[: self._count]
        if outputs is not None and all(a is b for a, b in zip(results, outputs, strict=True)):
            return outputs
        return results

    @contextmanager
    def _taking_turns(self, deadline_s: float | None) -> Iterator[None]:
        if self._running == threading.get_ident():
            raise ModelStateError(
                "predict was called in the middle of a predict of the same thread, and this model "
                "keeps state between them; call it after that one has returned"
            )
        left = -1 if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        if not self._turn.acquire(timeout=min(left, threading.TIMEOUT_MAX)):
            raise DeadlineExceeded("other threads' predicts of this model lasted to the deadline")
        try:
            self._running = threading.get_ident()
            yield
        finally:
            self._running = 0
            self._turn.release()

    def open_context(self) -> ExecutionContext:
        """See Executable."""
        return self._inner.open_context()

    def placement(self) -> Sequence[Placement]:
        """See Executable."""
        return self._inner.placement()

    def memory(self) -> MemoryReport:
        """See Executable."""
        return self._inner.memory()

    def close(self) -> None:
        """See Executable."""
        self._inner.close()
