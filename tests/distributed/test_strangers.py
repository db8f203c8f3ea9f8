"""Processes of other users that connect to a rank's socket neither delay a job nor enter it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from threads import joined, outcomes, values

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
def as_nobody(script: str, *arguments: str) -> Iterator[bytes]:
    """Have a process of another user, which stays; yields the first line that it says."""
    identity = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    command = ["setpriv", *identity, interpreter(), "-c", script, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
    assert process.stdout is not None
    try:
        yield process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


@contextmanager
def stranger(name: str, times: int) -> Iterator[None]:
    """Have another user's process connected to a rank's socket."""
    with as_nobody(STRANGER, name, str(times)) as said:
        assert said == b"True\n"
        yield


def listener_of_a_rank() -> str:
    """Wait until a rank in this process listens; return its socket's name."""
    for _ in range(3000):
        ours = set()
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                ours.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        for line in Path("/proc/net/unix").read_text().splitlines():
            parts = line.split()
            # A connection that was accepted has its listener's name too, but not its flag.
            is_listening = parts[3] == "00010000" and parts[-1].startswith("@engine-rank-")
            if is_listening and f"socket:[{parts[6]}]" in ours:
                return parts[-1][1:]
        time.sleep(0.01)
    raise TimeoutError("no rank of this process listens")


def check_that_ranks_join_soon(meanwhile: Callable[[str], AbstractContextManager[object]]) -> None:
    """Join two ranks; the first one's socket has somebody else at it when the second comes."""

    def join(rank: int) -> float:
        if rank == 1:
            joined(server, 1, 2, timeout_s=TIMEOUT_S).close()  # it listens, and waits
            return 0.0
        with meanwhile(listener_of_a_rank()):
            begin_s = time.monotonic()
            joined(server, 0, 2, timeout_s=TIMEOUT_S).close()
            return time.monotonic() - begin_s

    with StoreServer() as server:
        assert max(values(outcomes(2, join, 2 * TIMEOUT_S))) < SOON_S


@as_another_user
@pytest.mark.parametrize("times", [1, 50, 0], ids=["one silent", "many silent", "backlog full"])
def test_a_process_of_another_user_does_not_delay_the_ranks(times: int) -> None:
    check_that_ranks_join_soon(lambda name: stranger(name, times))


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's abstract sockets")
def test_a_silent_connection_of_the_same_user_does_not_delay_the_ranks() -> None:
    @contextmanager
    def silent(name: str) -> Iterator[None]:
        with socket.socket(socket.AF_UNIX) as wire:
            wire.connect(f"\0{name}")
            yield

    check_that_ranks_join_soon(silent)


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
    with StoreServer() as server, ThreadPoolExecutor(1) as threads:
        rank = threads.submit(joined, server, 1, 2, timeout_s=1)
        with stranger(listener_of_a_rank(), 1):
            server._set("'world'/value of 0", b"t" * 16 + b"\0nobody listens here")
            error = rank.exception(30)
    assert isinstance(error, CommunicatorError)
    assert "rank 0 of 2 did not connect within 1 s" in str(error)
    assert f"connections of other users were refused: user {NOBODY} (1)" in str(error)


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
    job = Job(rank=0, world_size=2, timeout_s=TIMEOUT_S)
    with as_nobody(HOLD, address_of(name)[1:]) as said:
        assert said == b"held\n"
        with pytest.raises(CommunicatorError, match=f"of another user, {NOBODY}, that does"):
            _meet(job, name, "the ranks of a test")
