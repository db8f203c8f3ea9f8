"""Runners of a process share its CPUs, where their number of workers is left open."""

from __future__ import annotations

import importlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine.serving import parallel_runner, shared_cpus
from engine_testing import models, plugins
from engine_testing.fixtures import plugin_folder

__all__ = ["plugin_folder"]

CPUS = 2
GATE = """
import threading
from collections import defaultdict

begun, go, call = [], threading.Event(), []
go_on = defaultdict(lambda: go)

def wrap(model, predict):
    def gated(context, inputs, outputs, deadline_s):
        value = float(inputs[0].flat[0])
        begun.append(value)
        if value < 100:
            assert go_on[value].wait(60)
        elif call:
            call[0](value)
        return predict(context, inputs, outputs, deadline_s)

    return gated
"""


@pytest.fixture
def gate(plugin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of an extension, whose runs of values below 100 go on only once `go` is set.

    begun: the first elements of the runs' first inputs. call: with that of a run above 100.
    go_on: what is to be set for some values, in place of `go`.
    """
    monkeypatch.setattr(shared_cpus, "_cpus", shared_cpus.SharedCpus())
    for module in (shared_cpus, parallel_runner):
        monkeypatch.setattr(module, "usable_cpus", lambda: CPUS)
    plugins.install(plugin_folder, "gate", "gate:wrap", group="engine.extensions.v1", source=GATE)
    monkeypatch.setenv("ENGINE_EXTENSIONS", "gate")
    return importlib.import_module("gate")


@pytest.fixture
def make(gate: Any, tmp_path: Path) -> Iterator[Callable[..., engine.ModelParallelRunner]]:
    """Build a runner of y = 2x + 1 on the cpu; closed at the end."""
    made: list[engine.ModelParallelRunner] = []

    def make(workers: int = 0, threads: int = 0) -> engine.ModelParallelRunner:
        context = engine.Context()
        context.target = ["cpu"]
        context.parallel.workers_num, context.cpu.thread_num = workers, threads
        runner = engine.ModelParallelRunner()
        runner.build_from_file(str(models.affine(tmp_path)), context, max_batch_size=1)
        made.append(runner)
        gate.begun.clear()
        return runner

    yield make
    gate.go.set()
    for runner in made:
        runner.close(finish=False)


def row(value: float) -> list[Any]:
    return [np.full((1, 3), value, np.float32)]


def values(future: Future[Any]) -> Any:
    return future.result(120)[0].get_data_to_numpy().tolist()


def wait_until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.001)


def running(runner: engine.ModelParallelRunner) -> int:
    return runner.statistics().running


def test_two_runners_run_as_many_as_there_are_cpus_and_each_at_least_one(gate, make) -> None:
    a, b = make(), make()
    of_a = [a.submit(row(1)) for _ in range(4)]
    wait_until(lambda: len(gate.begun) == CPUS)
    of_b = [b.submit(row(2)) for _ in range(4)]
    wait_until(lambda: len(gate.begun) == CPUS + 1)
    assert (running(a), running(b)) == (CPUS, 1)
    gate.go.set()
    assert [values(future) for future in of_a + of_b] == [[[3.0] * 3]] * 4 + [[[5.0] * 3]] * 4


def test_a_number_of_workers_is_kept_whatever_others_run(gate, make) -> None:
    a, own = make(), make(workers=3)
    futures = [runner.submit(row(1)) for runner in (a, own) for _ in range(5)]
    wait_until(lambda: len(gate.begun) == CPUS + 3)
    assert (running(a), running(own)) == (CPUS, 3)
    gate.go.set()
    wait(futures, 120)


def test_a_run_of_two_threads_takes_two_cpus(gate, make) -> None:
    wide, narrow = make(threads=2), make()
    futures = [wide.submit(row(1)), *[narrow.submit(row(2)) for _ in range(3)]]
    wait_until(lambda: len(gate.begun) == 2)
    assert (running(wide), running(narrow)) == (1, 1)
    gate.go.set()
    wait(futures, 120)
    assert sorted(gate.begun) == [1, 2, 2, 2]


def test_the_highest_priority_of_all_models_runs_next(gate, make) -> None:
    a, b = make(), make()
    gate.go_on.update({value: threading.Event() for value in range(1, 7)})

    def begins(runner: engine.ModelParallelRunner, value: int) -> None:
        futures.append(runner.submit(row(value)))
        wait_until(lambda: gate.begun[-1:] == [value])

    futures: list[Future[Any]] = []
    begins(a, 1)
    begins(a, 2)
    begins(b, 3)
    for runner, value, priority in ((a, 7, 1), (b, 5, 3), (a, 4, 4), (b, 6, 2)):
        futures.append(runner.submit(row(value), priority=priority))
    gate.go_on[1].set()
    wait([futures[0]], 120)
    assert gate.begun == [1, 2, 3]  # two still run
    for ends, count in ((2, 4), (3, 5)):
        gate.go_on[ends].set()
        wait_until(lambda count=count: len(gate.begun) >= count)
    assert gate.begun == [1, 2, 3, 4, 5]
    for event in (gate.go, *gate.go_on.values()):
        event.set()
    assert wait(futures, 120).not_done == set()


@pytest.mark.parametrize("way", ["predict", "submit"])
@pytest.mark.parametrize("priority", [0, 7])
def test_a_run_may_wait_for_another_runners_request(gate, make, way: str, priority: int) -> None:
    outer, inner = make(), make()

    def call(value: float) -> None:
        if value >= 200:
            if way == "predict":
                inner.predict(row(100), priority=priority)
            else:
                inner.submit(row(100), priority=priority).result(120)

    gate.call.append(call)
    futures = [outer.submit(row(200), priority=number % 5) for number in range(20)]
    with ThreadPoolExecutor(8) as threads:
        futures += [threads.submit(inner.predict, row(100)) for _ in range(40)]
        found = wait(futures, 60)
    assert not found.not_done
    assert all(values(future) in ([[401.0] * 3], [[201.0] * 3]) for future in futures)


def test_a_closed_runner_gives_its_cpus_to_others(gate, make) -> None:
    a, b = make(), make()
    of_a = [a.submit(row(1)) for _ in range(8)]
    wait_until(lambda: len(gate.begun) == CPUS)
    of_b = [b.submit(row(2)) for _ in range(3)]
    wait_until(lambda: len(gate.begun) == CPUS + 1)
    closing = threading.Thread(target=a.close, kwargs={"finish": False})
    closing.start()
    assert all(isinstance(f.exception(120), engine.ModelStateError) for f in of_a[CPUS:])
    gate.go.set()
    closing.join(120)
    assert [values(future) for future in of_a[:CPUS]] == [[[3.0] * 3]] * CPUS
    assert [values(future) for future in of_b] == [[[5.0] * 3]] * 3
    assert values(b.submit(row(3))) == [[7.0] * 3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork")
def test_a_forked_child_has_all_cpus(gate, make) -> None:
    a = make()
    futures = [a.submit(row(1)) for _ in range(4)]
    wait_until(lambda: len(gate.begun) == CPUS)
    is_held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with shared_cpus._cpus._lock:
            is_held.set()
            forked.wait(60)

    holding = threading.Thread(target=hold)
    holding.start()
    assert is_held.wait(60)
    child = os.fork()
    if child == 0:
        status = 1
        signal.alarm(30)
        try:
            own = shared_cpus.SharedSemaphore(CPUS, 1)
            status = 0 if all(own.enter(number) for number in range(CPUS)) else 2
        finally:
            os._exit(status)
    forked.set()
    holding.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gate.go.set()
    wait(futures, 120)


def test_requests_of_every_kind_end_and_no_cpu_is_lost(gate, make) -> None:
    """Of several runners, one of which is closed in the middle."""
    runners = [make(), make(), make(threads=2), make()]
    closing, right = runners[3], []

    def client(number: int) -> None:
        chance = random.Random(number)
        for turn in range(120):
            runner, value = chance.choice(runners), 100.0 + turn
            kind, priority = chance.randrange(6), chance.randint(-5, 5)
            try:
                if kind == 0:
                    future = runner.submit(row(value), priority=priority)
                    future.cancel()
                    wait([future], 120)
                    continue
                if kind == 1:
                    runner.submit(row(value), timeout_s=1e-4).exception(120)
                    continue
                if kind == 2:
                    runner.predict([np.ones((1, 4), np.float32)])
                if kind == 3:
                    [y] = runner.predict(row(value), timeout_s=60, priority=priority)
                elif kind == 4:
                    [y] = runner.submit(row(value), priority=priority).result(120)
                else:
                    [y] = runner.predict(row(value))
                assert y.get_data_to_numpy().tolist() == [[2 * value + 1] * 3]
                right.append(number)
            except engine.EngineError as error:
                if kind != 2 and not (
                    isinstance(error, engine.ModelStateError) and runner is closing
                ):
                    raise
            if number == 0 and turn == 60:
                closing.close(finish=False)

    with ThreadPoolExecutor(10) as threads:
        for call in [threads.submit(client, number) for number in range(10)]:
            call.result(120)
    assert len(right) > 300
    wait_until(lambda: not any(map(running, runners)))
    assert all(semaphore.cpus == 0 for semaphore in shared_cpus._cpus.semaphores())
    assert all(values(runner.submit(row(100))) == [[201.0] * 3] for runner in runners[:3])
