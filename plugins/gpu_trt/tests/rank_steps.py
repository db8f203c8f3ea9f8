"""Steps of one of two ranks in test_communicator.py: `rank_steps.py RANK STORE SCENARIO ...`.

A scenario returns what the rank has to say of it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np

from engine.backends import open_backend
from engine.errors import CommunicatorError
from engine.types import Device, ReduceOp
from engine_testing.rank import Rank


def error_of(call: Any) -> str:
    try:
        call()
    except CommunicatorError as error:
        return f"{error} {error.ranks}"
    return "no error"


def allreduce(rank: Rank, comm: Any, stream: int | None, deadline_s: float | None) -> Any:
    buffer = rank.put(np.ones(4, np.float32))
    rank.collectives().allreduce(comm, buffer, buffer, ReduceOp.SUM, stream, False, deadline_s)
    return buffer


def dies(rank: Rank) -> str:
    """Rank 1 ends without a word while rank 0 waits for it, without a deadline."""
    begin_s = time.monotonic()
    comm = rank.join()
    if rank.rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    error = error_of(lambda: allreduce(rank, comm, None, None))
    assert time.monotonic() - begin_s < 20, "not at once"
    comm.close()
    return error


def queued(rank: Rank) -> str:
    """Nobody waits for what rank 0 has queued, and rank 1 never comes: `check` says so."""
    from engine_gpu_trt.cuda import open_gpu

    comm, error = rank.join(), ""
    if rank.rank == 0:
        with open_gpu(rank.device.id) as gpu:
            stream = gpu.stream()
        buffer = allreduce(rank, comm, stream.handle, time.monotonic() + 0.4)
        assert error_of(comm.check) == "no error"
        end_s = time.monotonic() + 20
        while error_of(comm.check) == "no error" and time.monotonic() < end_s:
            time.sleep(0.05)
        error = error_of(comm.check)
        with gpu:
            stream.synchronize()  # the abort has let it go
            stream.close()
        del buffer
        rank.store.set("done", b"")
    rank.store.get("done", 60)
    comm.close()
    return error


def leaves(rank: Rank) -> str:
    """Rank 1 aborts; rank 0, which waits for it, hears why."""
    comm = rank.join()
    if rank.rank == 1:
        time.sleep(0.3)
        comm.abort()
        comm.close()
        return ""
    error = error_of(lambda: allreduce(rank, comm, None, None))
    comm.close()
    return error


def large(rank: Rank) -> str:
    """Eight megabytes go through an all-to-all."""
    comm = rank.join()
    mine = np.arange(2 * 2**20, dtype=np.float32) + rank.rank
    receive = rank.like((2 * 2**20,))
    rank.collectives().alltoall(comm, rank.put(mine), receive, None, None)
    half = slice(rank.rank * 2**20, (rank.rank + 1) * 2**20)
    whole = np.arange(2 * 2**20, dtype=np.float32)
    rank.expect(receive, np.concatenate([whole[half], whole[half] + 1]))
    comm.close()
    return "equal"


def same(rank: Rank) -> str:
    """Both ranks take device 0, which NCCL refuses."""
    own, rank.device = rank.device, Device("gpu", 0)
    error = error_of(rank.join)
    rank.device = own
    return error


if __name__ == "__main__":
    number, where, *scenarios = sys.argv[1:]
    this = Rank(open_backend("gpu_trt"), int(number), 2, where)
    for scenario in scenarios:
        this.scenario = scenario
        print(f"{scenario}: {globals()[scenario](this)}", flush=True)
