"""Threads that wait for a slot, and whose requests workers run."""

from __future__ import annotations

import dataclasses
import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from steps import build, outcome, result
from waiting import in_threads, wait_until

from engine import Cancelled, CancelToken, DeadlineExceeded, ModelError, ModelParallelRunner, Tensor
from engine_testing import models

X = np.ones((1, 3), np.float32)
Make = Callable[..., ModelParallelRunner]
SLOW = {"null_context": {"delay_s": "0.1"}}

WATCHED = """
import threading
from engine.errors import ModelError

plain, names, go = engine_predict, [], threading.Event()
go.set()

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    names.append(threading.current_thread().name)
    assert go.wait(60)
    if (inputs[0] == 13).any():
        raise ModelError("unlucky")
    return plain(context, inputs, outputs, deadline_s)
"""


@pytest.fixture
def watched(install: Callable[..., ModuleType], tmp_path: Path) -> Any:
    """The backend's module, and a runner of one worker."""
    module: Any = install("watched", extra=WATCHED)
    runner = build(models.affine(tmp_path), "watched", max_batch_size=1)
    module.names.clear()
    yield module, runner
    module.go.set()
    runner.close()


def behind_another(module: Any, runner: ModelParallelRunner, call: Callable[[], Any]) -> Any:
    """Return what a thread's `call` returned or raised that had to wait for another's run."""
    module.go.clear()
    found: list[Any] = []
    first = threading.Thread(target=runner.predict, args=([X],), name="first")
    second = threading.Thread(target=lambda: found.append(outcome(call)), name="second")
    first.start()
    wait_until(lambda: module.names)
    second.start()
    wait_until(lambda: runner.statistics().waiting)
    module.go.set()
    first.join(60)
    second.join(60)
    return found.pop()


def test_a_thread_that_finds_a_free_slot_runs_itself_and_one_that_waits_is_served(watched) -> None:
    module, runner = watched
    module.go.set()
    outputs = behind_another(module, runner, lambda: runner.predict([X]))
    assert result(outputs) == (2 * X + 1).tolist()
    assert module.names == ["first", "engine-runner"]
    times = runner.statistics()
    assert times.completed == times.queue.count == 2
    runner.close()
    wait_until(lambda: "engine-runner" not in {t.name for t in threading.enumerate()})


def test_after_a_short_run_who_waits_runs_itself(watched: Any) -> None:
    module, runner = watched
    runner.predict([X])
    assert runner._queues[0].runnable.run_s > 0
    runner._queues[0].runnable.run_s = 1e-5  # this machine may be slow
    module.names.clear()
    behind_another(module, runner, lambda: runner.predict([X]))
    assert module.names == ["first", "second"]


def test_a_worker_fills_the_outputs_of_who_waits(watched: Any) -> None:
    module, runner = watched
    outputs = [Tensor(np.zeros((1, 3), np.float32))]
    assert behind_another(module, runner, lambda: runner.predict([3 * X], outputs)) is outputs
    assert result(outputs) == [[7.0] * 3]
    assert module.names[-1] == "engine-runner"


def test_who_waits_gets_the_error_of_its_run(watched: Any) -> None:
    module, runner = watched
    bad = np.full((1, 3), 13, np.float32)
    error = behind_another(module, runner, lambda: runner.predict([bad]))
    assert isinstance(error, ModelError)
    assert "unlucky" in str(error)
    assert runner.statistics().failed == 1
    assert result(runner.predict([X])) == [[3.0] * 3]


def test_nothing_of_a_request_outlives_the_wait_for_it(make: Make) -> None:
    runner = make(1, SLOW)
    first = runner.submit([X])
    wait_until(lambda: runner.statistics().running)
    inputs = [np.ones((1, 3), np.float32)]
    known = weakref.ref(inputs[0])
    gc.disable()
    try:
        in_threads(1, lambda _: runner.predict([inputs.pop()]) and None)
        assert first.done()  # it has waited
        wait_until(lambda: known() is None)
    finally:
        gc.enable()


