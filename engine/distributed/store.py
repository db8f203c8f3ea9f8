"""Keys and values that the ranks of one job share: `engine.types.Store` over a socket.

    server = StoreServer()                      # in the process that starts the ranks
    store = connect(server.address, server.key) # in each rank
    store.set("nccl id", unique_id)
    unique_id = store.get("nccl id", timeout_s=60)

For what ranks need to find each other: small values, written once. The transport is
multiprocessing.connection with bytes alone (nothing is unpickled), each connection authenticated
by the job's key, and by the kernel: both ends are one user's. The socket is in Linux's abstract
name space, so no file is left behind; "@" stands for the byte 0 that its name begins with.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from typing import Any

from engine.errors import CommunicatorError, one_line
from engine.host.blocks import Closing
from engine.host.peers import credentials_of, limit
from engine.types import Store

log = logging.getLogger("engine")

__all__ = ["GroupStore", "StoreServer", "connect"]

ANSWER_S = 60.0
"""Time for a server to answer what it need not wait for. One that is stopped never does."""
_LONGEST_S = 1e6  # beyond what poll takes
_WAKE_S = 5.0  # for a thread that has been woken, on a busy machine

_SET, _GET = "set", "get"
_DONE, _TAKEN, _MISSING, _OVER, _FAILED = b"d", b"t", b"m", b"o", b"f"


class StoreServer(Closing):
    """Holds the keys of one job; any number of ranks connect. A context manager.

    address: where ranks connect: the name of a Unix socket that serves this user alone.
    key: what they authenticate with; give it to the ranks alone (an environment variable).
    Both are new unless they are given. Raises OSError where another server has the address.
    """

    def __init__(self, address: str = "", key: bytes = b"") -> None:
        self.key = key or secrets.token_bytes(32)
        self.address = address or f"@engine-store-{secrets.token_hex(16)}"
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._failure = b""
        self._over: set[int] = set()  # ranks that write no more
        self._connections: set[Connection[Any, Any]] = set()  # each closed by its own thread
        self._listener = Listener(_name(self.address), "AF_UNIX", backlog=128)
        self._accepting = threading.Thread(target=self._accept, name="engine-store", daemon=True)
        self._accepting.start()

    def fail(self, why: str, ranks: tuple[int, ...]) -> None:
        """End every wait, now and later, with a CommunicatorError that says why; the first counts.

        ranks: because of which, by their numbers in the job.
        """
        with self._changed:
            self._failure = self._failure or json.dumps([why, ranks]).encode()
            self._changed.notify_all()

    def end(self, rank: int) -> None:
        """Take note that a rank has ended, well: nobody waits for what it has not written."""
        with self._changed:
            self._over.add(rank)
            self._changed.notify_all()

    def close(self) -> None:
        """End every wait with an error at its rank, and remove the socket; twice does nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        with suppress(
            OSError
        ):  # closing its socket does not wake accept(); forked children have it
            listener: Any = self._listener
            listener._listener._socket.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):  # where that does not wake it, a caller does
            Client(_name(self.address), "AF_UNIX").close()
        try:
            # Until then it has the socket, whose address the next server may want.
            if not sys.is_finalizing():  # daemons do not run any more
                self._accepting.join(_WAKE_S)
        finally:
            self._listener.close()
        for connection in list(self._connections):
            _shut_down(connection)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except OSError:  # no descriptor is left, say: others may give some back
                time.sleep(0.01)
                continue
            if self._closed:  # it is who wakes us; as Python ends, no thread can be started
                connection.close()
                return
            if not self._is_of_this_user(connection):  # it costs a look, and no thread
                connection.close()
                continue
            self._connections.add(connection)
            self._serve_in_a_thread(connection)

    def _is_of_this_user(self, connection: Connection[Any, Any]) -> bool:
        while not self._closed:
            try:
                return _user(connection) == os.geteuid()
            except OSError:  # no descriptor is left to look with: others may give some back
                time.sleep(0.01)
        return False

    def _serve_in_a_thread(self, connection: Connection[Any, Any]) -> None:
        """Serve a connection, as soon as a thread can be started: others may end theirs."""
        while not self._closed:
            try:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError:  # the limit of threads is reached
                time.sleep(0.01)
            else:
                return
        self._connections.discard(connection)
        connection.close()

    def _serve(self, connection: Connection[Any, Any]) -> None:
        try:
            # Here, not in accept: a client that says nothing must not keep the others out.
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
            while not self._closed:
                request = json.loads(connection.recv_bytes())
                for part in self._answer(request, connection):
                    connection.send_bytes(part)
        except (AuthenticationError, EOFError, OSError):
            pass  # a stranger, or a rank that has gone
        except Exception as error:  # it is no request: another version's, or a damaged one
            log.warning("store: closed a connection over a malformed request: %s", one_line(error))
        finally:
            self._connections.discard(connection)
            self._ended(connection)
            connection.close()

    def _ended(self, connection: Connection[Any, Any]) -> None:
        """Take note that the other end has closed a connection."""

    def _answer(
        self, request: dict[str, Any], connection: Connection[Any, Any]
    ) -> tuple[bytes, ...]:
        if request["do"] == _SET:
            return self._set(request["key"], connection.recv_bytes())
        return self._get(request["key"], request["timeout_s"], request["rank"])

    def _failed(self) -> tuple[bytes, ...]:
        return _FAILED, self._failure

    def _set(self, key: str, value: bytes) -> tuple[bytes, ...]:
        with self._changed:
            if self._failure:
                return self._failed()
            if self._values.setdefault(key, value) != value:
                return (_TAKEN,)
            self._changed.notify_all()
        return (_DONE,)

    def _get(self, key: str, timeout_s: float, rank: int | None) -> tuple[bytes, ...]:
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._failure or key in self._values or rank in self._over,
                timeout_s,
            )
            if key in self._values:  # ranks that compare what is there find their own words for it
                return _DONE, self._values[key]
            if self._failure:
                return self._failed()
            return (_OVER,) if rank in self._over else (_MISSING,)


