"""The process at the other end of a Unix socket, as the kernel knows it."""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
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


def holder(name: bytes) -> int | None:
    """Return the user who has a Unix socket of that name, also one that does not listen.

    None where nobody has, and where the kernel does not tell (Linux before 5.3).
    """
    dump, request, done, error, name_of, user_of = 0x300, 0x1, 3, 2, 0, 7
    show = 0x1 | 0x40  # names and users
    every = 0xFFFFFFFF
    body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, every, 0, show, every, every)
    head = struct.pack("=IHHII", _MESSAGE + len(body), 20, request | dump, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as wire:
            wire.settimeout(1)
            wire.send(head + body)
            while True:
                data = wire.recv(1 << 17)
                at = 0
                while at < len(data):
                    length, kind = struct.unpack_from("=IH", data, at)
                    if kind in (done, error):
                        return None
                    found = dict(_attributes(data[at + 2 * _MESSAGE : at + length]))
                    if found.get(name_of) == name and len(found.get(user_of, b"")) == 4:
                        return int.from_bytes(found[user_of], sys.byteorder)
                    at += (length + 3) & ~3
    except (OSError, struct.error):
        return None


_MESSAGE, _SOCK_DIAG = 16, 4  # bytes of a head, and of a socket's own part; the protocol


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            return
        yield kind, data[at + 4 : at + length]
        at += (length + 3) & ~3


def dial(name: bytes, end_s: float) -> socket.socket:
    """Connect to a Unix socket of this user's, waiting for room in its backlog.

    end_s: on the monotonic clock. Nothing was sent yet. Raises TimeoutError, PermissionError where
    a process of another user listens, OSError where nobody does.
    """
    while True:
        wire = socket.socket(socket.AF_UNIX)
        try:
            left_s = max(0.001, end_s - time.monotonic())
            # Python's own time-out does not wait for room in a backlog; the kernel's does, in turn.
            limit(wire, left_s)
            with suppress(BlockingIOError):  # full still, or a signal came
                wire.connect(name)
            if _is_connected(wire):
                if (user := credentials(wire)[1]) != os.geteuid():
                    raise PermissionError(f"{name!r} is held by a process of another user, {user}")
                limit(wire, 0)
                return wire
            if time.monotonic() >= end_s:
                raise TimeoutError(f"{name!r} has no room in its backlog")
        except BaseException:
            wire.close()
            raise
        wire.close()


def _is_connected(wire: socket.socket) -> bool:
    try:
        wire.getpeername()
    except OSError:
        return False
    return True


def limit(wire: socket.socket, seconds: float) -> None:
    """Have connect, and each read and write, end with an OSError after a time; 0 for never."""
    time_value = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        wire.setsockopt(socket.SOL_SOCKET, option, time_value)


def has_ended(process: int) -> bool:
    """Return whether the process of a pidfd has ended; its number may be another's since then."""
    poller = select.poll()
    poller.register(process, select.POLLIN)
    return bool(poller.poll(0))
