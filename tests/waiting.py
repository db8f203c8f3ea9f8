"""Threads and processes of a test: started, counted, and waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path


def wait_until(condition: Callable[[], object], timeout_s: float = 120) -> None:
    """Return when a condition is true. Not a sleep for a fixed time: machines may be busy."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.001)


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Call `work` in so many threads, and raise what one of them raised."""
    with ThreadPoolExecutor(count) as threads:
        for call in [threads.submit(work, number) for number in range(count)]:
            call.result(120)


def is_alive(pid: int | str) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children() -> set[int]:
    """Return this process's children, ended ones that nobody has waited for among them."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended meanwhile
            found.update(map(int, (task / "children").read_text().split()))
    return found