class NotThere(CommunicatorError):
    """Nobody holds a store any more, or yet."""


class RankEnded(CommunicatorError):
    """A rank has ended, well, and has not written what is waited for."""


class ConnectedStore:
    """A Store over the server's socket; one connection for each call that is under way."""

    def __init__(self, address: str, key: bytes, holder: str) -> None:
        self._address = address
        self._key = key
        self._holder = holder
        self._pid = os.getpid()
        self._idle: list[Connection[Any, Any]] = []
        self._idle.append(self._connect())

    def set(self, key: str, value: bytes) -> None:
        """Write a key, once; CommunicatorError where it has another value already."""
        answer, connection = self.ask({"do": _SET, "key": key}, value)
        self._idle.append(connection)
        if answer != _DONE:
            raise CommunicatorError(
                f"store: key {key!r} has another value already; two ranks have the same place, or "
                "a job was started twice with one store"
            )

    def get(self, key: str, timeout_s: float, rank: int | None = None) -> bytes:
        """Read a key, waiting until some rank has written it.

        rank: which one of the job is to write it, where that is known. Raises CommunicatorError
        when it has not been written after `timeout_s`, and when that rank has ended.
        """
        if math.isnan(timeout_s):
            raise ValueError("timeout_s must be a number of seconds, but got nan")
        wait_s = min(max(0.0, timeout_s), threading.TIMEOUT_MAX)
        request = {"do": _GET, "key": key, "timeout_s": wait_s, "rank": rank}
        answer, connection = self.ask(request, None, wait_s)
        if answer == _DONE:
            value = self.receive(connection)
            self._idle.append(connection)
            return value
        self._idle.append(connection)
        if answer == _OVER and rank is not None:
            raise RankEnded(f"store: rank {rank} has ended without {key!r}", (rank,))
        raise CommunicatorError(
            f"store: no rank has written {key!r} within {timeout_s:g} s", timed_out=True
        )

    def keep(self, connection: Connection[Any, Any]) -> None:
        """Use a connection of `ask` again, and close it with the others."""
        self._idle.append(connection)

    def close(self) -> None:
        """Close the connections; twice does nothing."""
        while self._idle:
            self._idle.pop().close()

    def ask(
        self, request: dict[str, object], value: bytes | None = None, wait_s: float = 0.0
    ) -> tuple[bytes, Connection[Any, Any]]:
        """Return the first part of an answer, and where the others come from.

        wait_s: how long the server may wait with it.
        """
        if self._pid != os.getpid():  # a forked child: the parent speaks on these
            self._pid, self._idle = os.getpid(), []
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            connection.send_bytes(json.dumps(request).encode())
            if value is not None:
                connection.send_bytes(value)
            if not connection.poll(min(_LONGEST_S, wait_s + ANSWER_S)):
                raise TimeoutError
            answer = connection.recv_bytes()
        except (EOFError, OSError) as error:
            connection.close()
            raise self._gone() from error
        if answer == _FAILED:
            why, ranks = json.loads(self.receive(connection))
            self._idle.append(connection)
            raise CommunicatorError(why, tuple(ranks))
        return answer, connection

    def receive(self, connection: Connection[Any, Any]) -> bytes:
        """Return the next part of an answer. Raises NotThere."""
        try:
            return connection.recv_bytes()
        except (EOFError, OSError) as error:
            connection.close()
            raise self._gone() from error

    def _connect(self) -> Connection[Any, Any]:
        try:
            connection = _connection(_name(self._address))
        except OSError as error:
            raise self._gone() from error
        try:
            if (user := _user(connection)) != os.geteuid():
                raise CommunicatorError(
                    f"store: {self._address} is held by a process of another user, {user}; "
                    "nothing was sent to it"
                )
            answer_challenge(connection, self._key)
            deliver_challenge(connection, self._key)
            with _socket(connection) as endpoint:
                limit(endpoint, 0)
            return connection
        except AuthenticationError as error:
            connection.close()
            raise CommunicatorError(
                f"store: {self._address} refused the key; give this rank the key of its own job"
            ) from error
        except (EOFError, OSError) as error:
            connection.close()
            raise self._gone() from error
        except BaseException:
            connection.close()
            raise

    def _gone(self) -> NotThere:
        return NotThere(
            f"store: {self._address} does not answer; {self._holder} has ended, or is stopped"
        )


