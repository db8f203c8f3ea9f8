"""The store that ranks find each other by."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from threads import outcomes, values

from engine.distributed import store as store_module
from engine.distributed.store import GroupStore, NotThere, StoreServer, connect, exchange
from engine.errors import CommunicatorError


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer() as server:
        yield server


@pytest.fixture
def store(server: StoreServer) -> Any:
    return connect(server.address, server.key)


def test_what_one_rank_writes_another_reads(server: StoreServer) -> None:
    connect(server.address, server.key).set("id", b"\x00\xff")
    assert connect(server.address, server.key).get("id", 1.0) == b"\x00\xff"


@pytest.mark.parametrize("is_same", [False, True], ids=["another rank", "the same rank"])
def test_who_reads_first_waits_for_the_writer(
    server: StoreServer, store: Any, is_same: bool
) -> None:
    writer = store if is_same else connect(server.address, server.key)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.get, "id", 10.0)
        writer.set("id", b"late")
        assert waiting.result(60) == b"late"


def test_a_key_that_nobody_writes_is_an_error_after_the_timeout(store: Any) -> None:
    with pytest.raises(CommunicatorError, match=r"no rank has written 'id' within 0\.05 s"):
        store.get("id", 0.05)
    store.set("id", b"after")  # the connection serves on
    assert store.get("id", 1.0) == b"after"


@pytest.mark.parametrize("turns", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_a_store_outlives_times_without_a_thread_to_spare(
    turns: int, server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, []

    def start_later(thread: threading.Thread) -> None:
        if len(refused) < 20:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    for turn in range(turns):
        refused.clear()
        store = connect(server.address, server.key)
        store.set(f"id {turn}", b"1")
        assert len(refused) == 20
        store.close()


def test_a_store_that_waits_for_a_thread_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = threading.Event()

    def refuse(thread: threading.Thread) -> None:
        tried.set()
        raise RuntimeError("can't start new thread")

    with StoreServer() as server, socket.socket(socket.AF_UNIX) as stranger:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        stranger.connect("\0" + server.address[1:])
        assert tried.wait(60)
        server.close()
        assert not server._accepting.is_alive()


@pytest.mark.parametrize(
    "frame",
    [
        b"", b"\xff", b"{", b"[]", b"7", b"{}", b"[" * 100_000, b'{"do": "get"}', b'{"do": 1}',
        b'{"do": "get", "key": [], "timeout_s": 1, "rank": 0}',
        b'{"do": "get", "key": "k", "timeout_s": "soon", "rank": 0}',
        b'{"do": "get", "key": "k", "timeout_s": 1, "rank": {}}',
        b'{"do": "get", "key": "k", "timeout_s": 1e300, "rank": 0}',
    ],
)  # fmt: skip
def test_a_malformed_request_is_a_line_in_the_log_and_the_store_serves_on(
    frame: bytes, server: StoreServer, store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Not a traceback of a thread: pytest would fail for that."""
    [connection] = store._idle
    connection.send_bytes(frame)
    with pytest.raises((EOFError, OSError)):
        connection.recv_bytes()
    store.close()
    [record] = caplog.records
    assert record.getMessage().startswith("store: closed a connection over a malformed request: ")
    connect(server.address, server.key).set("id", b"1")


def test_a_key_is_written_once(store: Any) -> None:
    store.set("id", b"1")
    store.set("id", b"1")
    with pytest.raises(CommunicatorError, match="'id' has another value already"):
        store.set("id", b"2")
    assert store.get("id", 1.0) == b"1"


def test_another_jobs_key_is_refused_and_the_server_serves_on(server: StoreServer) -> None:
    with pytest.raises(CommunicatorError, match="refused the key"):
        connect(server.address, b"another job's")
    connect(server.address, server.key).set("id", b"1")


def test_a_server_that_ends_fails_the_ranks_that_wait_for_it() -> None:
    server = StoreServer()
    store = connect(server.address, server.key)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.get, "id", 30.0)
        time.sleep(0.05)
        server.close()
        with pytest.raises(CommunicatorError):
            waiting.result(60)
    with pytest.raises(CommunicatorError, match="does not answer"):
        connect(server.address, server.key)
    with StoreServer(server.address):  # nothing of it is left that would be in the way
        pass


