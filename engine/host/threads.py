"""Choose the number of host threads for this process.

The usable CPUs are shared out among the processes that a launcher started together on this
machine and among the workers of one process, instead of being taken whole by each.
"""

from __future__ import annotations

import os

from engine.host.cpus import usable_cpus

# What launchers say of the number of ranks on this host: this project's own, Open MPI, MPICH's
# hydra, Slurm.
_LOCAL_SIZE = (
    "ENGINE_LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
)


def local_processes() -> int:
    """The processes of this job on this machine, as the launcher says; 1 without a launcher."""
    for variable in _LOCAL_SIZE:
        value = os.environ.get(variable, "")
        if value.isdecimal() and len(value) < 7 and int(value) > 0:
            return int(value)
    return 1


def threads_per_worker(workers: int = 1) -> int:
    """The threads each of `workers` in this process gets: at least 1."""
    return max(1, usable_cpus(processes=local_processes()) // max(1, workers))
