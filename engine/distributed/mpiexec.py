"""Ranks on several machines are started by MPI's own launcher: the command line for it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from engine.distributed.rank_table import RankTable
from engine.errors import CommunicatorError

__all__ = ["mpiexec_command"]


def mpiexec_command(
    table: RankTable, command: Sequence[str], log_dir: Path | None = None
) -> list[str]:
    """Return the command that runs a program once for each rank of a table, on the rank's host.

    It is that of MPICH, which lies beside this Python where the extra `mpi` is installed. log_dir:
    where the ranks' output is to be written; without it each line has its rank before it.
    Raises CommunicatorError where there is none, or the table's ranks are in another order.
    """
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.is_file() else shutil.which("mpiexec")
    away = ", ".join(map(repr, table.hosts))
    if mpiexec is None:
        raise CommunicatorError(
            f"rank table {table.path!r} has the hosts {away}; ranks of several machines are "
            'started by mpiexec, which is not installed; run: pip install "inference-engine[mpi]"'
        )
    counts = [(host, len(list(ranks))) for host, ranks in groupby(p.host for p in table.places)]
    if len(counts) > len(table.hosts):
        raise CommunicatorError(
            f"rank table {table.path!r}: the ranks of a host do not follow each other, and mpiexec "
            "numbers them host by host; number them so"
        )
    hosts = ",".join(f"{host}:{count}" for host, count in counts)
    output = ["-prepend-rank"]
    if log_dir is not None:
        output = ["-outfile-pattern", f"{log_dir}/rank%r.out"]
        output += ["-errfile-pattern", f"{log_dir}/rank%r.err"]
    return [mpiexec, *output, "-hosts", hosts, "-n", str(table.world_size), *command]