def test_the_address_is_free_once_the_server_is_closed_however_slowly_its_thread_wakes() -> None:
    server = StoreServer()
    accept = server._listener.accept
    is_waiting, woken = threading.Event(), []

    def slow_to_wake() -> Any:
        is_waiting.set()
        try:
            return accept()
        finally:
            if server._closed:
                time.sleep(0.5)
                woken.append(True)

    server._listener.accept = slow_to_wake  # type: ignore[method-assign]
    connect(server.address, server.key).close()  # it is in the other one until somebody comes
    assert is_waiting.wait(60)
    server.close()
    assert woken == [True], "it still had the socket"
    with StoreServer(server.address):
        pass


def test_nobody_waits_for_a_closed_server_whose_socket_a_forked_child_has() -> None:
    server = StoreServer()
    child = os.fork()
    if child == 0:
        time.sleep(300)
        os._exit(0)
    try:
        server.close()
        with pytest.raises(NotThere):
            connect(server.address, server.key)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def in_a_child_of_another_user(do: Callable[[], None]) -> int:
    """Return the exit status of a forked child that becomes another user and does something."""
    child = os.fork()
    if child == 0:
        status = 3
        try:
            os.setuid(65534)
            do()
            status = 0
        except CommunicatorError as error:
            status = 1 if "does not answer" in str(error) else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@needs_root
def test_only_this_user_is_served_whoever_knows_the_key(server: StoreServer) -> None:
    def ask() -> None:
        connect(server.address, server.key, "its holder").set("id", b"theirs")

    assert in_a_child_of_another_user(ask) == 2, "its own side of the check"
    script = (
        "import os, sys\n"
        "import hmac\n"
        "from multiprocessing.connection import Client\n"
        "os.setuid(65534)\n"
        "try:\n"
        "    Client('\\0' + sys.argv[1], 'AF_UNIX', authkey=bytes.fromhex(sys.argv[2]))\n"
        "except (EOFError, OSError):\n"
        "    sys.exit(7)\n"
    )
    command = [sys.executable, "-c", script, server.address[1:], server.key.hex()]
    assert subprocess.run(command, check=False).returncode == 7
    connect(server.address, server.key).set("id", b"ours")


@needs_root
def test_a_server_of_another_user_is_told_nothing() -> None:
    address = f"@engine-test-{os.getpid()}"
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        server = StoreServer(address, b"guessed")
        os.write(ready[1], b"1")
        os.read(done[0], 1)
        os._exit(len(server._values))
    os.read(ready[0], 1)
    try:
        with pytest.raises(CommunicatorError, match="held by a process of another user, 65534"):
            connect(address, b"guessed")
    finally:
        os.write(done[1], b"1")
        assert os.waitpid(child, 0)[1] == 0


def test_a_server_that_fails_its_job_ends_every_wait_with_the_reason(
    server: StoreServer, store: Any
) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.get, "id", 30.0)
        time.sleep(0.05)
        server.fail("rank 1 of 2 crashed with SIGKILL", (1,))
        server.fail("rank 0 of 2 ended with status 1", (0,))
        with pytest.raises(CommunicatorError, match="rank 1 of 2 crashed with") as caught:
            waiting.result(60)
    assert caught.value.ranks == (1,)
    for call in (lambda: store.set("id", b"1"), lambda: connect(
        server.address, server.key).get("id", 1.0)):  # fmt: skip
        with pytest.raises(CommunicatorError, match="rank 1 of 2 crashed"):
            call()


