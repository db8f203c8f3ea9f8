"""Ten thousand requests, with cancels, errors and deadlines among them, leave nothing behind."""

from __future__ import annotations

import gc
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest
from steps import build
from waiting import in_threads, wait_until

from engine import CancelToken, EngineError, ModelParallelRunner
from engine_testing import models
from engine_testing.interrupts import Interrupter

GOOD = np.ones((2, 3), np.float32)
BAD = np.ones((2, 4), np.float32)


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def work(runner: ModelParallelRunner, count: int, clients: int = 8) -> int:
    """Send requests of every kind from several threads; return how many gave results."""
    right = [0] * clients

    def client(number: int) -> None:
        chance = random.Random(number)
        for turn in range(count // clients):
            kind = chance.randrange(8)
            x = np.full((1 + turn % 3, 3), turn % 100, np.float32)
            token = CancelToken()
            try:
                if kind == 0:
                    runner.predict([BAD])
                elif kind == 1:
                    future = runner.submit([x], cancel=token)
                    token.cancel()
                    wait([future], 120)
                elif kind == 2:
                    future = runner.submit([x])
                    future.cancel()
                    wait([future], 120)
                elif kind == 3:
                    runner.submit([x], timeout_s=1e-4).exception(120)
                elif kind == 4:
                    runner.predict([x], timeout_s=1e-4)
                else:
                    [y] = (
                        runner.predict([x], timeout_s=120)
                        if kind == 5
                        else runner.submit({"x": x}).result(120)
                        if kind == 6
                        else runner.predict({"x": x}, cancel=token)
                    )
                    assert y.get_data_to_numpy().tolist() == (2 * x + 1).tolist()
                    right[number] += 1
            except EngineError:
                assert kind < 5

    in_threads(clients, client)
    return sum(right)


@pytest.mark.parametrize("most", [1, 8])
@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_nothing_grows(null_backend: str, tmp_path: Path, most: int, count: int) -> None:
    with build(models.affine(tmp_path), null_backend, 2, max_batch_size=most) as runner:
        work(runner, 400)  # what a first use makes
        files, memory = len(os.listdir("/proc/self/fd")), resident_bytes()
        inside = threading.active_count()
        right = work(runner, count)
        assert right > count // 4
        assert len(os.listdir("/proc/self/fd")) == files
        assert threading.active_count() <= inside + 4  # some start when first needed
        assert resident_bytes() - memory < 8 << 20
        wait_until(lambda: not runner.statistics().running)  # a cancelled run stops in a moment
        statistics = runner.statistics()
        assert statistics.waiting == 0
        ended = statistics.completed + statistics.failed + statistics.cancelled
        assert ended + statistics.expired == count + 400
        assert right <= statistics.completed
    wait_until(lambda: "engine-runner" not in {thread.name for thread in threading.enumerate()})


@pytest.mark.parametrize("most", [1, 8])
@pytest.mark.parametrize("count", [100, pytest.param(3000, marks=pytest.mark.slow)])
def test_what_a_signal_handler_raises_in_a_predict_arrives_and_no_slot_is_lost(
    null_backend: str, tmp_path: Path, most: int, count: int
) -> None:
    is_over = threading.Event()

    def beside() -> None:
        while not is_over.is_set():
            runner.predict([GOOD])

    interrupter = Interrupter(seed=most)
    path = models.affine(tmp_path)
    with build(path, null_backend, max_batch_size=most) as runner, ThreadPoolExecutor(1) as thread:
        going_on = thread.submit(beside)
        with interrupter.installed():
            for _ in interrupter.calls(lambda: runner.predict([GOOD]), count):
                [y] = runner.predict([GOOD])
                assert y.get_data_to_numpy().tolist() == (2 * GOOD + 1).tolist()
        is_over.set()
        going_on.result(120)
        assert (interrupter.lost, interrupter.unraisable) == ([], [])
        assert interrupter.raised > count / 50  # most, but on a busy machine the moments fall late
        wait_until(lambda: not runner.statistics().running and not runner.statistics().waiting)
