"""Files in /dev/shm that a test has left, told from those of other processes.

The folder is one for the whole machine: while a test runs, whatever runs beside it makes files
there and removes them.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/dev/shm")
_LIMIT_S = 60.0


def names() -> frozenset[str]:
    """Return the names of the files that there are; none where there is no such folder."""
    with suppress(FileNotFoundError):
        return frozenset(os.listdir(FOLDER))
    return frozenset()


def left_since(before: frozenset[str]) -> frozenset[str]:
    """Return which files have come since `before` and stay, though no other process uses them.

    Waits for their end: what a killed process has is removed by others, a moment later.
    """
    end = time.monotonic() + _LIMIT_S
    left = names() - before
    while left and (left := left - used_by_others()) and time.monotonic() < end:
        time.sleep(0.02)
        left &= names()
    return left


def used_by_others() -> frozenset[str]:
    """Return the names of files that processes other than this and its descendants have mapped.

    Or are told of in their arguments, as those are that remove a folder.
    """
    found: set[str] = set()
    parents = _parents()
    for pid in parents:
        if _is_own(pid, parents):
            continue
        with suppress(OSError):  # it has ended, or is another user's
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                found.update(_names_in(line.partition("/")[1] + line.partition("/")[2]))
        with suppress(OSError):
            for argument in Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0"):
                found.update(_names_in(argument))
    return frozenset(found)


def _names_in(path: str) -> list[str]:
    """Return the name of the file or folder in /dev/shm that a path leads to or into."""
    if not path.startswith(f"{FOLDER}/"):
        return []
    return [path.removesuffix(" (deleted)").split("/")[3]]


def _parents() -> dict[int, int]:
    """Return the parent of every process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                stat = Path(f"/proc/{name}/stat").read_text(errors="replace")
                found[int(name)] = int(stat.rpartition(")")[2].split()[1])
    return found


def _is_own(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()