def test_a_rank_that_is_killed_disturbs_no_other(server: StoreServer) -> None:
    script = (
        "import os, signal, sys\n"
        "from engine.distributed.store import connect\n"
        "store = connect(sys.argv[1], bytes.fromhex(sys.argv[2]))\n"
        "store.set('id', b'1')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script, server.address, server.key.hex()]
    assert subprocess.run(command, check=False, env=dict(os.environ)).returncode == -9
    assert connect(server.address, server.key).get("id", 1.0) == b"1"


def test_ranks_exchange_values_in_rank_order(server: StoreServer) -> None:
    def join(rank: int) -> list[bytes]:
        group = GroupStore(connect(server.address, server.key), "world")
        return exchange(group, rank, 3, f"of {rank}".encode(), 10.0)

    assert values(outcomes(3, join)) == [[b"of 0", b"of 1", b"of 2"]] * 3


def test_a_rank_that_does_not_come_is_named(store: Any) -> None:
    with pytest.raises(CommunicatorError, match=r"rank 1, 2 of 3 did not join") as raised:
        exchange(store, 0, 3, b"here", 0.1)
    assert raised.value.ranks == (1, 2)


def test_a_client_that_says_nothing_keeps_no_other_out(server: StoreServer) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(f"\0{server.address[1:]}")
        connect(server.address, server.key).set("id", b"1")


def test_a_forked_child_speaks_on_connections_of_its_own(store: Any) -> None:
    child = os.fork()
    if child == 0:
        store.set("of the child", b"1")
        os._exit(0)
    store.set("of the parent", b"2")
    assert os.waitpid(child, 0)[1] == 0
    assert store.get("of the child", 5.0) == b"1"
    assert store.get("of the parent", 5.0) == b"2"


def test_a_wait_may_be_endless_and_must_be_a_number(store: Any) -> None:
    store.set("id", b"1")
    assert store.get("id", math.inf) == b"1"
    with pytest.raises(ValueError, match="timeout_s must be a number of seconds, but got nan"):
        store.get("id", math.nan)


def test_groups_have_keys_of_their_own_also_where_names_have_a_slash(store: Any) -> None:
    pairs = [("rows", "id"), ("columns", "id"), ("a", "b/c"), ("a/b", "c")]
    for group, key in pairs:
        GroupStore(store, group).set(key, group.encode())
    for group, key in pairs:
        assert GroupStore(store, group).get(key, 1.0) == group.encode()


def test_a_holder_that_is_stopped_is_waited_for_no_longer_than_it_may_take(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "ANSWER_S", 0.3)
    store, stopped = connect(server.address, server.key), threading.Event()
    monkeypatch.setattr(StoreServer, "_answer", lambda *arguments: stopped.wait(60) and ())
    with pytest.raises(CommunicatorError, match="has ended, or is stopped"):
        store.get("id", 0.1)
    stopped.set()


@pytest.mark.parametrize("backlog", [0, 8])
def test_a_name_whose_holder_does_not_accept_is_no_endless_wait(
    backlog: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "ANSWER_S", 0.3)
    name = f"engine-test-{os.getpid()}-{backlog}"
    with contextlib.ExitStack() as open_ones:
        holder = open_ones.enter_context(socket.socket(socket.AF_UNIX))
        holder.bind(f"\0{name}")
        holder.listen(backlog)
        if not backlog:
            one = open_ones.enter_context(socket.socket(socket.AF_UNIX))
            one.connect(f"\0{name}")
        began = time.monotonic()
        with pytest.raises(CommunicatorError, match="has ended, or is stopped"):
            connect(f"@{name}", b"key")
        assert 0.2 < time.monotonic() - began < 60


def test_a_rank_that_has_ended_is_waited_for_no_more(server: StoreServer) -> None:
    """Its keys are there; a key that is missing is named at once, by its number in the job."""
    first, second = (connect(server.address, server.key) for _ in range(2))
    second.set("value of 1", b"1")
    group = GroupStore(first, "later")
    threading.Timer(0.1, server.end, [7]).start()
    begin_s = time.monotonic()
    with pytest.raises(
        CommunicatorError, match="rank 5: rank 7 of 2 has ended and did not join"
    ) as caught:
        exchange(group, 0, 2, b"0", 250, (5, 7))
    assert caught.value.ranks == (7,)
    assert not caught.value.timed_out
    assert exchange(first, 0, 2, b"0", 60, (5, 7)) == [b"0", b"1"]
    assert time.monotonic() - begin_s < 200
