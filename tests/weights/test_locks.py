"""Locks between threads and processes end with whoever holds them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from other_process import forked

from engine.errors import Cancelled
from engine.types import CancelToken
from engine.weights.location import CacheUnusable
from engine.weights.locks import locked


def test_one_holds_a_lock_alone_or_many_share_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path) as first, locked(path, wait=False) as second:
        assert (first, second) == (True, False)
    with locked(path, shared=True) as first, locked(path, shared=True, wait=False) as second:
        assert (first, second) == (True, True)
        with locked(path, wait=False) as alone:
            assert not alone
    with locked(path, wait=False) as again:
        assert again


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with ExitStack() as children:
        with locked(path):
            children.enter_context(forked())
        with locked(path, wait=False) as is_ours:
            assert is_ours


def test_a_lock_whose_file_was_removed_meanwhile_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    def wait() -> bool:
        with locked(path):
            return path.exists()  # a lock that others find

    with ThreadPoolExecutor(1) as thread, locked(path):
        waits = thread.submit(wait)
        time.sleep(0.1)
        path.unlink()  # as prune does while it holds the lock
        time.sleep(0.1)
        assert not waits.done()
    assert waits.result()


def test_who_waits_can_be_cancelled(tmp_path: Path) -> None:
    token = CancelToken()
    token.cancel()
    with (
        locked(tmp_path / "lock"),
        pytest.raises(Cancelled),
        locked(tmp_path / "lock", check=token.check),
    ):
        pass


def test_a_lock_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    with pytest.raises(CacheUnusable, match="cannot be made"), locked(tmp_path / "no" / "lock"):
        pass


def test_of_a_read_only_disk_a_lock_that_is_there_is_held_shared(tmp_path, monkeypatch) -> None:
    with locked(tmp_path / "lock"):  # made while the disk could be written
        pass
    really_open = os.open

    def read_only(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_CREAT | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return really_open(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    with (
        locked(tmp_path / "lock", shared=True) as first,
        locked(tmp_path / "lock", shared=True, wait=False) as second,
    ):
        assert first
        assert second
    for name, shared in (("lock", False), ("another", True)):
        with (
            pytest.raises(CacheUnusable, match="cannot be made: Read-only file system"),
            locked(tmp_path / name, shared=shared),
        ):
            pass


HOLD_AND_FORK = """
import os, sys, time
from pathlib import Path
from engine.weights.locks import locked
with locked(Path(sys.argv[1])):
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
    time.sleep(60)
"""


def test_a_child_that_outlives_a_killed_holder_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD_AND_FORK, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            with locked(path, wait=False) as is_ours:
                assert not is_ours
            parent.send_signal(signal.SIGKILL)
            parent.wait(10)
            with locked(path, wait=False) as is_ours:
                assert is_ours
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_forked_under_a_lock_leaves_it_to_the_parent(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = locked(path)
    assert held.__enter__()
    if (child := os.fork()) == 0:
        status = 1
        try:
            held.__exit__(None, None, None)  # as where the child leaves the block, too
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    with locked(path, wait=False) as is_ours:
        assert not is_ours
    held.__exit__(None, None, None)
    with locked(path, wait=False) as is_ours:
        assert is_ours


def test_a_file_system_without_locks_says_so(tmp_path: Path, monkeypatch) -> None:
    import fcntl

    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(CacheUnusable, match="cannot be locked: No locks available"):
        locked(tmp_path / "lock").__enter__()