def test_where_no_worker_can_start_who_waits_runs_itself(watched, monkeypatch) -> None:
    module, runner = watched

    def fail() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(runner._queues[0].pending.workers, "need", fail)
    outputs = behind_another(module, runner, lambda: runner.predict([X]))
    assert result(outputs) == (2 * X + 1).tolist()
    assert module.names == ["first", "second"]


@pytest.mark.parametrize("how", ["timeout_s", "cancel"])
def test_a_request_that_a_worker_runs_is_stopped_in_time(make: Make, how: str) -> None:
    runner = make(1, {"null_context": {"delay_s": "300"}})
    runner._queues[0].runnable.run_s = 1.0
    first = runner.submit([X])
    wait_until(lambda: runner.statistics().running)
    token = CancelToken()
    limit: dict[str, Any] = {"timeout_s": 1} if how == "timeout_s" else {"cancel": token}
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(runner.predict, [X], **limit)
        wait_until(lambda: runner.statistics().waiting or asked.done())
        assert first.cancel()
        assert first.cancelled()
        wait_until(lambda: not runner.statistics().waiting)
        token.cancel()
        error = asked.exception(60)  # it would have run for 300 s
    assert isinstance(error, DeadlineExceeded if how == "timeout_s" else Cancelled)


@pytest.fixture
def patient(null_backend: str, tmp_path: Path) -> Any:
    """A runner whose requests share runs, and wait 2 s for those whom the last run served."""
    made: list[ModelParallelRunner] = []

    def patient(workers: int) -> ModelParallelRunner:
        config = {"null_context": {"delay_s": "0.01"}}
        path = models.affine(tmp_path)
        runner = build(path, null_backend, workers, config, max_batch_size=8)
        made.append(runner)
        batching = runner._queues[0].runnable.batcher.batching
        assert batching.only_recent
        assert 0 < batching.delay_s <= 1e-3
        assert "waits up to" in runner.statistics().batching
        change(runner, delay_s=2.0)
        return runner

    yield patient
    for runner in made:
        runner.close()


def change(runner: ModelParallelRunner, **settings: Any) -> None:
    batcher = runner._queues[0].runnable.batcher
    batcher.batching = dataclasses.replace(batcher.batching, **settings)


def test_a_lone_client_waits_for_nobody(patient: Any) -> None:
    runner = patient(2)
    change(runner, delay_s=30.0)
    in_threads(1, lambda _: [runner.predict([X]) for _ in range(10)] and None)  # for 60 s at most
    assert runner.statistics().batch_sizes == {1: 10}


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_that_come_back_at_once_share_runs_even_where_slots_are_free(
    patient: Any, workers: int
) -> None:
    runner = patient(workers)

    def client(number: int) -> None:
        for turn in range(10):
            x = np.full((1, 3), 10 * number + turn, np.float32)
            assert result(runner.predict([x])) == (2 * x + 1).tolist()
        change(runner, delay_s=0.0)  # who has gone is not waited for

    in_threads(3, client)
    sizes = runner.statistics().batch_sizes
    assert sum(size * count for size, count in sizes.items()) == 30
    shared = sum(count for size, count in sizes.items() if size > 1)
    # With two slots the clients may settle in two groups, of two and of one.
    assert sizes.get(3, 0) >= 6 if workers == 1 else shared >= 6, sizes


def test_a_full_run_waits_for_nobody(patient: Any) -> None:
    runner = patient(1)
    change(runner, most=2, delay_s=4.0)
    begin = time.monotonic()
    futures = [runner.submit([X]) for _ in range(8)]  # there before the first run has ended
    for future in futures:
        assert result(future.result(60)) == [[3.0] * 3]
    # The first one may be alone, and the last one then waits; not each run.
    assert time.monotonic() - begin < 10
    assert runner.statistics().batch_sizes.get(2, 0) >= 3
