"""A plan whose last inputs are weights that the core holds and may exchange: see `weights`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.formats.opened import variables_of
from engine.plan.contexts import ContextPool
from engine.plan.plan import Opener, Plan
from engine.plan.reports import KernelTimes, PartReports, held_by_core, total
from engine.plan.segments import SegmentedExecutable
from engine.plan.transfer import Transfer, takes_buffers
from engine.plan.weights import PlanWeights
from engine.types import Device, ExecutionContext, MemoryReport, Placement, Values


def with_weights(plan: Plan) -> Plan:
    """Return the plan without the inputs that are its variable weights; `weights` holds these."""
    slots = variables_of(plan.source)
    if not slots:
        return plan
    executable = plan.executable
    first = len(executable.inputs) - len(slots)
    specs = executable.inputs[first:]
    segmented = executable if isinstance(executable, SegmentedExecutable) else None
    transfer = segmented.transfer if segmented else Transfer([(plan.backend, plan.device)])
    homes = [_home(plan, segmented, first + number) for number in range(len(slots))]
    weights = PlanWeights(specs, [slot.initial for slot in slots], homes, transfer)
    weighted = WeightedExecutable(plan, weights)
    pool = ContextPool(Opener(plan.backend, weighted))
    # Their first values are the weights' business from now on: a plan does not hold them twice.
    source = replace(plan.source, variables=())  # type: ignore[call-arg]  # an OpenedSource
    return replace(
        plan,
        source=source,
        executable=weighted,
        predict=weighted.predict,
        pool=pool,
        weights=weights,
    )


def _home(plan: Plan, segmented: SegmentedExecutable | None, number: int) -> Device | None:
    """Return the device on which all that read an input run, None where it is not one."""
    if segmented is None:
        return plan.device if takes_buffers(plan.backend, plan.device) else None
    devices = {
        segment.device if takes_buffers(segment.backend, segment.device) else None
        for segment in segmented.segments
        if number in segment.reads
    }
    return devices.pop() if len(devices) == 1 else None


class WeightedExecutable:
    """An executable whose last inputs are weights that the core holds."""

    def __init__(self, plan: Plan, weights: PlanWeights) -> None:
        self.inner = plan.executable
        self._run = plan.told
        self._memory, self._profile = plan.memory, plan.profile
        self._weights = weights
        self.concurrency: int = getattr(plan.executable, "concurrency", 0)
        self.inputs = plan.executable.inputs[: -len(weights.specs)]
        self.outputs = plan.executable.outputs

    def predict(
        self,
        context: ExecutionContext,
        inputs: Values,
        outputs: Values | None,
        deadline_s: float | None,
    ) -> Values:
        """See engine_predict. The weights are those of one moment."""
        return self._run(context, [*inputs, *self._weights.values], outputs, deadline_s)

    def open_context(self) -> ExecutionContext:
        """See Executable."""
        return self.inner.open_context()

    def placement(self) -> Sequence[Placement]:
        """See Executable."""
        return self.inner.placement()

    def memory(self) -> MemoryReport:
        """Return the inner executable's memory and the weights that are held here."""
        return total(report for _, _, report in self.memory_by_part())

    def memory_by_part(self) -> PartReports:
        """See Plan.memory."""
        return [*self._memory(), *held_by_core(self._weights.values)]

    def profile_by_part(self) -> KernelTimes:
        """See Plan.profile."""
        return self._profile()

    def close(self) -> None:
        """See Executable."""
        self._weights.is_closed = True
        self.inner.close()
