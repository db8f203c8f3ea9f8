"""Keys and values that the ranks of one job share: `engine.types.Store` over a socket.

    server = StoreServer()                      # in the process that starts the ranks
    store = connect(server.address, server.key) # in each rank
    store.set("nccl id", unique_id)
    unique_id = store.get("nccl id", timeout_s=60)

For what ranks need to find each other: small values, written once. The transport is
multiprocessing.connection with bytes alone (nothing is unpickled), each connection authenticated
by the job's key.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
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

from engine.errors import CommunicatorError
from engine.types import Store

__all__ = ["GroupStore", "StoreServer", "connect"]

_SET, _GET = "set", "get"
_DONE, _TAKEN, _MISSING = b"d", b"t", b"m"


class StoreServer:
    """Holds the keys of one job; any number of ranks connect. A context manager.

    address: where ranks connect: the path of a Unix socket that only this user reaches.
    key: what they authenticate with; give it to the ranks alone (an environment variable).
    """

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)
        self._folder = tempfile.mkdtemp(prefix="engine-store-")  # mode 0700
        self.address = os.path.join(self._folder, "socket")
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._connections: set[Connection[Any, Any]] = set()  # each closed by its own thread
        self._listener = Listener(self.address, "AF_UNIX", backlog=128)
        threading.Thread(target=self._accept, name="engine-store", daemon=True).start()

    def close(self) -> None:
        """End every wait with an error at its rank, and remove the socket; twice does nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        with suppress(OSError):  # accept() is not woken by closing its socket, but by a caller
            Client(self.address, "AF_UNIX").close()
        self._listener.close()
        for connection in list(self._connections):
            _shut_down(connection)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> StoreServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except OSError:  # no descriptor is left, say: others may give some back
                time.sleep(0.01)
                continue
            self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection[Any, Any]) -> None:
        try:
            # Here, not in accept: a client that says nothing must not keep the others out.
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
            while not self._closed:
                request = json.loads(connection.recv_bytes())
                if request["do"] == _SET:
                    connection.send_bytes(self._set(request["key"], connection.recv_bytes()))
                else:
                    for part in self._get(request["key"], request["timeout_s"]):
                        connection.send_bytes(part)
        except (AuthenticationError, EOFError, OSError):
            pass  # a stranger, or a rank that has gone
        finally:
            self._connections.discard(connection)
            connection.close()

    def _set(self, key: str, value: bytes) -> bytes:
        with self._changed:
            if self._values.setdefault(key, value) != value:
                return _TAKEN
            self._changed.notify_all()
        return _DONE

    def _get(self, key: str, timeout_s: float) -> tuple[bytes, ...]:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or key in self._values, timeout_s)
            if key in self._values:
                return _DONE, self._values[key]
        return (_MISSING,)


class _Connected:
    """A Store over the server's socket; one connection for each call that is under way."""

    def __init__(self, address: str, key: bytes) -> None:
        self._address = address
        self._key = key
        self._pid = os.getpid()
        self._idle: list[Connection[Any, Any]] = []
        self._idle.append(self._connect())

    def set(self, key: str, value: bytes) -> None:
        """Write a key, once; CommunicatorError where it has another value already."""
        answer, connection = self._ask({"do": _SET, "key": key}, value)
        self._idle.append(connection)
        if answer != _DONE:
            raise CommunicatorError(
                f"store: key {key!r} has another value already; two ranks have the same place, or "
                "a job was started twice with one store"
            )

    def get(self, key: str, timeout_s: float) -> bytes:
        """Read a key, waiting until some rank has written it.

        Raises CommunicatorError when it has not been written after `timeout_s`.
        """
        if math.isnan(timeout_s):
            raise ValueError("timeout_s must be a number of seconds, but got nan")
        wait_s = min(max(0.0, timeout_s), threading.TIMEOUT_MAX)
        answer, connection = self._ask({"do": _GET, "key": key, "timeout_s": wait_s})
        if answer == _DONE:
            try:
                value = connection.recv_bytes()
            except (EOFError, OSError) as error:
                raise self._gone() from error
            self._idle.append(connection)
            return value
        self._idle.append(connection)
        raise CommunicatorError(
            f"store: no rank has written {key!r} within {timeout_s:g} s", timed_out=True
        )

    def close(self) -> None:
        """Close the connections; twice does nothing."""
        while self._idle:
            self._idle.pop().close()

    def _ask(
        self, request: dict[str, object], value: bytes | None = None
    ) -> tuple[bytes, Connection[Any, Any]]:
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
            return connection.recv_bytes(), connection
        except (EOFError, OSError) as error:
            connection.close()
            raise self._gone() from error

    def _connect(self) -> Connection[Any, Any]:
        try:
            return Client(self._address, "AF_UNIX", authkey=self._key)
        except AuthenticationError as error:
            raise CommunicatorError(
                f"store: {self._address} refused the key; give this rank the key of its own job"
            ) from error
        except (EOFError, OSError) as error:
            raise self._gone() from error

    def _gone(self) -> CommunicatorError:
        return CommunicatorError(
            f"store: {self._address} does not answer; the process that started the ranks has ended"
        )


def _shut_down(connection: Connection[Any, Any]) -> None:
    """End a connection that another thread reads from; that thread sees its end and closes it."""
    with suppress(OSError, ValueError), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


def connect(address: str, key: bytes) -> Store:
    """Connect to a job's store; any thread may use the result.

    Raises CommunicatorError where nobody answers or the key is another job's.
    """
    return _Connected(address, key)


class GroupStore:
    """The part of a store that belongs to one group of ranks: its keys begin with the name."""

    def __init__(self, store: Store, group: str) -> None:
        self._store = store
        self._prefix = f"{group!r}/"  # quoted: "a" and "b/c" are not "a/b" and "c"

    def set(self, key: str, value: bytes) -> None:
        """See Store."""
        self._store.set(self._prefix + key, value)

    def get(self, key: str, timeout_s: float) -> bytes:
        """See Store."""
        return self._store.get(self._prefix + key, timeout_s)


def exchange(
    store: Store, rank: int, world_size: int, value: bytes, timeout_s: float
) -> list[bytes]:
    """Give every rank the values of all, in rank order.

    Raises CommunicatorError naming the ranks that did not write theirs within `timeout_s`.
    """
    deadline_s = time.monotonic() + timeout_s
    store.set(f"value of {rank}", value)
    values: list[bytes] = []
    missing = []
    for other in range(world_size):
        left_s = max(0.0, deadline_s - time.monotonic())
        try:
            values.append(store.get(f"value of {other}", left_s))
        except CommunicatorError as error:
            if not error.timed_out:
                raise
            missing.append(other)
    if missing:
        listed = ", ".join(map(str, missing))
        raise CommunicatorError(
            f"rank {rank}: rank {listed} of {world_size} did not join within {timeout_s:g} s; look "
            "at its own messages, and whether it was started",
            tuple(missing),
            timed_out=True,
        )
    return values