def _connection(name: str) -> Connection[Any, Any]:
    """Connect to a socket whose holder may never accept, and then may never answer."""
    with socket.socket(socket.AF_UNIX) as endpoint:
        limit(endpoint, ANSWER_S)  # Python's own timeout does not wait for room in the backlog
        endpoint.connect(name)
        return Connection(endpoint.detach())


def _shut_down(connection: Connection[Any, Any]) -> None:
    """End a connection that another thread reads from; that thread sees its end and closes it."""
    with suppress(OSError, ValueError), _socket(connection) as endpoint:
        endpoint.shutdown(socket.SHUT_RDWR)


def _socket(connection: Connection[Any, Any]) -> socket.socket:
    return socket.socket(fileno=os.dup(connection.fileno()))


def _name(address: str) -> str:
    """Return a socket's name, for which "@" at its beginning can be written and passed on."""
    return f"\0{address[1:]}" if address.startswith("@") else address


def _user(connection: Connection[Any, Any]) -> int:
    """Return the user of the process at the other end."""
    return credentials_of(connection)[1]


def connect(
    address: str, key: bytes, holder: str = "the process that started the ranks"
) -> ConnectedStore:
    """Connect to a job's store; any thread may use the result.

    holder: whose server it is, for messages. Raises CommunicatorError where nobody answers, or
    another user, or the key is another job's.
    """
    return ConnectedStore(address, key, holder)


class GroupStore:
    """The part of a store that belongs to one group of ranks: its keys begin with the name."""

    def __init__(self, store: Store, group: str) -> None:
        self._store = store
        self._prefix = f"{group!r}/"  # quoted: "a" and "b/c" are not "a/b" and "c"

    def set(self, key: str, value: bytes) -> None:
        """See Store."""
        self._store.set(self._prefix + key, value)

    def get(self, key: str, timeout_s: float, rank: int | None = None) -> bytes:
        """See ConnectedStore."""
        return _read(self._store, self._prefix + key, timeout_s, rank)


def _read(store: Store, key: str, timeout_s: float, rank: int | None) -> bytes:
    """Read a key that a rank of the job is to write."""
    if isinstance(store, (ConnectedStore, GroupStore)):
        return store.get(key, timeout_s, rank)
    return store.get(key, timeout_s)


def exchange(
    store: Store,
    rank: int,
    world_size: int,
    value: bytes,
    timeout_s: float,
    numbers: Sequence[int] = (),
) -> list[bytes]:
    """Give every rank of a group the values of all, in rank order.

    numbers: the ranks' in the job, where they are others. Raises CommunicatorError naming the
    ranks that did not write theirs within `timeout_s`, or have ended without.
    """
    numbers = numbers or range(world_size)
    deadline_s = time.monotonic() + timeout_s
    store.set(f"value of {rank}", value)
    values: list[bytes] = []
    missing = []
    for other in range(world_size):
        left_s = max(0.0, deadline_s - time.monotonic())
        try:
            values.append(_read(store, f"value of {other}", left_s, numbers[other]))
        except RankEnded as error:
            raise CommunicatorError(
                f"rank {numbers[rank]}: rank {numbers[other]} of {world_size} has ended and did "
                "not join; have every rank build the same models, in the same order",
                error.ranks,
            ) from error
        except CommunicatorError as error:
            if not error.timed_out:
                raise
            missing.append(numbers[other])
    if missing:
        listed = ", ".join(map(str, missing))
        raise CommunicatorError(
            f"rank {numbers[rank]}: rank {listed} of {world_size} did not join within "
            f"{timeout_s:g} s; look at its own messages, and whether it was started",
            tuple(missing),
            timed_out=True,
        )
    return values
