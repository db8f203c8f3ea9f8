"""The roof of this processor: the most operations and bytes that it does in a second.

A kernel takes at least the time of its operations at the one rate, and at least the time of its
bytes at the other (Williams, Waterman and Patterson, "Roofline", CACM 2009).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from statistics import median

import numpy as np

from engine.errors import EngineError
from engine.host.child import environment
from engine.host.cpus import usable_cpus
from engine.host.worker import Ended, Worker

_SIZE = 256
_COPIED = 1 << 20
_MEASURED_S = 0.12
_MOST_S = 60.0
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Roof:
    """Rates of float32 operations and of bytes that are read or written. source: where from."""

    flops_per_s: float
    bytes_per_s: float
    source: str = "given"

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "bytes_per_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name} must be a number, but got {type(value)}.")
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a finite number above 0, but got {value!r}")


@cache
def measured() -> Roof:
    """Measure all CPUs that this process may use, at once; once a process.

    By products of float32 matrices, and by copies of a megabyte, which stays in a cache, as the
    values between two layers may. Each CPU has a
    thread of its own, and what counts is the median of many short tries: so a busy machine gives
    about the same as an idle one. Raises EngineError where the process that measures ends early.
    """
    one_thread = environment(**dict.fromkeys(_ONE_THREAD, "1"))  # before numpy is imported
    with Worker(f"{__name__}:serve", usable_cpus(), env=one_thread) as worker:
        try:
            flops_per_s, bytes_per_s = worker.receive(_MOST_S)
        except (Ended, TimeoutError) as end:
            raise EngineError(f"the roof cannot be measured: its process {end}; give one") from None
    return Roof(flops_per_s, bytes_per_s, "measured now")


def serve(cpus: int, connection: Connection) -> int:
    """Measure, in a process whose BLAS has one thread, and send both rates."""
    products, copies = _together(cpus, _product), _together(cpus, _copy)
    connection.send((products * 2 * _SIZE**3, copies * 2 * _COPIED))
    return 0


def _product() -> Callable[[], object]:
    matrix = np.ones((_SIZE, _SIZE), np.float32)
    result = np.empty_like(matrix)
    return lambda: np.matmul(matrix, matrix, out=result)


def _copy() -> Callable[[], object]:
    source = np.ones(_COPIED, np.uint8)
    target = np.ones_like(source)
    return lambda: np.copyto(target, source)


def _together(cpus: int, prepare: Callable[[], Callable[[], object]]) -> float:
    """Return how often in a second all CPUs together do some work."""
    ready = threading.Barrier(cpus)
    rates: list[float] = []

    def run() -> None:
        work = prepare()
        took: list[float] = []
        work()
        ready.wait()
        end = time.perf_counter() + _MEASURED_S
        while not took or time.perf_counter() < end:
            begin = time.perf_counter()
            work()
            took.append(time.perf_counter() - begin)
        rates.append(1 / median(took))

    threads = [threading.Thread(target=run) for _ in range(cpus)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)
