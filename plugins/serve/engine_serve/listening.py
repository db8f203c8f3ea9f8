"""Sockets that listen, and how they stop without a loss."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import socket
import struct
import sys
import time

from engine.errors import SettingError

_LOOK_S = 0.005
_SO_ATTACH_FILTER = 26  # Linux: asm-generic/socket.h; Python does not name it
# A filter of Linux (Documentation/networking/filter.rst) for packets from TCP's header on: it drops
# those with SYN, which ask for a connection. Each: code, jump if true, jump if false, constant.
_NO_SYN = (
    (0x30, 0, 0, 13),  # load the byte of flags
    (0x45, 0, 1, 0x02),  # is SYN set?
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # keep
)


def listening(host: str, port: int, option: str) -> socket.socket:
    """Return a socket that is bound. option: sets the port. Raises SettingError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        text = f"cannot listen at {host}:{port}: {error.strerror}"
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            text += f"; {option} chooses another port, 0 one that is free"
        raise SettingError(text) from error
    bound.setblocking(False)
    return bound


def refuse_new(bound: socket.socket) -> bool:
    """Let a socket that listens not answer who asks for a connection; return False where it cannot.

    A socket that is closed resets the connections that it has not accepted, whose clients may have
    sent a request. After this call none comes to it: a client asks again, in vain once the socket
    is closed.
    """
    if sys.platform != "linux":
        return False
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _NO_SYN))
    filter_ = struct.pack("HP", len(_NO_SYN), ctypes.addressof(program))
    try:
        bound.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)
    except OSError:  # of a kernel without it
        return False
    return True


async def accepted(bound: socket.socket, wait_s: float) -> list[socket.socket]:
    """Return the connections that wait at a socket, which does not block.

    An error is of one connection, or of the process, which lacks descriptors or memory for now:
    the others are accepted, within the time.
    """
    found = []
    until_s = time.monotonic() + wait_s
    while True:
        try:
            found.append(bound.accept()[0])
        except BlockingIOError:  # none is left
            return found
        except OSError:
            if time.monotonic() > until_s:
                return found
            await asyncio.sleep(_LOOK_S)
