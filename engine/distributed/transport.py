"""Transports: ways for ranks to exchange host tensors.

    [project.entry-points."engine.transports.v1"]
    mine = "my_package:TRANSPORT"

ENGINE_TRANSPORT names the one that ranks use. Without it that is `local` for ranks of one machine,
in shared memory, and `mpi` for those that mpirun has started on several.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

import numpy as np

from engine.backends import doors
from engine.backends.doors import TRANSPORTS
from engine.backends.records import BackendState
from engine.distributed.job import Job
from engine.errors import CommunicatorError, EngineError, one_line
from engine.host.interrupts import raised_by_handler
from engine.types import ReduceOp

VARIABLE = "ENGINE_TRANSPORT"
LOCAL = "local"

Array: TypeAlias = "np.ndarray[Any, Any]"


class HostCommunicator(Protocol):
    """A group of ranks that exchange host tensors, which are C-contiguous arrays.

    Each of its ranks calls the same in the same order; `abort` and `refuse` are for any thread.
    A call that cannot be finished until its deadline, on the monotonic clock, raises
    CommunicatorError naming the ranks that do not come; None waits without end. Such a failure ends
    the group.
    """

    rank: int
    world_size: int

    def allreduce(
        self, send: Array, receive: Array, op: ReduceOp, deadline_s: float | None
    ) -> None:
        """See engine_allreduce; contributions are combined in the order of the ranks."""

    def allgather(self, send: Array, receive: Array, deadline_s: float | None) -> None:
        """See engine_allgather."""

    def send(self, buffer: Array, peer: int, deadline_s: float | None) -> None:
        """See engine_send."""

    def receive(self, buffer: Array, peer: int, deadline_s: float | None) -> None:
        """See engine_receive."""

    def refuse(self, why: str) -> None:
        """Tell the others that this rank does not begin a predict; the group goes on."""

    def abort(self, why: str) -> None:
        """Make what runs and what comes fail, here and at the others, who get the reason."""

    def check(self) -> None:
        """Raise CommunicatorError if the group has ended."""

    def close(self) -> None:
        """Leave the group; twice does nothing."""


class Rendezvous(Protocol):
    """The ranks of a job while they join the groups of one plan."""

    def exchange(self, value: bytes, timeout_s: float) -> list[bytes]:
        """Give every rank of the job the values of all, in rank order.

        Raises CommunicatorError naming the ranks that did not give theirs within `timeout_s`.
        """

    def group(self, name: str, members: tuple[int, ...], timeout_s: float) -> HostCommunicator:
        """Join a group. members: its ranks in the job, which this one is among.

        Each member calls it, in one order for all groups. name: for messages, "" for all ranks.
        """

    def close(self) -> None:
        """Free what joining took; the groups go on."""


class Transport(Protocol):
    """An object that an entry of group `engine.transports.v1` names."""

    def join(self, job: Job, plan: int) -> Rendezvous:
        """Meet the other ranks of a job. plan: how many plans the job has joined with this one.

        Raises CommunicatorError naming the ranks that did not come within `job.timeout_s`.
        """


def name_for(job: Job) -> str:
    """Return the name of the transport that the ranks of a job use."""
    return os.environ.get(VARIABLE, "") or ("mpi" if job.is_of_machines else LOCAL)


def join(name: str, job: Job, plan: int) -> Rendezvous:
    """Meet the other ranks of a job by a transport. Raises CommunicatorError."""
    found, transport = doors.resolve(TRANSPORTS, name)
    if found.state is not BackendState.READY:
        raise CommunicatorError(str(found)) from transport
    with faults_of(name):
        rendezvous: Rendezvous = transport.join(job, plan)
    return rendezvous


@contextmanager
def faults_of(name: str) -> Iterator[None]:
    """Let an error that a transport should not raise name it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, EngineError) or raised_by_handler(error):
            raise
        raise CommunicatorError(f"transport {name!r} failed: {one_line(error)}") from error
