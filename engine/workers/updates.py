"""Updates of the weights of all workers: they switch between two requests, or none does.

Each worker prepares an update while the others serve. Then, while no request runs, all switch. A
worker that starts later, or was lost meanwhile, catches up before it serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from engine.errors import RequestRefused
from engine.workers.protocol import MOST_LOST, Lost
from engine.workers.watchdog import Watchdog

if TYPE_CHECKING:
    from engine.weights.variables import Update
    from engine.workers.protocol import Worker
    from engine.workers.supervisor import Supervisor
    from engine.workers.worker_slot import WorkerSlot


def update_all(
    workers: Supervisor, weights: Update, alone: Callable[[], AbstractContextManager[object]]
) -> Sequence[str]:
    """Have all workers of a supervisor take new weights; return their names. One at a time.

    weights: see `engine.weights.variables.sendable`; kept, for workers that start later. alone: a
    context in which no request runs, nor begins. Raises what Model.update_weights raises, and then
    nothing has changed; RequestRefused where MOST_LOST workers end over it and none prepares it,
    ModelError where none is left, ModelStateError where it is closed.
    """
    prepared: list[Worker] = []
    ended: list[str] = []
    names: list[str] = []
    try:
        while not prepared:
            for slot in workers.slots:
                with workers.reserved([slot]) as [worker]:
                    if worker is None:
                        continue
                    try:
                        names = worker.prepare(weights)
                    except Lost as lost:
                        slot.end(str(lost))  # the next one there catches up
                        ended.append(f"{slot} {lost}")
                    else:
                        prepared.append(worker)
            if not prepared:
                if len(ended) >= MOST_LOST:
                    raise _refused(ended, workers.path)
                workers.wait_for_one()
        with alone(), workers.reserved(workers.slots):
            for slot in workers.begin_with(dict(zip(names, _tensors(weights), strict=True))):
                worker = slot.worker
                try:
                    if worker is None or worker not in prepared:
                        raise Lost("has missed it")
                    prepared.remove(worker)
                    _settle(slot, worker, True, workers.hang_s)
                except Exception as error:
                    slot.end(f"was ended for one with the weights of an update: {error}")
    finally:
        for slot in workers.slots if prepared else ():
            with suppress(Exception), workers.reserved([slot]) as [worker]:  # lost, or closed
                if worker in prepared and worker is not None:
                    _settle(slot, worker, False, workers.hang_s)
    return names


def _settle(slot: WorkerSlot, worker: Worker, take: bool, hang_s: float | None) -> None:
    """Have a worker settle an update; one that hangs over it is ended. Raises Worker.settle's."""
    assert slot.ready is not None, "it has prepared"
    with Watchdog(worker, slot.ready, None, None, hang_s):
        worker.settle(take)


def _refused(ended: Sequence[str], path: str) -> RequestRefused:
    return RequestRefused(
        f"update weight failed! Error is the update has ended {len(ended)} workers, and is not "
        f"tried again: {'; '.join(ended)}",
        path,
    )


def _tensors(weights: Update) -> list[Any]:
    """Return the tensors of an update, in its order."""
    if isinstance(weights, Mapping):
        return list(weights.values())
    return [tensor for weight in weights for tensor in weight]
