"""The job that this process is a rank of, as whoever started it says in the environment.

ENGINE_RANK, ENGINE_WORLD_SIZE    this process among those that run one sliced model
ENGINE_STORE, ENGINE_STORE_KEY    where they find each other: a StoreServer's address and key
ENGINE_RANKS_TIMEOUT_S            how long ranks wait for each other, 120 by default

Without them: what mpirun says (PMI_RANK and PMI_SIZE, or Open MPI's), or RANK_TABLE_FILE and
RANK_ID. The ranks then find each other by themselves, see `rendezvous`.

with StoreServer() as server:
    for rank in range(2):
        subprocess.Popen(command, env=environment(server, rank, 2))
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from engine.errors import CommunicatorError
from engine.host import launched
from engine.host.launched import LAUNCHERS, RANK, STORE, STORE_KEY, TABLE, TABLE_RANK, WORLD_SIZE

if TYPE_CHECKING:
    from engine.distributed.store import StoreServer

TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Job:
    """A rank's place in its job. address: of the store, "" where there is none.

    key: what the store wants to see. timeout_s: how long ranks wait for each other. table: the rank
    table by which ranks without a store find each other. local_size: the ranks on this machine,
    where mpirun has started them, which then find each other by it; else 0.
    """

    rank: int = 0
    world_size: int = 1
    address: str = ""
    key: bytes = field(default=b"", repr=False)  # a secret
    timeout_s: float = TIMEOUT_S
    table: str = ""
    local_size: int = 0

    @property
    def is_of_machines(self) -> bool:
        """True where mpirun has started ranks on other machines too."""
        return bool(self.local_size) and self.local_size != self.world_size and not self.address

    @property
    def is_started(self) -> bool:
        """True where the ranks can find each other."""
        return bool(self.address or self.table or self.local_size)


def this_job(environ: Mapping[str, str] | None = None) -> Job:
    """Read the environment; a process that nobody started as a rank is a job of its own.

    Raises CommunicatorError naming a variable that says what cannot be.
    """
    environ = os.environ if environ is None else environ
    timeout_s = _seconds(environ, launched.TIMEOUT_S)
    if any(environ.get(name) for name in (RANK, WORLD_SIZE, STORE, STORE_KEY)):
        return _launched(environ, timeout_s)
    for rank, world_size, local_size in LAUNCHERS:
        if environ.get(rank) and environ.get(world_size, "1") != "1":
            numbers = _place(environ, rank, world_size)
            local = _count(environ, local_size, numbers[1])
            return Job(*numbers, timeout_s=timeout_s, local_size=local)
    if path := environ.get(TABLE):
        return table_job(path, _count(environ, TABLE_RANK, 0), timeout_s)
    return Job(timeout_s=timeout_s)


def job_of(rank: int, tables: Iterable[str]) -> Job:
    """Return which rank of which job a model is for: as this process was launched, or as it says.

    The rank and the ranks' number are the job's, not a device's: those of the launch until a
    script names another rank, or a rank table.
    """
    job = this_job()
    for path in tables:
        job = in_table(job, path, rank)
    return job if job.rank == rank else replace(job, rank=rank)


def table_job(path: str, rank: int, timeout_s: float) -> Job:
    """Return the place of a rank in the job of a rank table."""
    return Job(rank, _world_size(path), timeout_s=timeout_s, table=path)


def in_table(job: Job, path: str, rank: int) -> Job:
    """Return a job whose script names a rank table; rank: as the script says.

    Raises CommunicatorError where the table has another number of ranks than were started.
    """
    if not job.is_started:
        return table_job(path, rank, job.timeout_s)
    count = _world_size(path)
    if count != job.world_size and not job.table:
        raise CommunicatorError(
            f"rank table {path!r} has {count} ranks, but {job.world_size} were started; start as "
            "many, or leave the table out"
        )
    return replace(job, world_size=count, table=path)


def is_rank_of_launcher(environ: Iterable[bytes]) -> bool:
    """Return whether an environment, as "NAME=value" texts, is that of a rank of mpirun."""
    names = {f"{rank}=".encode() for rank, _, _ in LAUNCHERS}
    return any(text.partition(b"=")[0] + b"=" in names for text in environ)


def _world_size(path: str) -> int:
    """Return the number of ranks of a rank table; contexts ask for it often."""
    try:
        status = os.stat(path)
        unchanged = (status.st_ino, status.st_mtime_ns, status.st_size)
    except OSError:  # to be said by who reads it
        unchanged = (0, 0, 0)
    return _read_world_size(path, unchanged)


@lru_cache(8)
def _read_world_size(path: str, unchanged: tuple[int, ...]) -> int:
    from engine.distributed.rank_table import read  # rare

    return read(path).world_size


def _launched(environ: Mapping[str, str], timeout_s: float) -> Job:
    rank, world_size = _place(environ, RANK, WORLD_SIZE)
    text = environ.get(STORE_KEY, "")
    try:
        key = bytes.fromhex(text)
    except ValueError as error:
        raise CommunicatorError(f"{STORE_KEY} is no hexadecimal number") from error
    return Job(rank, world_size, environ.get(STORE, ""), key, timeout_s)


def _place(environ: Mapping[str, str], rank: str, world_size: str) -> tuple[int, int]:
    count = _count(environ, world_size, 1)
    number = _count(environ, rank, 0)
    if count < 1 or number >= count:
        raise CommunicatorError(
            f"{rank}={number} and {world_size}={count}: expected a rank from 0 to the world "
            "size less 1"
        )
    return number, count


def environment(
    server: StoreServer, rank: int, world_size: int, local_size: int = 0
) -> dict[str, str]:
    """Return this process's environment for a rank on this machine that it starts.

    local_size: ranks on this machine, which share its CPUs; 0 for all.
    """
    return {
        **os.environ,
        RANK: str(rank),
        WORLD_SIZE: str(world_size),
        STORE: server.address,
        STORE_KEY: server.key.hex(),
        "ENGINE_LOCAL_SIZE": str(local_size or world_size),
    }


def _count(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "") or str(default)
    if not text.isdecimal() or len(text) > 9:
        raise CommunicatorError(f"{name}={text!r}: expected a whole number")
    return int(text)


def _seconds(environ: Mapping[str, str], name: str) -> float:
    text = environ.get(name, "") or str(TIMEOUT_S)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise CommunicatorError(f"{name}={text!r}: expected seconds, above 0")
    return seconds
