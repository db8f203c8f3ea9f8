"""Tell whether this process was started as a rank, by the names of variables alone.

engine/distributed reads what they say.
"""

from __future__ import annotations

import os

RANK, WORLD_SIZE = "ENGINE_RANK", "ENGINE_WORLD_SIZE"
STORE, STORE_KEY = "ENGINE_STORE", "ENGINE_STORE_KEY"
TIMEOUT_S = "ENGINE_RANKS_TIMEOUT_S"
TABLE, TABLE_RANK = "RANK_TABLE_FILE", "RANK_ID"

LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),  # MPICH, Intel MPI, Slurm's srun --mpi=pmi2
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),  # Open MPI
)
"""Variables by which mpirun says rank, world size and how many ranks are on this machine."""

_NAMES = (RANK, WORLD_SIZE, STORE, STORE_KEY, TIMEOUT_S, TABLE, *(name for name, *_ in LAUNCHERS))


def is_launched() -> bool:
    """Return whether the environment says anything of ranks."""
    return any(name in os.environ and os.environ[name] for name in _NAMES)
