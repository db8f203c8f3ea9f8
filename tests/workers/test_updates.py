"""Updates of the weights of all workers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.helper import make_node
from waiting import wait_until
from worker_steps import Make, kill, pids, states

from engine import MultiDeviceRunner, Tensor
from engine.errors import InputError, ModelStateError, RequestRefused
from engine.workers.process import ProcessWorker
from engine_testing.making import tensor, write

X = np.zeros((4, 3), np.float32)  # two rows for each of two workers
Made = Callable[..., MultiDeviceRunner]


@pytest.fixture(scope="module")
def shared(make: Make) -> Iterator[MultiDeviceRunner]:
    """A runner of y = two x + one for many tests, both weights variable."""
    with make(common={"variable_weights_list": "two, one"}) as runner:
        yield runner


@pytest.fixture
def updated(shared: MultiDeviceRunner) -> Iterator[MultiDeviceRunner]:
    """The shared runner, ready, with both weights as at first: 2 and 1."""
    shared.update_weights({"two": np.array([2], np.float32), **one(1)})
    wait_until(lambda: states(shared) == ["ready", "ready"])
    yield shared
    wait_until(lambda: states(shared) == ["ready", "ready"])


@pytest.fixture
def declared(make: Make, nothing_is_left: None) -> Made:
    """Build a runner of that model alone."""

    def build(workers: int = 2, hang_timeout_s: float | None = None, **settings: str) -> Any:
        common = {"variable_weights_list": "two, one", **settings}
        return make(workers, common=common, hang_timeout_s=hang_timeout_s)

    return build


def one(value: float) -> dict[str, Any]:
    return {"one": np.array([value], np.float32)}


def ones(runner: MultiDeviceRunner) -> set[float]:
    """Return the values of `one` that a request has seen."""
    [y] = runner.predict([X])
    return set(y.get_data_to_numpy().ravel().tolist())


def restart(runner: MultiDeviceRunner) -> None:
    before, workers = runner.statistics().restarts, pids(runner)
    kill(*workers)
    wait_until(lambda: runner.statistics().restarts == before + len(workers))
    wait_until(lambda: set(states(runner)) == {"ready"})


@pytest.mark.parametrize("mode", ["swap", pytest.param("rebuild", marks=pytest.mark.slow)])
def test_all_workers_have_the_weights_of_the_last_update_also_new_ones(declared, mode) -> None:
    with declared(variable_weights_mode=mode) as runner:
        assert ones(runner) == {1}
        values = one(5)
        runner.update_weights(values)
        values["one"][:] = 6  # is the caller's again
        assert ones(runner) == {5}
        tensors = [Tensor(np.array([value], np.float32)) for value in (3, 7)]
        runner.update_weights([tensors])  # without names, in the order of the declaration
        runner.update_weights(one(5))
        for is_restarted in (False, True):
            if is_restarted:
                restart(runner)
            [y] = runner.predict([X + 1])
            assert set(y.get_data_to_numpy().ravel().tolist()) == {8}


def test_what_is_added_is_added_to_the_weights_as_loaded_also_in_a_new_worker(declared) -> None:
    with declared(1, variable_weights_update="add") as runner:
        for value in (5, 6):
            runner.update_weights({"two": np.zeros(1, np.float32), **one(value)})
        assert ones(runner) == {7}
        restart(runner)
        assert ones(runner) == {7}


def test_no_request_sees_weights_of_two_updates(updated: MultiDeviceRunner) -> None:
    is_over = threading.Event()

    def ask() -> int:
        count, last = 0, 0.0
        while not is_over.is_set():
            [seen] = ones(updated)
            assert seen >= last, "an older update came back"
            count, last = count + 1, seen
        return count

    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(ask) for _ in range(4)]
        try:
            for value in range(2, 30):
                updated.update_weights(one(value))
                assert ones(updated) == {value}
                if value in (10, 20):
                    kill(pids(updated)[0])
        finally:
            is_over.set()
        assert all(task.result(60) for task in asking)


UNFIT: list[tuple[Any, str]] = [
    (one(5) | {"three": X}, "'three'"),
    ({"one": np.zeros(2, np.float32)}, r"'one'.*\[1\].*\[2\]"),
    ({"one": np.zeros(1, np.float64)}, "'one'.*float32.*float64"),
    ({"one": [5.0]}, "'one'"),
    ({"one": np.ma.masked_array([5.0], [True], np.float32)}, "'one'.*mask"),
    ({}, "no weights"),
    ([[Tensor()]], "2 tensors"),
]


def test_an_update_that_does_not_fit_changes_nothing(updated: MultiDeviceRunner) -> None:
    for update, says in UNFIT:
        with pytest.raises(InputError, match=f"^update weight failed! Error is .*{says}"):
            updated.update_weights(update)
        assert ones(updated) == {1}
    restart(updated)
    assert ones(updated) == {1}


def test_what_cannot_be_updated_says_so(declared: Made, make: Make) -> None:
    with make(1) as runner:
        says = r"no weight .* variable_weights_list, in context\."
        with pytest.raises(ModelStateError, match=says):
            runner.update_weights(one(5))
        with pytest.raises(TypeError, match="weights must be list, but got <class 'int'>"):
            runner.update_weights(5)
    with pytest.raises(ModelStateError, match="update weight failed! Error is the runner is clos"):
        runner.update_weights(one(5))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_dies_during_an_update_leaves_no_old_weights(updated, victim) -> None:
    killer = threading.Thread(target=kill, args=(pids(updated)[victim],))
    killer.start()
    updated.update_weights(one(3))
    killer.join()
    assert ones(updated) == {3}
    wait_until(lambda: states(updated) == ["ready", "ready"])
    assert ones(updated) == {3}


def test_an_interrupt_of_an_update_leaves_all_workers_with_it(updated: MultiDeviceRunner) -> None:
    class Interrupt(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for value in range(2, 30):
            signal.setitimer(signal.ITIMER_REAL, 0.0002 * value)
            try:
                try:
                    updated.update_weights(one(value))
                    time.sleep(0.2)  # it may be lost in a finalizer
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                pass
            wait_until(lambda value=value: ones(updated) in ({value}, {value - 1}))
            updated.update_weights(one(value))
            assert ones(updated) == {value}
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_worker_that_hangs_as_it_switches_is_ended_after_hang_timeout_s(
    declared: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[int] = []
    settle = ProcessWorker.settle

    def stop(self: ProcessWorker, take: bool) -> None:
        if not stopped:
            stopped.append(self.pid)
            os.kill(self.pid, signal.SIGSTOP)
        settle(self, take)

    monkeypatch.setattr(ProcessWorker, "settle", stop)
    with declared(hang_timeout_s=0.5) as runner, ThreadPoolExecutor(1) as threads:
        update = threads.submit(runner.update_weights, one(5))
        try:
            update.result(20)
        except TimeoutError:
            kill(*stopped)
            raise
        assert ones(runner) == {5}
        wait_until(lambda: states(runner) == ["ready", "ready"])
        assert ones(runner) == {5}


def test_an_update_that_ends_three_workers_is_refused(declared: Made, monkeypatch: Any) -> None:
    prepare = ProcessWorker.prepare
    count = 0

    def die(self: ProcessWorker, weights: Any) -> list[str]:
        nonlocal count
        count += 1
        if count > 6:
            pytest.fail("it is tried on and on")
        kill(self.pid)
        return prepare(self, weights)

    with declared() as runner:
        with monkeypatch.context() as patch:
            patch.setattr(ProcessWorker, "prepare", die)
            with pytest.raises(RequestRefused, match=r"^update weight failed! .* [34] workers"):
                runner.update_weights(one(5))
        wait_until(lambda: states(runner) == ["ready", "ready"])
        assert ones(runner) == {1}
        runner.update_weights(one(6))
        assert ones(runner) == {6}


def test_an_update_by_a_signal_handler_in_the_middle_of_a_predict_is_refused(
    updated: MultiDeviceRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def update(*_: object) -> None:
        try:
            updated.update_weights(one(5))
        except ModelStateError as error:
            refused.append(str(error))

    run = ProcessWorker.run

    def interrupted(self: ProcessWorker, *arguments: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGALRM)
        return run(self, *arguments)

    before = signal.signal(signal.SIGALRM, update)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(ProcessWorker, "run", interrupted)
            assert ones(updated) == {1}
    finally:
        signal.signal(signal.SIGALRM, before)
    [says] = refused
    assert says.startswith("update weight failed! Error is it was called in the middle of")
    updated.update_weights(one(5))
    assert ones(updated) == {5}


@pytest.mark.usefixtures("nothing_is_left")
def test_the_memory_in_which_an_update_was_sent_is_given_back(make: Make, tmp_path: Path) -> None:
    large = np.zeros((1000, 1000), np.float32)
    product = make_node("MatMul", ["x", "w"], ["y"])
    x, y = (tensor(name, ["batch", 1000]) for name in "xy")
    path = write(tmp_path, "large", [x], [y], [product], {"w": large})
    with make(1, path=path, common={"variable_weights_list": "w"}) as runner:
        before = arena_bytes()
        runner.update_weights({"w": large + 1})
        assert arena_bytes() - before < large.nbytes
        for update in (large + 2, large[:5]):
            with suppress(InputError):
                runner.update_weights({"w": update})
            [y] = runner.predict([large[:4] + 1])
            assert set(y.get_data_to_numpy().ravel().tolist()) == {2000}
        assert arena_bytes() - before < large.nbytes


def arena_bytes() -> int:
    """Return the bytes of memory that this process shares with workers."""
    blocks = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder's own
            if "engine-arena" in os.readlink(link):
                found = link.stat()
                blocks[found.st_ino] = found.st_blocks
    return 512 * sum(blocks.values())
