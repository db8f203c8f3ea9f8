"""Initialise MPI under the eyes of a process of its own.

MPI_Init waits without end for a rank that never comes, holds Python's lock meanwhile, and has
shared memory with a name by then. So a child looks on: it ends this process when the time has
passed, with an error that says why, and takes the memory's name away when this process dies.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["forget_segments", "watched"]

_SEGMENT = re.compile(r" (/dev/shm/mpich_shm_\w+)$", re.MULTILINE)
_LOOK_S = 0.1


def forget_segments() -> None:
    """Take away the names of the memory that MPICH's ranks of this machine share, if it is here.

    MPICH does so when all end well: a rank that is killed leaves 2 MB behind. To be called when all
    ranks have met: MPI, which starts them together, has opened it by then in all.
    """
    if "mpi4py.MPI" in sys.modules:
        _unlink(_segments("self"))


def _segments(process: int | str) -> set[str]:
    with suppress(OSError), open(f"/proc/{process}/maps") as maps:
        return set(_SEGMENT.findall(maps.read()))  # a name that is gone is said to be so
    return set()


def _unlink(paths: set[str]) -> None:
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


@contextmanager
def watched(timeout_s: float, why: str) -> Iterator[None]:
    """End this process, saying why, if the block takes longer: also where it is deaf to signals."""
    child = subprocess.Popen(
        [sys.executable, "-IS", __file__, str(os.getpid()), str(timeout_s), why],
        stdin=subprocess.PIPE,
        start_new_session=True,  # who ends this process's group is to be outlived
        env={},
    )
    try:
        yield
    finally:
        with suppress(OSError):
            child.communicate(b"over")


def _watch(process: int, timeout_s: float, why: str) -> None:
    """Look on until the other end of stdin says that it is over, or closes it in dying."""
    end_s = time.monotonic() + timeout_s
    segments: set[str] = set()
    while not select.select([0], [], [], _LOOK_S)[0]:
        segments |= _segments(process)
        if time.monotonic() > end_s:
            sys.stderr.write(f"engine.errors.CommunicatorError: {why}\n")
            os.kill(process, signal.SIGKILL)
            break
    if os.read(0, 4) != b"over":
        _unlink(segments)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
