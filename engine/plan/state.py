"""Models with state: parameters they assign to, passed on from one predict to the next.

A lowered MindIR has such a parameter as an input and an output of its ONNX form, after those that
a user sees. They live with the model, not with a thread: predicts of all threads take turns:
their pool's semaphore has one slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine.formats.opened import state_of
from engine.plan.contexts import ContextPool
from engine.plan.plan import Opener, Plan
from engine.plan.reports import KernelTimes, PartReports, held_by_core, total
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
        self.inner = inner
        self._run = plan.told
        self._memory, self._profile = plan.memory, plan.profile
        self._values: list[Any] = values
        self._count = len(inner.outputs) - len(values)
        self.concurrency = 1  # a predict begins with what the one before it left
        self.inputs = inner.inputs[: len(inner.inputs) - len(values)]
        self.outputs = inner.outputs[: self._count]

    def predict(
        self,
        context: ExecutionContext,
        inputs: Values,
        outputs: Values | None,
        deadline_s: float | None,
    ) -> Values:
        """See engine_predict. A run that fails leaves the state as it was."""
        given = None if outputs is None else [*outputs, *[None] * len(self._values)]
        results = self._run(context, [*inputs, *self._values], given, deadline_s)
        count = self._count + len(self._values)
        if len(results) != count:
            raise TypeError(f"engine_predict gave {len(results)} values for {count}")
        self._values = list(results[self._count :])
        results = results[: self._count]
        if outputs is not None and all(a is b for a, b in zip(results, outputs, strict=True)):
            return outputs
        return results

    def open_context(self) -> ExecutionContext:
        """See Executable."""
        return self.inner.open_context()

    def placement(self) -> Sequence[Placement]:
        """See Executable."""
        return self.inner.placement()

    def memory(self) -> MemoryReport:
        """Return the inner executable's memory and the state that is held here."""
        return total(report for _, _, report in self.memory_by_part())

    def memory_by_part(self) -> PartReports:
        """See Plan.memory."""
        return [*self._memory(), *held_by_core(self._values)]

    def profile_by_part(self) -> KernelTimes:
        """See Plan.profile."""
        return self._profile()

    def close(self) -> None:
        """See Executable."""
        self.inner.close()
