"""The mpirun that started this process: which process it is, and how to end its job.

Nothing here initialises MPI: on one machine ranks need it neither to find each other nor to
exchange tensors, and MPI_Init waits without end for a rank that never comes.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

from engine.distributed.job import is_rank_of_launcher
from engine.errors import CommunicatorError
from engine.host.peers import credentials

__all__ = ["end_job", "launcher"]


def launcher() -> tuple[int, str]:
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


def end_job() -> None:
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
            if credentials(endpoint)[0] == launcher()[0]:
                endpoint.send(b"cmd=abort exitcode=1\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
