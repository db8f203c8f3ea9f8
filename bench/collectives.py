"""All-reduce of two ranks on this machine, over mpi4py's buffer form.

    pip install mpi4py mpich
    python bench/collectives.py              4 B to 64 MB, float32, the sum
    python bench/collectives.py --sizes 1048576,4194304

Both communicators live in the same two processes, which mpiexec starts, and are timed in turn: the
baseline is `comm.Allreduce(send, receive)`, the contenders `LocalCommunicator.allreduce` and, as it
would run on several machines, `MpiCommunicator.allreduce`. The figures are those of rank 0; every
result is compared. Asked of the first: at most 1.0 from 1 MB up, 1.3 below.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from measure import Row, bar, compare, report

from engine.distributed.local import LocalCommunicator
from engine.distributed.mpi import MpiCommunicator
from engine.distributed.store import StoreServer, connect
from engine.types import CommunicatorOptions, ReduceOp

SIZES = [4**power for power in range(1, 14)]  # 4 B to 64 MB
MOST_BYTES = 200e6  # of payload in one timing, and
MOST_CALLS = 200  # calls
MPI = "mpi4py.MPI"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes, with commas")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rows = rank([int(size) for size in options.sizes.split(",")], options.rounds)
        if rows:
            report(rows, options.json)
        return 0
    mpiexec = Path(sys.executable).with_name("mpiexec")
    launcher = str(mpiexec) if mpiexec.exists() else shutil.which("mpiexec")
    if importlib.util.find_spec("mpi4py") is None or launcher is None:
        print("skipped: mpi4py and an MPI are missing; run: pip install mpi4py mpich")
        return 0
    command = [launcher, "-n", "2", sys.executable, *sys.argv, "--rank"]
    return subprocess.run(command, check=False).returncode


def rank(sizes: list[int], rounds: int) -> list[Row]:
    """Measure in one of two ranks; rank 0 returns the rows."""
    MPI: Any = importlib.import_module("mpi4py.MPI")
    world = MPI.COMM_WORLD
    server = StoreServer() if world.rank == 0 else None
    where = world.bcast((server.address, server.key) if server else None)
    store = connect(*where)
    local = LocalCommunicator(
        CommunicatorOptions(rank=world.rank, world_size=world.size, store=store)
    )
    remote = MpiCommunicator(world.Dup(), "bench", (0, 1))
    rows: list[Row] = []
    for size in sizes:
        send = np.arange(size // 4, dtype=np.float32) + world.rank
        expected = 2 * np.arange(size // 4, dtype=np.float32) + 1
        by_mpi, by_us, by_words = (np.empty_like(send) for _ in range(3))

        def baseline(send: Any = send, receive: Any = by_mpi) -> None:
            world.Allreduce(send, receive, MPI.SUM)

        def ours(send: Any = send, receive: Any = by_us) -> None:
            local.allreduce(send, receive, ReduceOp.SUM, None)

        def over_mpi(send: Any = send, receive: Any = by_words) -> None:
            remote.allreduce(send, receive, ReduceOp.SUM, None)

        calls = int(min(MOST_CALLS, max(2, MOST_BYTES / 20 // size)))
        title = f"{_bytes(size)}, 2 ranks"
        limit = 1.0 if size >= 2**20 else 1.3
        progress = bar(title) if world.rank == 0 else None
        world.Barrier()
        for what, contender in (
            (title, (ours, limit)),
            (f"{title}, for several machines", (over_mpi, None)),
        ):  # apart: one that naps leaves the caches and clocks of an idle machine to the other
            world.Barrier()
            rows += compare(
                baseline, {what: contender}, rounds=rounds, calls=calls, progress=progress
            )
        np.testing.assert_array_equal(by_words, expected)
        np.testing.assert_array_equal(by_us, expected)
        np.testing.assert_array_equal(by_mpi, expected)
    world.Barrier()
    local.close()
    if server is None:
        return []
    server.close()
    return rows


def _bytes(size: int) -> str:
    for unit, name in ((2**20, "MB"), (2**10, "KB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
