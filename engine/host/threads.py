"""Choose the number of host threads for this process.

The usable CPUs are shared out among the processes that a launcher started together on this
machine and among the workers of one process, instead of being taken whole by each.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from engine.errors import CommunicatorError
from engine.host.cpus import usable_cpus

_OWN = "ENGINE_LOCAL_SIZE"

# Launchers' variables for the number of ranks on this host: Open MPI, MPICH's hydra, Slurm.
_LAUNCHERS = (
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
)


def local_processes(environ: Mapping[str, str] | None = None) -> int:
    """Return the processes of this job on this machine, as the launcher says; 1 without one.

    Raises CommunicatorError where ENGINE_LOCAL_SIZE is no such number.
    """
    environ = os.environ if environ is None else environ
    if text := environ.get(_OWN):
        if not _is_count(text):
            raise CommunicatorError(f"{_OWN}={text!r}: expected a whole number above 0")
        return int(text)
    for variable in _LAUNCHERS:
        text = environ.get(variable, "")
        if _is_count(text):  # another program's variable may mean something else: not refused
            return int(text)
    return 1


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) < 7 and int(text) > 0


def threads_per_worker(workers: int = 1) -> int:
    """The threads each of `workers` in this process gets: at least 1."""
    return max(1, usable_cpus(processes=local_processes()) // max(1, workers))
