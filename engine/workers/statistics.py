"""Counts and states of a MultiDeviceRunner's workers beside those of its requests."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from engine.serving.statistics import RunnerStatistics

if TYPE_CHECKING:
    from engine.workers.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """A worker now: the device that the user listed, its process, 0 for none.

    state: "starting", "ready", "busy", "paused" after a start that failed, "given up", "closed".
    restarts: workers that this one and those before it were followed by. reason: why the last start
    failed, "" where it did not.
    """

    device_id: int
    pid: int
    state: str
    restarts: int
    reason: str = ""

    def __str__(self) -> str:
        process = f", process {self.pid}" if self.pid else ""
        reason = f" ({self.reason})" if self.reason else ""
        return f"device {self.device_id}: {self.state}{reason}{process}, {self.restarts} restarts"


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiDeviceStatistics(RunnerStatistics):
    """A runner's requests since it was built, and its workers, in the order of device_ids.

    retries: parts of requests that were run again because their worker was lost. restarts: of all
    workers.
    """

    retries: int = 0
    restarts: int = 0
    workers: tuple[WorkerStatistics, ...] = ()

    def __repr__(self) -> str:
        return str(self)  # what a prompt shows; an inherited one would be dataclass's

    def __str__(self) -> str:
        lines = RunnerStatistics.__str__(self).splitlines()[:-1]  # without sizes: nothing is joined
        lines.append(f"batches    {self.batching}")
        lines.append(f"workers    {self.restarts} restarts, {self.retries} retries")
        return "\n".join([*lines, *(f"           {worker}" for worker in self.workers)])


def report(requests: RunnerStatistics, supervisor: Supervisor) -> MultiDeviceStatistics:
    """Return what there is now."""
    workers = tuple(
        WorkerStatistics(
            slot.assignment.device_id, slot.pid, slot.shown_state, slot.restarts, slot.why
        )
        for slot in supervisor.slots
    )
    return MultiDeviceStatistics(
        **{field.name: getattr(requests, field.name) for field in fields(RunnerStatistics)},
        retries=supervisor.retries,
        restarts=sum(worker.restarts for worker in workers),
        workers=workers,
    )
