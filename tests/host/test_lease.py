"""Writers wait while a file is leased; what cannot be leased is only read as it was before."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine.host.lease import leased

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has leases on files")

CUT = "import os, sys; os.truncate(sys.argv[1], 0)"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with leased(path) as is_leased:
        if not is_leased:
            pytest.skip("the file system of the temporary folder has no leases")
    return path


def test_truncating_waits_for_the_lease_to_end(file: Path) -> None:
    with leased(file):
        child = subprocess.Popen([sys.executable, "-c", CUT, str(file)])
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=1.5)
        assert file.read_bytes() == b"content"
    assert child.wait(timeout=60) == 0
    assert file.read_bytes() == b""


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_lease(file: Path) -> None:
    read, write = os.pipe()
    with leased(file):
        pid = os.fork()
        if pid == 0:
            os.read(read, 1)
            os._exit(0)
    try:
        started = time.monotonic()
        file.write_bytes(b"new")
        assert time.monotonic() - started < 30
    finally:
        os.write(write, b".")
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)


def test_a_file_may_be_replaced_and_leased_again_meanwhile(file: Path) -> None:
    with leased(file), leased(file) as again:
        assert again
        new = file.with_name("new")
        new.write_bytes(b"new")
        new.replace(file)
    assert file.read_bytes() == b"new"


def test_a_file_that_somebody_writes_to_is_not_leased(file: Path) -> None:
    with file.open("ab"), leased(file) as is_leased:
        assert not is_leased


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: None])
def test_what_is_no_file_is_left_to_whoever_reads_it(tmp_path: Path, make: object) -> None:
    path = tmp_path / "thing"
    make(path)  # type: ignore[operator]
    with leased(path) as is_leased:
        assert not is_leased


def test_threads_lease_one_file_at_once(file: Path) -> None:
    both = threading.Barrier(2)
    found = []

    def lease() -> None:
        with leased(file) as is_leased:
            both.wait(60)
            found.append(is_leased)

    threads = [threading.Thread(target=lease) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True, True]
