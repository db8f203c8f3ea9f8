"""Connections between the ranks of a group on one machine: one socket for each pair.

By them the ranks hand each other their outboxes and wake who sleeps, and a rank that ends, however
it does, closes its own: the others see that at once. The sockets are in Linux's abstract name
space, so no file is left behind.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress

from engine.distributed.store import exchange
from engine.errors import CommunicatorError
from engine.host.peers import credentials
from engine.types import CommunicatorOptions

_TOKEN_BYTES = 16
_HELLO = struct.Struct(f"={_TOKEN_BYTES}sI")  # the token of whoever is called, the caller's rank


class Wire:
    """A connected peer. process: a descriptor that becomes readable when it ends, or -1."""

    def __init__(self, socket_: socket.socket) -> None:
        self.socket = socket_
        self.process = -1
        pid, _, _ = credentials(socket_)
        # A child that a rank forks holds the socket open after it; the process itself tells.
        with suppress(OSError):  # an old kernel, or a process of another name space
            self.process = os.pidfd_open(pid)

    def has_ended(self) -> bool:
        """Return whether the peer has closed its end, or its process has ended. Does not wait."""
        poller = select.poll()
        self.watch(poller)
        flags = socket.MSG_DONTWAIT | socket.MSG_PEEK
        for descriptor, _ in poller.poll(0):
            if descriptor == self.process:
                return True
            try:
                if not self.socket.recv(1, flags):
                    return True
            except BlockingIOError:
                pass
            except OSError:
                return True
        return False

    def watch(self, poller: select.poll) -> None:
        """Let a poll end when the peer wakes this rank or ends."""
        if self.socket.fileno() >= 0:
            poller.register(self.socket, select.POLLIN)
        if self.process >= 0:
            poller.register(self.process, select.POLLIN)

    def wake(self) -> None:
        """Wake the peer; one whose buffer is full has been woken already."""
        with suppress(OSError):
            self.socket.send(b"w", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def drain(self) -> bool:
        """Take what woke this rank; returns whether the peer is still there."""
        try:
            return bool(self.socket.recv(4096, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def shut_down(self) -> None:
        """End the connection, from any thread; `close` is still to be called."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the descriptors back; twice does nothing."""
        self.socket.close()
        if self.process >= 0:
            os.close(self.process)
            self.process = -1


def connect_all(options: CommunicatorOptions, descriptor: int) -> Mapping[int, tuple[Wire, int]]:
    """Connect to every other rank of a group, giving each `descriptor`.

    Returns for each rank its wire and the descriptor that it gave, both for the caller to close.
    Raises CommunicatorError naming the ranks that are missing after `options.timeout_s`.
    """
    end_s = time.monotonic() + options.timeout_s
    rank, world_size = options.rank, options.world_size
    token = secrets.token_bytes(_TOKEN_BYTES)
    connected: dict[int, tuple[Wire, int]] = {}
    with ExitStack() as on_failure, socket.socket(socket.AF_UNIX) as listener:
        name = f"\0engine-rank-{secrets.token_hex(16)}".encode()
        listener.bind(name)
        listener.listen(world_size)
        own = token + name
        addresses = exchange(
            options.store, rank, world_size, own, options.timeout_s, options.ranks or ()
        )
        dialled = {}
        for peer in range(rank + 1, world_size):
            wire = on_failure.enter_context(socket.socket(socket.AF_UNIX))
            wire.settimeout(_left_s(end_s))
            token_of_peer, where = addresses[peer][:_TOKEN_BYTES], addresses[peer][_TOKEN_BYTES:]
            try:
                wire.connect(where)
                hello = _HELLO.pack(token_of_peer, rank)
                socket.send_fds(wire, [hello], [descriptor])
            except OSError as error:
                raise _missing(options, [peer]) from error
            dialled[peer] = wire
        waiting = set(range(rank))
        while waiting:
            listener.settimeout(_left_s(end_s))
            try:
                wire, _ = listener.accept()
            except TimeoutError as error:
                raise _missing(options, sorted(waiting)) from error
            on_failure.enter_context(wire)
            caller, given = _hello(wire, token, end_s)
            if caller not in waiting:  # a stranger; or one that gave up while it waited
                _close_all(given)
                wire.close()
                continue
            on_failure.callback(_close_all, given)
            socket.send_fds(wire, [_HELLO.pack(token, rank)], [descriptor])
            waiting.discard(caller)
            connected[caller] = Wire(wire), given[0]
            on_failure.callback(connected[caller][0].close)
        for peer, wire in dialled.items():
            caller, given = _hello(wire, addresses[peer][:_TOKEN_BYTES], end_s)
            on_failure.callback(_close_all, given)
            if caller != peer:
                raise _missing(options, [peer])
            connected[peer] = Wire(wire), given[0]
            on_failure.callback(connected[peer][0].close)
        for wire_, _ in connected.values():
            wire_.socket.setblocking(False)
        on_failure.pop_all()
    return connected


def _hello(wire: socket.socket, token: bytes, end_s: float) -> tuple[int, list[int]]:
    """Return who speaks, and the descriptors that came along; -1 for who does not know the token.

    Those of a stranger are closed.
    """
    wire.settimeout(_left_s(end_s))
    given: list[int] = []
    try:
        data, given, _, _ = socket.recv_fds(wire, _HELLO.size, 1)
        said, rank = _HELLO.unpack(data)
    except (OSError, struct.error):
        said, rank = b"", 0
    is_known = secrets.compare_digest(said, token) and credentials(wire)[1] == os.geteuid()
    if not is_known or len(given) != 1:
        _close_all(given)
        return -1, []
    return rank, given


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def _left_s(end_s: float) -> float:
    return max(0.001, end_s - time.monotonic())


def _missing(options: CommunicatorOptions, ranks: list[int]) -> CommunicatorError:
    numbers = options.ranks or range(options.world_size)
    ranks = [numbers[rank] for rank in ranks]
    listed = ", ".join(map(str, ranks))
    return CommunicatorError(
        f"group {options.group!r}, rank {numbers[options.rank]}: rank {listed} of "
        f"{options.world_size} did not connect within {options.timeout_s:g} s; look at its own "
        "messages, and whether all ranks run on this machine",
        tuple(ranks),
        timed_out=True,
    )
