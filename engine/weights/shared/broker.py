"""The broker of a model that lends its weights: one socket, served by one thread.

Its name holds the handle, in Linux's abstract name space, so no file is left behind. Whoever
connects is judged by what the kernel says of it, its process and its user, and is answered at once
and let go: nothing is read from it and nothing waited for, so no peer can keep the others out.

A listed process gets the files as descriptors that are open for reading alone. Its pid is held by a
pidfd since it was listed: one that has ended, and whose number another got, is not mistaken.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import select
import socket
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from engine.errors import SharingError, SharingRefused
from engine.host import fork
from engine.host.peers import HAS_PEERS, credentials, has_ended
from engine.weights.shared.handle_settings import BITS, HANDLE, PIDS

_BACKLOG = 4096
_DESCRIPTORS = 200  # in one message; the kernel takes 253
_HEAD_BYTES = 4096
_SEALS = ("F_SEAL_SEAL", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE")


class PidList:
    """The processes to which weights are lent, held against the reuse of their numbers.

    Raises SharingError for a number that no process has.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        if not HAS_PEERS:
            raise SharingError("sharing weights between processes needs Linux 5.3 or newer")
        self.pids = tuple(pids)
        self._held: dict[int, int] = {}
        try:
            for pid in pids:
                self._held[pid] = os.pidfd_open(pid)
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError | OverflowError):
                raise
            gone = isinstance(error, OverflowError) or error.errno in (errno.ESRCH, errno.EINVAL)
            why = "no process of that number runs" if gone else str(error)
            raise SharingError(
                f"{PIDS} lists {pid}: {why}; take it from "
                "Model().get_model_info('current_pid') in the slave, and keep the slave running"
            ) from error

    def refusal(self, pid: int, uid: int) -> str:
        """Return why nothing is given to a process that connected; "" where it is."""
        if uid != os.geteuid():
            return "user"
        if pid not in self._held:
            return "unlisted"
        return "ended" if has_ended(self._held[pid]) else ""

    def close(self) -> None:
        """Let go of the processes; twice does nothing."""
        while self._held:
            os.close(self._held.popitem()[1])


class Broker:
    """Gives files to listed processes until it is closed.

    listed: is closed with it. record: bytes that go along with the files.
    handle: what a process must know to ask.
    """

    def __init__(self, listed: PidList, record: bytes, files: Sequence[Path]) -> None:
        self._listed = listed
        self._files = tuple(files)
        with ExitStack() as on_failure:
            self._record = _sealed(record)
            on_failure.callback(os.close, self._record)
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            on_failure.callback(self._listener.close)
            self.handle = _bind(self._listener)
            self._listener.setblocking(False)
            self._listener.listen(_BACKLOG)
            self._stop, self._stopped = socket.socketpair()
            on_failure.callback(self._stop.close)
            on_failure.callback(self._stopped.close)
            # A daemon: a model that nobody closes does not keep the process from ending.
            self._thread = threading.Thread(
                target=self._serve, name="engine-weights-broker", daemon=True
            )
            self._thread.start()
            on_failure.pop_all()
        fork.watch(self)

    def close(self) -> None:
        """Give nothing to anybody from now on; twice does nothing."""
        with suppress(OSError):
            self._stop.shutdown(socket.SHUT_RDWR)
        # While the interpreter ends, daemons do not run any more, and would be waited for for ever.
        if threading.current_thread() is not self._thread and not sys.is_finalizing():
            self._thread.join()
            self._stop.close()

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(self._stopped, select.POLLIN)
        try:
            while self._stopped.fileno() not in dict(poller.poll()):
                try:
                    connection, _ = self._listener.accept()
                except BlockingIOError:  # who connected has gone
                    continue
                except OSError:  # no descriptor is left: others may give some back
                    time.sleep(0.01)
                    continue
                with connection:
                    self._answer(connection)
        finally:
            with suppress(OSError):  # a child forked just now has it, too
                self._listener.shutdown(socket.SHUT_RDWR)
            self._release()

    def _answer(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        pid, uid, _ = credentials(connection)
        given: list[int] = []
        try:
            if why := self._listed.refusal(pid, uid):
                _say(connection, refused=why, pid=pid, uid=uid)
                return
            for path in self._files:  # each is written down before the next is opened
                given += [os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)]
            head, descriptors = {"files": len(given)}, [self._record, *given]
            for start in range(0, len(descriptors), _DESCRIPTORS):
                part = descriptors[start : start + _DESCRIPTORS]
                socket.send_fds(connection, [json.dumps(head).encode()], part)
        except OSError as error:  # the peer has gone, or too many descriptors are on their way
            with suppress(OSError):
                _say(connection, busy=str(error))
        finally:
            for descriptor in given:
                os.close(descriptor)

    def _release(self) -> None:
        self._listener.close()
        self._stopped.close()
        self._listed.close()
        if self._record >= 0:
            os.close(self._record)
            self._record = -1

    def _abandon(self) -> None:
        """In a forked child: let go of the socket, which is the parent's to serve."""
        self._release()
        self._stop.close()


