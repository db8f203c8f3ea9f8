"""Ranks that are threads of this process, each with a communicator of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from engine.distributed.local import LocalCommunicator
from engine.distributed.store import GroupStore, StoreServer, connect
from engine.types import CommunicatorOptions


def run_ranks(
    world_size: int, main: Callable[[LocalCommunicator], Any], limit_s: float = 60.0
) -> list[Any]:
    """Call `main` in a thread for each rank; returns what each gave or raised, in rank order."""
    results: list[Any] = [TimeoutError("it did not end")] * world_size

    def rank_main(rank: int) -> None:
        comm = None
        try:
            comm = joined(server, rank, world_size)
            results[rank] = main(comm)
        except BaseException as error:
            results[rank] = error
        finally:
            if comm is not None:
                comm.close()

    with StoreServer() as server:
        threads = [threading.Thread(target=rank_main, args=(r,)) for r in range(world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(limit_s)
    return results


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


def values(results: list[Any]) -> list[Any]:
    """Return what the ranks gave; raises what one of them raised."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
