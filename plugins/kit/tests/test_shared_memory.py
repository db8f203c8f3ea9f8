"""Files that a test leaves in /dev/shm are found, those of processes beside it are not."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_testing import shared_memory
from engine_testing.shared_memory import FOLDER, left_since, names

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="there are no files in memory here")

MAP = """
import mmap, sys
with open(sys.argv[1], "w+b") as file:
    file.write(bytes(4096))
    file.flush()
    mapped = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The path of a file that is not there yet."""
    monkeypatch.setattr(shared_memory, "_LIMIT_S", 0.2)
    path = FOLDER / f"engine-test-{secrets.token_hex(4)}"
    yield path
    path.unlink(missing_ok=True)


def test_what_this_process_leaves_is_found(path: Path) -> None:
    before = names()
    path.write_bytes(b"left")
    assert path.name in left_since(before)
    assert path.name not in left_since(names())


def test_what_a_child_maps_is_found_and_what_a_stranger_maps_is_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = names()
    with subprocess.Popen(
        [sys.executable, "-c", MAP, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"mapped\n"
        assert path.name in left_since(before)
        monkeypatch.setattr(shared_memory.os, "getpid", lambda: -1)  # the child is a stranger's
        assert path.name not in left_since(before)
        assert child.stdin is not None
        child.stdin.close()
    assert path.name in left_since(before)
