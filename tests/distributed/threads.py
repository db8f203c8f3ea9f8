"""Ranks that are threads of this process, each with a communicator or a plan of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine
from engine.backends import Backend
from engine.distributed.job import Job
from engine.distributed.local import LocalCommunicator
from engine.distributed.ranks import Ranks
from engine.distributed.store import GroupStore, StoreServer, connect
from engine.formats import open_source
from engine.plan import BuildOptions, Plan, Targets, build_plan
from engine.types import CommunicatorOptions


def soon() -> float:
    """Return a deadline that nothing should need."""
    return time.monotonic() + 30


def outcomes(count: int, main: Callable[[int], Any], limit_s: float = 150.0) -> list[Any]:
    """Call `main` in a thread for each rank; returns what each gave or raised, in rank order."""
    results: list[Any] = [TimeoutError("it did not end")] * count

    def rank_main(rank: int) -> None:
        try:
            results[rank] = main(rank)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
    return results


def values(results: list[Any]) -> list[Any]:
    """Return what the ranks gave; raises what one of them raised."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def run_ranks(world_size: int, main: Callable[[LocalCommunicator], Any]) -> list[Any]:
    """Call `main` with the communicator of each rank; returns what each gave."""

    def rank_main(rank: int) -> Any:
        comm = joined(server, rank, world_size)
        try:
            return main(comm)
        finally:
            comm.close()

    with StoreServer() as server:
        return values(outcomes(world_size, rank_main))


def joined(
    server: StoreServer,
    rank: int,
    world_size: int,
    group: str = "world",
    timeout_s: float = 30.0,
    ranks: tuple[int, ...] = (),
) -> LocalCommunicator:
    """Join a group of a job. ranks: its members' numbers there, by default all."""
    store: Any = connect(server.address, server.key)
    options = CommunicatorOptions(
        rank=rank,
        world_size=world_size,
        store=GroupStore(store, group),
        group=group,
        ranks=ranks or tuple(range(world_size)),
        timeout_s=timeout_s,
    )
    try:
        return LocalCommunicator(options)
    finally:
        store.close()


def rank_plan(path: Path, job: Job, backend: Backend | bool) -> tuple[Plan, Ranks]:
    """Build one rank's plan on the null backend, which joins the others.

    backend: whose collectives run, True for the plan's own, False for those of the host.
    """
    opened: list[Ranks] = []

    def open_ranks(rank: int, _: int, name: str, own: Backend, device: Any) -> Ranks:
        on_device = () if backend is False else (own if backend is True else backend, device)
        opened.append(Ranks(job, rank, job.world_size, name, *on_device))
        return opened[0]

    context = engine.Context()
    context.target = ["null"]
    context.ascend.rank_id = job.rank
    options = BuildOptions(context, {}, open_ranks=open_ranks)
    return build_plan(open_source(path), Targets(options)), opened[0]


def predict(plan: Plan, *inputs: Any, outputs: Any = None) -> Any:
    """Run a plan once, in any context."""
    lease = plan.pool.borrow()
    try:
        return plan.predict(lease.context, list(inputs), outputs, None)
    finally:
        plan.pool.give_back(lease)
