"""Processes of other users that connect to a rank's socket neither delay a job nor enter it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from threads import joined

from engine.distributed.job import Job
from engine.distributed.rendezvous import _meet, address_of
from engine.distributed.store import StoreServer, connect
from engine.errors import CommunicatorError

NOBODY = 65534
TIMEOUT_S = 40.0
SOON_S = 10.0
"""A machine under load joins within this; a rank that waits for a stranger takes TIMEOUT_S."""

as_another_user = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("setpriv"),
    reason="needs root and setpriv, to be another user",
)

# Connects to a rank's socket `sys.argv[2]` times, and again for ever where that is 0, and says
# nothing.
STRANGER = """
import socket, sys, threading

def connect(kept):
    wire = socket.socket(socket.AF_UNIX)
    wire.setblocking(False)
    try:
        wire.connect("\\0" + sys.argv[1])
        kept.append(wire)
    except OSError:
        wire.close()
    del kept[:-500]

def fill(kept):
    while True:
        connect(kept)

kept = []
times = int(sys.argv[2])
for _ in range(times or 500):
    connect(kept)
print(bool(kept), flush=True)
if not times:
    for _ in range(2):
        threading.Thread(target=fill, args=([],), daemon=True).start()
sys.stdin.read()
"""


def interpreter() -> str:
    """Return a Python that any user may start."""
    return shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable


@contextmanager
def stranger(name: str, times: int) -> Iterator[None]:
    """Have another user's process connected to a rank's socket."""
    identity = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    command = ["setpriv", *identity, interpreter(), "-c", STRANGER, name, str(times)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == b"True"
        yield
    finally:
        process.kill()
        process.communicate()


def listener_of_a_rank() -> str:
    """Wait until a rank in this process listens; return its socket's name."""
    for _ in range(3000):
        ours = set()
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                ours.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        for line in Path("/proc/net/unix").read_text().splitlines():
            parts = line.split()
            if parts[-1].startswith("@engine-rank-") and f"socket:[{parts[6]}]" in ours:
                return parts[-1][1:]
        time.sleep(0.01)
    raise TimeoutError("no rank of this process listens")


@as_another_user
@pytest.mark.parametrize("times", [1, 50, 0], ids=["one silent", "many silent", "backlog full"])
def test_a_process_of_another_user_does_not_delay_the_ranks(times: int) -> None:
    results: dict[int, Any] = {}

    def join(rank: int) -> None:
        try:
            with_comm = joined(server, rank, 2, timeout_s=TIMEOUT_S)
            results[rank] = "joined"
            with_comm.close()
        except BaseException as error:
            results[rank] = error

    with StoreServer() as server:
        threads = [threading.Thread(target=join, args=(rank,)) for rank in (1, 0)]
        threads[0].start()  # it listens, and waits for the other
        with stranger(listener_of_a_rank(), times):
            begin_s = time.monotonic()
            threads[1].start()
            for thread in threads:
                thread.join(2 * TIMEOUT_S)
            took_s = time.monotonic() - begin_s
    assert results == {0: "joined", 1: "joined"}
    assert took_s < SOON_S


@as_another_user
def test_a_process_of_another_user_takes_no_thread_of_a_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: list[object] = []
    serve = StoreServer._serve

    def noted(server: StoreServer, connection: Any) -> None:
        served.append(connection)
        serve(server, connection)

    monkeypatch.setattr(StoreServer, "_serve", noted)
    with StoreServer() as server, stranger(server.address[1:], 50):
        store = connect(server.address, server.key)  # those before it have been accepted
        store.set("id", b"1")
        assert len(served) == len(server._connections) == 1
        store.close()


@as_another_user
def test_a_rank_that_does_not_come_is_named_with_the_strangers_that_did() -> None:
    errors: list[BaseException] = []

    def join() -> None:
        try:
            joined(server, 1, 2, timeout_s=3)
        except CommunicatorError as error:
            errors.append(error)

    with StoreServer() as server:
        rank = threading.Thread(target=join)
        rank.start()
        with stranger(listener_of_a_rank(), 1):
            server._set("'world'/value of 0", b"t" * 16 + b"\0nobody listens here")
            rank.join(30)
    [error] = errors
    assert "rank 0 of 2 did not connect within 3 s" in str(error)
    assert f"connections of other users were refused: user {NOBODY} (1)" in str(error)


def test_a_silent_connection_of_the_same_user_does_not_delay_the_ranks() -> None:
    results: dict[int, str] = {}

    def join(rank: int) -> None:
        joined(server, rank, 2, timeout_s=TIMEOUT_S).close()
        results[rank] = "joined"

    if sys.platform != "linux":
        pytest.skip("needs Linux's abstract sockets")
    with StoreServer() as server, socket.socket(socket.AF_UNIX) as silent:
        threads = [threading.Thread(target=join, args=(rank,)) for rank in (1, 0)]
        threads[0].start()
        silent.connect(f"\0{listener_of_a_rank()}")
        begin_s = time.monotonic()
        threads[1].start()
        for thread in threads:
            thread.join(2 * TIMEOUT_S)
        took_s = time.monotonic() - begin_s
    assert results == {0: "joined", 1: "joined"}
    assert took_s < SOON_S


HOLD = """
import socket, sys
wire = socket.socket(socket.AF_UNIX)
wire.bind("\\0" + sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@as_another_user
def test_another_users_holder_of_a_jobs_socket_is_named_though_it_does_not_listen() -> None:
    name = f"a job of {os.getpid()}"
    identity = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    command = ["setpriv", *identity, interpreter(), "-c", HOLD, address_of(name)[1:]]
    job = Job(rank=0, world_size=2, timeout_s=TIMEOUT_S)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            with pytest.raises(CommunicatorError, match=f"of another user, {NOBODY}, that does"):
                _meet(job, name, "the ranks of a test")
        finally:
            process.kill()
