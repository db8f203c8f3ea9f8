"""The transports of this distribution: shared memory on one machine, MPI on several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.distributed.job import Job
from engine.distributed.local import LocalCommunicator
from engine.distributed.rank_segments import HOST
from engine.distributed.rendezvous import store_of
from engine.distributed.store import GroupStore, exchange
from engine.types import CommunicatorOptions

if TYPE_CHECKING:
    from engine.distributed.mpi import MpiCommunicator


class Local:
    """Ranks of one machine, which find each other by a store; see `rendezvous`."""

    def join(self, job: Job, plan: int) -> LocalRendezvous:
        """See Transport."""
        return LocalRendezvous(job, plan)


class LocalRendezvous:
    """See Rendezvous."""

    def __init__(self, job: Job, plan: int) -> None:
        self._job = job
        self._place = f"plan {plan}"
        self._store = store_of(job)

    def exchange(self, value: bytes, timeout_s: float) -> list[bytes]:
        """See Rendezvous."""
        keys = GroupStore(self._store, f"{self._place}: agreement")
        return exchange(keys, self._job.rank, self._job.world_size, value, timeout_s)

    def options(
        self, name: str, members: tuple[int, ...], timeout_s: float, place: str = ""
    ) -> CommunicatorOptions:
        """Return the options of a group, for a communicator of it. place: "" for the host."""
        return CommunicatorOptions(
            rank=members.index(self._job.rank),
            world_size=len(members),
            store=GroupStore(self._store, f"{self._place}: group {name}{place}"),
            group=name or "world",
            ranks=members,
            device=HOST,
            rank_table=Path(self._job.table) if self._job.table else None,
            timeout_s=timeout_s,
        )

    def group(self, name: str, members: tuple[int, ...], timeout_s: float) -> LocalCommunicator:
        """See Rendezvous."""
        return LocalCommunicator(self.options(name, members, timeout_s))

    def close(self) -> None:
        """See Rendezvous."""
        self._store.close()  # until somebody asks again: ranks on a device may


class Mpi:
    """Ranks that an mpirun has started on several machines."""

    def join(self, job: Job, plan: int) -> MpiRendezvous:
        """See Transport."""
        return MpiRendezvous(job)


class MpiRendezvous:
    """See Rendezvous."""

    def __init__(self, job: Job) -> None:
        from engine.distributed.mpi import MpiExchange, world

        self._ranks = MpiExchange(world(job))

    def exchange(self, value: bytes, timeout_s: float) -> list[bytes]:
        """See Rendezvous."""
        return self._ranks.exchange(value, timeout_s)

    def group(self, name: str, members: tuple[int, ...], timeout_s: float) -> MpiCommunicator:
        """See Rendezvous."""
        from engine.distributed.mpi import MpiCommunicator

        return MpiCommunicator(self._ranks.group(members), name or "world", members)

    def close(self) -> None:
        """See Rendezvous."""


LOCAL, MPI = Local(), Mpi()