def ask(
    handle: int, timeout_s: float, check: Callable[[], None] | None = None
) -> tuple[bytes, list[int]]:
    """Return what is lent under a handle: the record, and descriptors for the caller to close.

    check: is called while waiting; may raise. Raises SharingRefused where this process is not
    listed, SharingError where nobody lends under that handle or does not answer.
    """
    if not HAS_PEERS:
        raise SharingError("sharing weights between processes needs Linux 5.3 or newer")
    end_s = time.monotonic() + timeout_s
    why = "it does not answer"
    while time.monotonic() < end_s:
        if check is not None:
            check()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.setblocking(False)
            try:
                connection.connect(_name(handle))
            except BlockingIOError:  # many are waiting already
                time.sleep(0.02)
                continue
            except OSError as error:
                raise SharingError(
                    f"nobody lends weights under {HANDLE} {handle}: its master has ended, has "
                    "closed the model, or runs in another container; build the master first, and "
                    "keep its model open until the slaves are built"
                ) from error
            if credentials(connection)[1] != os.geteuid():
                raise SharingRefused(
                    f"{HANDLE} {handle} is not of a process of this user; share weights between "
                    "processes of one user"
                )
            answer = _answer_of(connection, end_s, check)
        if isinstance(answer, tuple):
            return answer
        why = answer or why
        time.sleep(0.02)
    raise SharingError(
        f"the master of {HANDLE} {handle} gave nothing within {timeout_s:g} s: {why}; is it "
        "stopped? try again"
    )


def _answer_of(
    connection: socket.socket, end_s: float, check: Callable[[], None] | None
) -> tuple[bytes, list[int]] | str:
    """Return what the master gives; or why it gives nothing now."""
    descriptors: list[int] = []
    try:
        while True:
            head, more = _receive(connection, end_s, check)
            descriptors += more
            if "refused" in head:
                raise SharingRefused(_refusal(head))
            if "files" not in head:
                return str(head.get("busy", ""))
            if len(descriptors) == head["files"] + 1:
                break
            if len(more) != _DESCRIPTORS:  # the kernel drops those that do not fit
                return (
                    f"this process could open {len(descriptors)} of {head['files'] + 1} files "
                    "(ulimit -n)"
                )
        record = os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0)
        given, descriptors = descriptors[1:], descriptors[:1]
        return record, given
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _receive(
    connection: socket.socket, end_s: float, check: Callable[[], None] | None
) -> tuple[dict[str, Any], list[int]]:
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    while not poller.poll(100):
        if check is not None:
            check()
        if time.monotonic() > end_s:
            return {}, []
    descriptors = array("i")
    try:
        # Not socket.recv_fds: that ignores flags, and a child would inherit the descriptors.
        data, extra, _, _ = connection.recvmsg(
            _HEAD_BYTES,
            socket.CMSG_SPACE(_DESCRIPTORS * descriptors.itemsize),
            socket.MSG_CMSG_CLOEXEC,
        )
    except OSError as error:
        return {"busy": str(error)}, []
    for _, kind, content in extra:
        if kind == socket.SCM_RIGHTS:
            whole = len(content) - len(content) % descriptors.itemsize
            descriptors.frombytes(content[:whole])
    head: dict[str, Any] = json.loads(data) if data else {}
    return head, descriptors.tolist()


def _refusal(head: dict[str, Any]) -> str:
    pid = head["pid"]
    if head["refused"] == "user":
        return (
            f"the master does not lend its weights to user {head['uid']}; share weights between "
            "processes of one user"
        )
    if head["refused"] == "ended":
        return (
            f"the process that the master has listed as {pid} has ended, and this one has got its "
            f"number; have the master list it anew in {PIDS}"
        )
    seen = f", which the master sees as {pid}," if pid != os.getpid() else ""
    return (
        f"process {os.getpid()}{seen} is not in the master's {PIDS}; give the master what "
        "Model().get_model_info('current_pid') says in this process before it builds"
    )


def _say(connection: socket.socket, **head: object) -> None:
    connection.send(json.dumps(head).encode()[:_HEAD_BYTES])


def _bind(listener: socket.socket) -> int:
    while True:
        handle = 1 + secrets.randbelow((1 << BITS) - 1)
        try:
            listener.bind(_name(handle))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise
        return handle


def _name(handle: int) -> str:
    return f"\0engine-weights-{handle}"


def _sealed(data: bytes) -> int:
    """Return a descriptor of memory that holds these bytes and that nobody can change."""
    descriptor = os.memfd_create("engine-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    seals = 0
    for name in _SEALS:
        seals |= getattr(fcntl, name)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor
