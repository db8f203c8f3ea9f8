"""The process at the other end of a Unix socket, as the kernel knows it."""

from __future__ import annotations

import os
import select
import socket
import struct
from multiprocessing.connection import Connection
from typing import Any

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid

HAS_PEERS = hasattr(socket, "SO_PEERCRED") and hasattr(os, "pidfd_open")
"""True where `credentials` and pidfds work: Linux 5.3 and newer."""


def credentials(socket_: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the process that connected, or that listens where one did."""
    data = socket_.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(data)
    return pid, uid, gid


def credentials_of(connection: Connection[Any, Any]) -> tuple[int, int, int]:
    """Return pid, uid and gid of the process at the other end of a connection."""
    with socket.socket(fileno=os.dup(connection.fileno())) as socket_:
        return credentials(socket_)


def has_ended(process: int) -> bool:
    """Return whether the process of a pidfd has ended; its number may be another's since then."""
    poller = select.poll()
    poller.register(process, select.POLLIN)
    return bool(poller.poll(0))
