"""Time for which idle threads wait for more work before they sleep.

ONNX Runtime's own threads spin for up to 20 ms after each run. On a machine that is otherwise
idle, sleeping between two operators costs a wake-up each time; beside a busy neighbour, spinning
takes the time that the neighbour and our own other threads need. bench/overhead.py measures both.
"""

from __future__ import annotations

import functools
import os
import sys
import time

from engine.host.cpus import background, usable_cpus
from engine.host.interrupts import pass_interrupt

# Long enough for the gaps between operators, also where the clock is slow.
ALONE_US = 300
# About two thirds of ONNX Runtime's time beside a busy neighbour; 4 % more than it on an idle one.
SHARED_US = 15


def spin_us(threads: int) -> int:
    """Return how many microseconds to spin in a session of `threads` threads.

    Decided by what else is running when a model is built, or was a second before. A neighbour that
    comes or goes later changes nothing for it.
    """
    if threads == 1:  # none of its threads is ever idle, so there is nothing to look for
        return ALONE_US
    second = int(time.monotonic())
    is_alone = recently_running(second) + threads <= recently_usable(second)
    return ALONE_US if is_alone else SHARED_US


@functools.lru_cache(1)
def recently_running(second: int) -> int:
    """Count them once a second: beside neighbours a look takes ten times a small session's load."""
    return others_running()


@functools.lru_cache(1)
def recently_usable(second: int) -> int:
    """Count the usable CPUs once a second: several files say how many."""
    return usable_cpus()


def others_running(proc: str = "/proc") -> int:
    """Count other processes' threads that run or could run now, the fewest of a few looks.

    Those that work for this one in the background end soon and are not counted. Where the kernel
    does not say, as many as there are CPUs.
    """
    fewest = sys.maxsize
    try:
        for pause_s in (0.0, 0.0003, 0.0003):
            if pause_s:  # what runs for a moment only is no neighbour
                time.sleep(pause_s)
            # "0.00 0.03 0.00 1/79 1499": runnable of all threads (proc_loadavg(5))
            with open(f"{proc}/loadavg") as file:
                running = int(file.read().split()[3].partition("/")[0])
            fewest = min(fewest, running - (_own_running(proc) if running > 1 else 1))
            if fewest <= 0:
                return 0
    except (OSError, ValueError, IndexError) as error:
        pass_interrupt(error)
        return os.cpu_count() or 1
    return fewest


def _own_running(proc: str) -> int:
    """Count this process's threads in state R, the calling one among them, and its background's."""
    in_background = sum(_running_in(f"{proc}/{pid}/task") for pid in list(background))
    return max(1, _running_in(f"{proc}/self/task")) + in_background


def _running_in(folder: str) -> int:
    """Count the threads in state R that a folder of /proc has."""
    states = []
    try:
        tasks = os.listdir(folder)
    except FileNotFoundError:  # a process that has just ended
        return 0
    for task in tasks:
        try:
            with open(f"{folder}/{task}/stat") as file:
                states.append(file.read().rpartition(")")[2].split()[0])
        except (OSError, IndexError) as error:  # a thread that has just ended
            pass_interrupt(error)
            continue
    return states.count("R")
