"""Connections between the ranks of a group on one machine: one socket for each pair.

By them the ranks hand each other their segments and wake who sleeps, and a rank that ends, however
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
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress

from engine.distributed.store import exchange
from engine.errors import CommunicatorError
from engine.host.blocks import Closing
from engine.host.peers import credentials, dial
from engine.types import CommunicatorOptions

_TOKEN_BYTES = 16
_HELLO = struct.Struct(f"={_TOKEN_BYTES}sI")  # the token of whoever is called, the caller's rank
_NOBODY: Mapping[int, int] = {}

_BACKLOG = 128  # beside the ranks, for others that connect
_ACCEPTED_AT_ONCE = 64  # before those that wait to be heard
_MOST_SILENT = 256  # this user's own processes that connect and say nothing


class ControlSocket:
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


def connect_all(
    options: CommunicatorOptions, descriptor: int
) -> Mapping[int, tuple[ControlSocket, int]]:
    """Connect to every other rank of a group, giving each `descriptor`.

    Returns for each rank its control socket and the descriptor that it gave. The caller
    closes both.
    Raises CommunicatorError naming the ranks that are missing after `options.timeout_s`.
    """
    end_s = time.monotonic() + options.timeout_s
    rank, world_size = options.rank, options.world_size
    token = secrets.token_bytes(_TOKEN_BYTES)
    connected: dict[int, tuple[ControlSocket, int]] = {}
    with ExitStack() as on_failure, socket.socket(socket.AF_UNIX) as listener:
        name = f"\0engine-rank-{secrets.token_hex(16)}".encode()
        listener.bind(name)
        listener.listen(_BACKLOG + world_size)
        own = token + name
        addresses = exchange(
            options.store, rank, world_size, own, options.timeout_s, options.ranks or ()
        )
        # No circle of ranks that wait for each other: the last one dials nobody and accepts.
        dialled = {}
        for peer in range(rank + 1, world_size):
            token_of_peer, where = addresses[peer][:_TOKEN_BYTES], addresses[peer][_TOKEN_BYTES:]
            try:
                control = on_failure.enter_context(dial(where, end_s))
                socket.send_fds(control, [_HELLO.pack(token_of_peer, rank)], [descriptor])
            except OSError as error:
                raise _missing(options, [peer]) from error
            dialled[peer] = control
        callers = on_failure.enter_context(_Callers(listener, token))
        while missing := sorted(set(range(rank)) - connected.keys()):
            if time.monotonic() >= end_s:
                raise _missing(options, missing, callers.refused)
            for caller, control, given in callers.wait(end_s):
                is_new = caller in missing and caller not in connected
                if is_new and _has_sent(control, _HELLO.pack(token, rank), descriptor):
                    on_failure.enter_context(control)
                    on_failure.callback(_close_all, [given])
                    connected[caller] = ControlSocket(control), given
                    on_failure.callback(connected[caller][0].close)
                else:  # it has come twice, or has gone; another may come in its name
                    control.close()
                    _close_all([given])
        for peer, control in dialled.items():
            control.settimeout(_left_s(end_s))
            caller, given = _hello(control, addresses[peer][:_TOKEN_BYTES])
            if caller >= 0:
                on_failure.callback(_close_all, [given])
            if caller != peer:
                raise _missing(options, [peer], callers.refused)
            connected[peer] = ControlSocket(control), given
            on_failure.callback(connected[peer][0].close)
        for wire_, _ in connected.values():
            wire_.socket.setblocking(False)
        callers.close()
        on_failure.pop_all()
    return connected


class _Callers(Closing):
    """Callers that a rank has accepted and that have not said yet who they are.

    refused: connections by user, of those that are not this process's. They cost a look at their
    credentials, and no wait: a process of another user can neither delay a rank nor take its place.
    """

    def __init__(self, listener: socket.socket, token: bytes) -> None:
        self._listener = listener
        self._token = token
        self._silent: dict[int, socket.socket] = {}
        self._poller = select.poll()
        self._poller.register(listener, select.POLLIN)
        listener.setblocking(False)
        self.refused: Counter[int] = Counter()

    def wait(self, end_s: float) -> Iterator[tuple[int, socket.socket, int]]:
        """Wait for callers; yield the rank, the socket and the descriptor of each that is known."""
        for number, _ in self._poller.poll(1000 * _left_s(end_s)):
            if number == self._listener.fileno():
                self._accept()
            else:
                self._poller.unregister(number)
                control = self._silent.pop(number)
                caller, given = _hello(control, self._token)
                if caller < 0:  # a stranger; or one that gave up while it waited
                    control.close()
                else:
                    yield caller, control, given

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                control, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor is left, say: others may give some back
                time.sleep(0.01)
                return
            if (user := credentials(control)[1]) != os.geteuid():
                self.refused[user] += 1
                control.close()
                continue
            control.setblocking(False)
            if len(self._silent) >= _MOST_SILENT:
                oldest = next(iter(self._silent))
                self._poller.unregister(oldest)
                self._silent.pop(oldest).close()
            self._silent[control.fileno()] = control
            self._poller.register(control, select.POLLIN)

    def close(self) -> None:
        """Let those go that never spoke; twice does nothing."""
        while self._silent:
            self._silent.popitem()[1].close()


def _hello(control: socket.socket, token: bytes) -> tuple[int, int]:
    """Return the rank that speaks, and the descriptor that came along; -1 for an unknown caller.

    Those of a stranger are closed.
    """
    given: list[int] = []
    try:
        data, given, _, _ = socket.recv_fds(control, _HELLO.size, 1)
        said, rank = _HELLO.unpack(data)
    except (OSError, struct.error):
        said, rank = b"", 0
    if not secrets.compare_digest(said, token) or len(given) != 1:
        _close_all(given)
        return -1, -1
    return rank, given[0]


def _has_sent(control: socket.socket, hello: bytes, descriptor: int) -> bool:
    try:
        socket.send_fds(control, [hello], [descriptor])
    except OSError:
        return False
    return True


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def _left_s(end_s: float) -> float:
    return max(0.001, end_s - time.monotonic())


def _missing(
    options: CommunicatorOptions, ranks: list[int], refused: Mapping[int, int] = _NOBODY
) -> CommunicatorError:
    """Return the error for ranks that did not come. refused: connections of other users."""
    numbers = options.ranks or range(options.world_size)
    ranks = [numbers[rank] for rank in ranks]
    listed = ", ".join(map(str, ranks))
    return CommunicatorError(
        f"group {options.group!r}, rank {numbers[options.rank]}: rank {listed} of "
        f"{options.world_size} did not connect within {options.timeout_s:g} s; look at its own "
        f"messages, and whether all ranks run on this machine{_listed(refused)}",
        tuple(ranks),
        timed_out=True,
    )


def _listed(refused: Mapping[int, int]) -> str:
    """Return the users whose connections were refused, in words; "" for none."""
    users = ", ".join(f"user {user} ({times:,})" for user, times in sorted(refused.items()))
    return f"; connections of other users were refused: {users}" if users else ""
