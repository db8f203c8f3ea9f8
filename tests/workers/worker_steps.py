"""Steps that tests of runners in processes have in common."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from waiting import children, wait_until

from engine import MultiDeviceRunner

Make = Callable[..., MultiDeviceRunner]


def left() -> tuple[int, int, frozenset[int]]:
    """Return how many descriptors and threads there are, and this process's children."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count(), frozenset(children())


def rows(count: int, first: float = 0.0) -> np.ndarray[Any, Any]:
    """Return an input of so many rows; its very first element is `first`."""
    x = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    x[0, 0] = first
    return x


def check(outputs: list[Any], x: np.ndarray[Any, Any]) -> None:
    """Assert that these are the outputs for x."""
    [y] = outputs
    np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * x + 1)


def pids(runner: MultiDeviceRunner) -> list[int]:
    """Return the processes of the workers, once each has one."""
    found: list[int] = []

    def have_all() -> bool:
        found[:] = [worker.pid for worker in runner.statistics().workers]
        return all(found)  # 0 while one is being started, which os.kill takes for all of the group

    wait_until(have_all)
    return found


def states(runner: MultiDeviceRunner) -> list[str]:
    return [worker.state for worker in runner.statistics().workers]


def kill(*processes: int) -> None:
    assert all(processes)
    for process in processes:
        os.kill(process, signal.SIGKILL)
