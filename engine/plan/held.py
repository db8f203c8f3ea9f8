"""Plans whose last inputs the core gives: a model's state, and variable weights.

State: parameters that a model assigns to. A lowered MindIR has each as an input and an output of
its ONNX form, after those that a user sees. Its value lives with the model, not with a thread, so
predicts of all threads take turns: their pool's semaphore has one slot.
Variable weights: see `weights`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.formats.opened import state_of, variables_of
from engine.plan.contexts import ContextPool
from engine.plan.plan import Opener, Plan
from engine.plan.reports import PartReports, held_by_core, total
from engine.plan.transfer import Transfer, takes_buffers
from engine.plan.weights import PlanWeights
from engine.types import Device, ExecutionContext, MemoryReport, Value, Values


def with_held_values(plan: Plan) -> Plan:
    """Return the plan as a user sees it: without the inputs and outputs that the core passes on."""
    if variables_of(plan.source):
        plan = _with_weights(plan)
    if values := [slot.initial for slot in state_of(plan.source)]:
        plan = _around(plan, StatefulExecutable(plan, values))
    return plan


def _with_weights(plan: Plan) -> Plan:
    """Return the plan without the inputs that are its variable weights; `weights` holds these."""
    slots = variables_of(plan.source)
    first = len(plan.executable.inputs) - len(slots)
    specs = plan.executable.inputs[first:]
    transfer = getattr(plan.executable, "transfer", None)  # of segments
    weights = PlanWeights(
        specs,
        [slot.initial for slot in slots],
        [_home(plan, number) for number in range(first, first + len(slots))],
        transfer or Transfer([(plan.backend, plan.device)]),
    )
    # Their first values are the weights' business from now on: a plan does not hold them twice.
    source = replace(plan.source, variables=())  # type: ignore[call-arg]  # an OpenedSource
    return replace(_around(plan, WeightedExecutable(plan, weights)), source=source, weights=weights)


def _around(plan: Plan, executable: WeightedExecutable | StatefulExecutable) -> Plan:
    pool = ContextPool(Opener(plan.backend, executable))
    return replace(plan, executable=executable, predict=executable.predict, pool=pool)


def _home(plan: Plan, number: int) -> Device | None:
    """Return the device on which all that read an input run, None where it is not one."""
    segments = getattr(plan.executable, "segments", None)
    if segments is None:
        return plan.device if takes_buffers(plan.backend, plan.device) else None
    devices = {
        segment.device if takes_buffers(segment.backend, segment.device) else None
        for segment in segments
        if number in segment.reads
    }
    return devices.pop() if len(devices) == 1 else None


class HoldingExecutable:
    """An executable around that of a plan. count: how many inputs, the last ones, it gives."""

    def __init__(self, plan: Plan, count: int) -> None:
        self.inner = plan.executable
        self._run = plan.wrappable
        self._memory, self.profile_by_part = plan.memory, plan.profile
        self.concurrency: int = getattr(plan.executable, "concurrency", 0)
        self.inputs = plan.executable.inputs[:-count]
        self.outputs = plan.executable.outputs
        self.open_context = plan.executable.open_context
        self.placement = plan.executable.placement

    def held(self) -> Sequence[Value]:
        """Return the values that it gives."""
        raise NotImplementedError

    def memory(self) -> MemoryReport:
        """Return the inner executable's memory and the values that are held here."""
        return total(report for _, _, report in self.memory_by_part())

    def memory_by_part(self) -> PartReports:
        """See Plan.memory."""
        return [*self._memory(), *held_by_core(self.held())]

    def close(self) -> None:
        """See Executable."""
        self.inner.close()


class WeightedExecutable(HoldingExecutable):
    """An executable whose last inputs are weights, which `PlanWeights` exchanges."""

    def __init__(self, plan: Plan, weights: PlanWeights) -> None:
        super().__init__(plan, len(weights.specs))
        self._weights = weights

    def held(self) -> Sequence[Value]:
        """Return the weights of this moment."""
        return self._weights.values

    def predict(
        self,
        context: ExecutionContext,
        inputs: Values,
        outputs: Values | None,
        deadline_s: float | None,
    ) -> Values:
        """See engine_predict. The weights are those of one moment."""
        return self._run(context, [*inputs, *self._weights.values], outputs, deadline_s)

    def close(self) -> None:
        """See Executable."""
        self._weights.is_closed = True
        super().close()


class StatefulExecutable(HoldingExecutable):
    """An executable that keeps its last outputs as its next inputs."""

    def __init__(self, plan: Plan, values: Sequence[Any]) -> None:
        super().__init__(plan, len(values))
        self._values = list(values)
        self._count = len(self.outputs) - len(values)
        self.concurrency = 1  # a predict begins with what the one before it left
        self.outputs = self.outputs[: self._count]

    def held(self) -> Sequence[Value]:
        """Return the state that the last predict left."""
        return self._values

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
