"""The store that ranks find each other by."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.distributed.store import GroupStore, StoreServer, connect, exchange
from engine.errors import CommunicatorError


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer() as server:
        yield server


def test_what_one_rank_writes_another_reads(server: StoreServer) -> None:
    connect(server.address, server.key).set("id", b"\x00\xff")
    assert connect(server.address, server.key).get("id", 1.0) == b"\x00\xff"


def test_a_rank_that_reads_first_waits_for_the_writer(server: StoreServer) -> None:
    reader, writer = (connect(server.address, server.key) for _ in range(2))
    values: list[bytes] = []
    thread = threading.Thread(target=lambda: values.append(reader.get("id", 10.0)))
    thread.start()
    writer.set("id", b"late")
    thread.join(10)
    assert values == [b"late"]


def test_a_store_serves_a_wait_and_a_write_of_one_rank_at_once(server: StoreServer) -> None:
    store = connect(server.address, server.key)
    values: list[bytes] = []
    thread = threading.Thread(target=lambda: values.append(store.get("own", 10.0)))
    thread.start()
    store.set("own", b"1")
    thread.join(10)
    assert values == [b"1"]


def test_a_key_that_nobody_writes_is_an_error_after_the_timeout(server: StoreServer) -> None:
    store = connect(server.address, server.key)
    with pytest.raises(CommunicatorError, match=r"no rank has written 'id' within 0\.05 s"):
        store.get("id", 0.05)
    store.set("id", b"after")  # the connection serves on
    assert store.get("id", 1.0) == b"after"


def test_a_key_is_written_once(server: StoreServer) -> None:
    store = connect(server.address, server.key)
    store.set("id", b"1")
    store.set("id", b"1")
    with pytest.raises(CommunicatorError, match="'id' has another value already"):
        store.set("id", b"2")
    assert store.get("id", 1.0) == b"1"


def test_groups_have_keys_of_their_own(server: StoreServer) -> None:
    store = connect(server.address, server.key)
    for group in ("rows", "columns"):
        GroupStore(store, group).set("id", group.encode())
    assert GroupStore(store, "rows").get("id", 1.0) == b"rows"


def test_another_jobs_key_is_refused_and_the_server_serves_on(server: StoreServer) -> None:
    with pytest.raises(CommunicatorError, match="refused the key"):
        connect(server.address, b"another job's")
    connect(server.address, server.key).set("id", b"1")


def test_a_server_that_ends_fails_the_ranks_that_wait_for_it() -> None:
    server = StoreServer()
    store = connect(server.address, server.key)
    failures: list[Exception] = []

    def wait() -> None:
        try:
            store.get("id", 30.0)
        except CommunicatorError as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    server.close()
    thread.join(10)
    assert not thread.is_alive()
    assert len(failures) == 1
    with pytest.raises(CommunicatorError, match="does not answer"):
        connect(server.address, server.key)
    assert not Path(server.address).parent.exists()


def test_only_this_user_reaches_the_socket(server: StoreServer) -> None:
    assert Path(server.address).parent.stat().st_mode & 0o777 == 0o700


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
    results: dict[int, list[bytes]] = {}

    def join(rank: int) -> None:
        store = GroupStore(connect(server.address, server.key), "world")
        results[rank] = exchange(store, rank, 3, f"of {rank}".encode(), 10.0)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == {rank: [b"of 0", b"of 1", b"of 2"] for rank in range(3)}


def test_a_rank_that_does_not_come_is_named(server: StoreServer) -> None:
    store = connect(server.address, server.key)
    with pytest.raises(CommunicatorError, match=r"rank 1, 2 of 3 did not join") as raised:
        exchange(store, 0, 3, b"here", 0.1)
    assert raised.value.ranks == (1, 2)


def test_a_client_that_says_nothing_keeps_no_other_out(server: StoreServer) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(server.address)
        connect(server.address, server.key).set("id", b"1")


def test_a_forked_child_speaks_on_connections_of_its_own(server: StoreServer) -> None:
    store = connect(server.address, server.key)
    child = os.fork()
    if child == 0:
        store.set("of the child", b"1")
        os._exit(0)
    store.set("of the parent", b"2")
    assert os.waitpid(child, 0)[1] == 0
    assert store.get("of the child", 5.0) == b"1"
    assert store.get("of the parent", 5.0) == b"2"


def test_a_wait_may_be_endless_and_must_be_a_number(server: StoreServer) -> None:
    store = connect(server.address, server.key)
    store.set("id", b"1")
    assert store.get("id", math.inf) == b"1"
    with pytest.raises(ValueError, match="timeout_s must be a number of seconds, but got nan"):
        store.get("id", math.nan)


def test_groups_whose_names_have_a_slash_are_told_apart(server: StoreServer) -> None:
    store = connect(server.address, server.key)
    GroupStore(store, "a").set("b/c", b"1")
    GroupStore(store, "a/b").set("c", b"2")
    assert GroupStore(store, "a").get("b/c", 1.0) == b"1"
