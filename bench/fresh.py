"""Fresh processes: the CPU time of each, all its threads, and several kinds of them in turns."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping


def cpu_s(code: str, *arguments: str, environment: Mapping[str, str] | None = None) -> float:
    """Return the CPU time of a process that runs `code`; SystemExit where it fails."""
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"a process ended with {process.returncode}; it ran: {code}")
    return used.ru_utime + used.ru_stime


def in_turns(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Measure each way once a round, in an order that changes from round to round."""
    names = tuple(ways)
    times: dict[str, list[float]] = {name: [] for name in names}
    for count in range(rounds):
        first = count % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(ways[name]())
    return times
