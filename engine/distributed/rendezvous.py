"""Ranks that nobody gave a store: they meet at a socket with a name that all of them can tell.

The first that comes holds the store there, for the others. The name is made of what the ranks have
in common: the rank table that they were given, or the launcher (mpirun) that started them. It lies
in Linux's abstract name space: nothing is left behind, and the kernel says whose the other end is.
Nothing here initialises MPI: ranks of one machine do not need it, and MPI_Init waits without end
for a rank that never comes.

    store = store_of(job)          # in each rank, whoever is first
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import socket
import stat
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing.connection import Connection
from typing import Any

from engine.distributed.hosts import is_this_machine
from engine.distributed.job import Job, is_rank_of_launcher
from engine.distributed.rank_table import read
from engine.distributed.store import ConnectedStore, NotThere, StoreServer, connect
from engine.errors import CommunicatorError, one_line
from engine.host.peers import credentials, credentials_of, holder

__all__ = ["store_of"]

_JOIN, _LEAVE = "join", "leave"
_WELCOME, _TAKEN = b"w", b"t"
_LOOK_S = 0.05
_DRAIN_S = 10.0
"""Time that a rank which holds the store gives the others to read what they are reading."""
_ENDING_S = 3.0
"""Time for a process that has a rank to end, where no rank of its job has left yet."""
_LAST_WORDS_S = 0.5
"""Time for the other ranks to say why they fail, before mpirun ends them."""


@dataclass(slots=True)
class _Member:
    """A rank that has come. It leaves before it ends, unless it fails."""

    pid: int
    connection: Connection[Any, Any] | None = None
    has_left: bool = False


class _RendezvousServer(StoreServer):
    """A store that knows its ranks: one that ends without leaving fails the job."""

    def __init__(self, address: str, key: bytes, rank: int, world_size: int) -> None:
        self._members = {rank: _Member(os.getpid())}
        self._world_size = world_size
        super().__init__(address, key)

    def _answer(self, request: dict[str, Any], connection: Connection[Any, Any]) -> Any:
        if request["do"] == _JOIN:
            return self._join(request["rank"], connection)
        if request["do"] == _LEAVE:
            self._members[request["rank"]].has_left = True
            self.end(request["rank"])
            return (_WELCOME,)
        return super()._answer(request, connection)

    def _join(self, rank: int, connection: Connection[Any, Any]) -> tuple[bytes, ...]:
        with self._changed:
            if self._failure:
                return self._failed()
            member = self._members.setdefault(
                rank, _Member(credentials_of(connection)[0], connection)
            )
            is_ending = any(each.has_left for each in self._members.values())
        if member.connection is connection:
            return (_WELCOME,)
        return _TAKEN, json.dumps([member.pid, is_ending]).encode()

    def _ended(self, connection: Connection[Any, Any]) -> None:
        for rank, member in list(self._members.items()):
            if member.connection is connection and not member.has_left:
                self.fail(
                    f"rank {rank} of {self._world_size} has ended: its process crashed, was killed "
                    "or failed; look at its own messages",
                    (rank,),
                )

    def drain(self, timeout_s: float) -> None:
        """Wait until no other process reads from the store, at most `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            members = {member.connection for member in list(self._members.values())}
            if all(map(_is_own, set(self._connections) - members)):
                return
            time.sleep(_LOOK_S)


def _is_own(connection: Connection[Any, Any]) -> bool:
    """Return whether this process is at the other end too: a model that nobody has closed."""
    try:
        return credentials_of(connection)[0] == os.getpid()
    except OSError:  # its thread has closed it
        return True


@dataclass(slots=True)
class _Rendezvous:
    """This process's part in a job whose ranks have met."""

    rank: int
    world_size: int
    address: str
    key: bytes
    pid: int
    is_of_mpirun: bool = False
    server: _RendezvousServer | None = None
    membership: ConnectedStore | None = None

    def leave(self) -> None:
        """Leave when the process ends; not in a forked child, and not well after an exception."""
        if self.pid != os.getpid():
            return
        error = getattr(sys, "last_value", None)
        has_failed = error is not None
        if self.server is not None:
            if error is not None:
                self.server.fail(
                    f"rank {self.rank} of {self.world_size} has failed: {one_line(error)}",
                    (self.rank,),
                )
            else:
                self.server.end(self.rank)
            self.server.drain(_DRAIN_S)
            self.server.close()
        if self.membership is not None:
            if not has_failed:
                with suppress(CommunicatorError):
                    self.membership.ask({"do": _LEAVE, "rank": self.rank})
            self.membership.close()
        if has_failed and self.is_of_mpirun:
            time.sleep(_LAST_WORDS_S)
            _end_job()


_met: dict[tuple[str, int], _Rendezvous] = {}
_lock = threading.Lock()


def store_of(job: Job) -> ConnectedStore:
    """Connect to the store of a job, which is one of the ranks' where nobody else's is given.

    Raises CommunicatorError where that cannot be: the table has other machines, this one's place
    is taken, or the store of an earlier job is still held when the job's time-out has passed.
    """
    if job.address:
        return connect(job.address, job.key)
    name, what = _name_of(job)
    with _lock:
        met = _met.get((name, job.rank))
        if met is None or met.pid != os.getpid():
            met = _met[name, job.rank] = _meet(job, name, what)
            atexit.register(met.leave)
    return connect(met.address, met.key, f"the rank that held it for {what}")


def _name_of(job: Job) -> tuple[str, str]:
    """Return what all ranks of a job can tell, and what it is called in messages."""
    if job.table:
        table = read(job.table)
        away = [host for host in table.hosts if len(table.hosts) > 1 and not is_this_machine(host)]
        if away:
            raise CommunicatorError(
                f"rank table {job.table!r}: host {', '.join(map(repr, away))} is not this machine; "
                "start ranks of several machines with engine launch --rank-table, or with mpirun"
            )
        return f"table-{table.digest}", f"rank table {job.table!r}"
    assert not job.is_of_machines, "those meet by MPI"
    process, start = _launcher()
    return f"launcher-{process}-{start}", f"the ranks that process {process} started"


def address_of(name: str) -> str:
    """Return where this user's ranks of a job meet."""
    return f"@engine-job-{os.geteuid()}-{sha256(name.encode()).hexdigest()[:32]}"


def _meet(job: Job, name: str, what: str) -> _Rendezvous:
    """Hold the store, or join whoever holds it."""
    address = address_of(name)
    key = sha256(f"engine job {address}".encode()).digest()  # the kernel tells friend from foe
    met = _Rendezvous(job.rank, job.world_size, address, key, os.getpid(), bool(job.local_size))
    begin_s = time.monotonic()
    while True:
        try:
            met.server = _RendezvousServer(address, key, job.rank, job.world_size)
            return met
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        try:
            met.membership = connect(address, key)
            pid, is_ending = _join(met.membership, job.rank)
            if not pid:
                return met
            problem = f"process {pid} has been rank {job.rank} of {what}, whose job is not over"
        except CommunicatorError as error:
            if not isinstance(error, NotThere) and not error.ranks:
                raise  # another user's
            place = f"\0{address[1:]}".encode()
            if (user := holder(place)) is not None and user != os.geteuid():
                raise CommunicatorError(
                    f"store: {address} is held by a process of another user, {user}, that does not "
                    "listen; have that process ended, or give the job a table of its own"
                ) from error
            pid, is_ending = 0, True
            problem = str(error)
        if met.membership is not None:
            met.membership.close()
        if pid and not is_ending and time.monotonic() > begin_s + _ENDING_S:
            raise CommunicatorError(
                f"rank {job.rank} of {what} is process {pid} already; give each process a rank of "
                "its own, and each job that runs at the same time a table of its own",
                (job.rank,),
            )
        if time.monotonic() > begin_s + job.timeout_s:
            raise CommunicatorError(f"{problem}; end the processes of the earlier job")
        time.sleep(_LOOK_S)


def _join(store: ConnectedStore, rank: int) -> tuple[int, bool]:
    """Take a rank's place; return who has it, 0 for this process, and if that job is ending."""
    answer, connection = store.ask({"do": _JOIN, "rank": rank})
    if answer == _WELCOME:
        store.keep(connection)
        return 0, False
    pid, is_ending = json.loads(store.receive(connection))  # or its holder ends just now
    connection.close()
    return pid, is_ending


def _launcher() -> tuple[int, str]:
    """Return the process that started all ranks, and when, in ticks of the machine's clock.

    It is the nearest above this one that is no rank itself: between it and a rank there may be
    shells and other wrappers. The start tells it from an earlier process of the same number.
    """
    pid = os.getppid()
    while True:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                inside = is_rank_of_launcher(file.read().split(b"\0"))
            with open(f"/proc/{pid}/stat") as status:
                fields = status.read().rpartition(")")[2].split()
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise CommunicatorError(
                f"process {pid}, which may have started this rank, cannot be looked at: {why}; "
                "start the ranks with engine launch -n N"
            ) from error
        if not inside:
            return pid, fields[19]
        pid = int(fields[1])


def _end_job() -> None:
    """Have mpirun end all ranks, with status 1, where it does not when one of them fails.

    MPICH's does so only for a rank that is in MPI, or asks for it: by this line of its protocol
    (PMI-1), on the socket that each rank has to it. Open MPI's ends the job by itself.
    """
    with suppress(OSError, ValueError, CommunicatorError):
        descriptor = int(os.environ.get("PMI_FD", "-1"))
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return
        with socket.socket(fileno=os.dup(descriptor)) as endpoint:
            # In a wrapped process it may be another file.
            if credentials(endpoint)[0] == _launcher()[0]:
                endpoint.send(b"cmd=abort exitcode=1\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
