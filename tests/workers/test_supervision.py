"""Workers that die or hang: requests do not see it, and what ends every worker is refused."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_backend import COMPILE, CRASH, CRASH_ONCE, HANG, HANGS, REST
from waiting import children, wait_until
from worker_steps import Make, check, kill, pids, rows, states

from engine import CancelToken, MultiDeviceRunner
from engine.errors import Cancelled, DeadlineExceeded, ModelError, RequestRefused
from engine_testing import models


def test_an_idle_worker_that_dies_is_followed_by_another(runner: MultiDeviceRunner) -> None:
    before = runner.statistics()
    first, second = pids(runner)
    kill(first)
    check(runner.predict([rows(4)]), rows(4))
    wait_until(lambda: states(runner) == ["ready", "ready"])
    assert first not in pids(runner)
    assert pids(runner)[1] == second
    assert runner.statistics().restarts - before.restarts == 1


def test_a_runner_is_ready_while_one_of_its_workers_is(runner: MultiDeviceRunner) -> None:
    first, second = pids(runner)
    kill(first)
    wait_until(lambda: states(runner)[0] != "ready")
    assert runner.is_ready
    kill(second)
    wait_until(lambda: not runner.is_ready)
    assert runner.why_not_ready.startswith("no worker is ready: worker 0 (device 0) ")
    wait_until(lambda: runner.is_ready)
    check(runner.predict([rows(2)]), rows(2))
    wait_until(lambda: states(runner) == ["ready", "ready"])


def test_a_request_whose_worker_dies_is_run_by_another(runner: MultiDeviceRunner) -> None:
    before = runner.statistics()
    x = rows(1, CRASH_ONCE)
    check(runner.predict([x]), x)
    assert runner.statistics().retries - before.retries == 1


@pytest.mark.parametrize(
    ("number", "is_at_work"),
    [
        (signal.SIGTERM, True),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow),
        *(
            pytest.param(number, is_at_work, marks=pytest.mark.slow)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGABRT)
            for is_at_work in (False, True)
        ),
    ],
)
def test_no_signal_to_a_worker_reaches_who_called(
    number: signal.Signals, is_at_work: bool, runner: MultiDeviceRunner
) -> None:
    before = runner.statistics()
    x = rows(1, REST)
    with ThreadPoolExecutor(1) as clients:
        if is_at_work:
            answer = clients.submit(runner.predict, [x])
            wait_until(lambda: "busy" in states(runner))
        for pid in pids(runner):
            os.kill(pid, number)
        if not is_at_work:
            answer = clients.submit(runner.predict, [x])
        check(answer.result(60), x)
    assert runner.statistics().failed == before.failed
    wait_until(lambda: states(runner) == ["ready", "ready"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_interrupts_of_workers_reach_no_caller(runner: MultiDeviceRunner) -> None:
    before = runner.statistics()
    with ThreadPoolExecutor(1) as clients:
        for number in range(100):
            x = rows(2, number)
            answer = clients.submit(runner.predict, [x])
            time.sleep(0.002 * (number % 5))  # before it begins, in it, and after it
            worker = runner.statistics().workers[number % 2]
            if worker.state in ("ready", "busy"):
                os.kill(worker.pid, signal.SIGINT)
            check(answer.result(60), x)
    found = runner.statistics()
    assert (found.failed, found.completed) == (before.failed, before.completed + 100)
    wait_until(lambda: states(runner) == ["ready", "ready"])


def test_all_workers_may_die_at_once_in_the_middle_of_requests(runner: MultiDeviceRunner) -> None:
    before = runner.statistics()
    x = rows(4, REST)
    with ThreadPoolExecutor(4) as clients:
        futures = [clients.submit(runner.predict, [x]) for _ in range(4)]
        wait_until(lambda: "busy" in states(runner))
        kill(*pids(runner))
        for future in futures:
            check(future.result(60), x)
    found = runner.statistics()
    assert found.completed - before.completed == 4
    assert found.failed == before.failed
    assert found.restarts - before.restarts == 2


def test_a_request_that_ends_every_worker_is_refused_and_no_other_suffers(runner) -> None:
    before = runner.statistics()
    others = [runner.submit([rows(2, number)]) for number in range(10)]
    poison = runner.submit([rows(1, CRASH)])
    others += [runner.submit([rows(2, number)]) for number in range(10)]
    with pytest.raises(
        RequestRefused, match="has ended 3 workers, the last of which ran nothing else"
    ):
        poison.result(60)
    for number, future in enumerate(others):
        check(future.result(60), rows(2, number % 10))
    found = runner.statistics()
    assert found.completed - before.completed == 20
    assert found.failed - before.failed == 1
    wait_until(lambda: states(runner) == ["ready", "ready"])
    assert runner.statistics().restarts - before.restarts == 3


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_left")
def test_a_worker_that_hangs_is_ended_and_the_request_refused_in_the_end(make: Make) -> None:
    with make(1, hang_timeout_s=1.5) as runner:
        with pytest.raises(ModelError, match=r"hung: it ran for longer than 1\.5 s"):
            runner.predict([rows(1, HANG)])
        check(runner.predict([rows(1)]), rows(1))


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("backend", [pytest.param("odd", marks=pytest.mark.slow), "stubborn"])
def test_what_does_not_stop_is_ended_with_its_worker(make, backend, tmp_path, monkeypatch) -> None:
    began = tmp_path / "began"
    monkeypatch.setenv(HANGS, str(began))
    with make(1, backend) as runner:
        with pytest.raises(DeadlineExceeded, match=r"longer than timeout_s, 1 s"):
            runner.predict([rows(1, HANG)], timeout_s=1)
        wait_until(lambda: runner.statistics().restarts == 1 and states(runner) == ["ready"])
        began.unlink()
        token = CancelToken()
        future = runner.submit([rows(1, HANG)], cancel=token)
        wait_until(lambda: states(runner) == ["busy"])
        wait_until(began.exists)  # a worker that has not begun ends without harm
        token.cancel()
        with pytest.raises(Cancelled):
            future.result(60)  # it would have run for 600 s
        check(runner.predict([rows(1)], timeout_s=60), rows(1))
        found = runner.statistics()
        assert (found.expired, found.cancelled, found.completed) == (1, 1, 1)
        assert found.restarts == 2


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("most", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_worker_that_is_killed_while_it_builds_is_started_again_once(
    most: int, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    said = "options.progress('to be killed', 0, 1); time.sleep(60)"
    monkeypatch.setenv(COMPILE, f"if not os.path.exists({str(enough)!r}): {said}")
    before = children()
    killed: list[int] = []

    def kill_first(phase: str, done: int, total: int | None) -> None:
        if phase.endswith("to be killed"):
            [worker] = children() - before
            killed.append(worker)
            if len(killed) == most:
                enough.touch()
            kill(worker)

    if most == 1:
        with make(1, progress=kill_first) as runner:
            check(runner.predict([rows(3)]), rows(3))
            assert runner.statistics().restarts == 1
    else:
        with pytest.raises(ModelError, match=r"worker 0 \(device 0\) .* while it built the model"):
            make(1, progress=kill_first)
    assert len(killed) == most


@pytest.mark.parametrize("is_moved", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("nothing_is_left")
def test_no_worker_is_started_with_another_model_and_requests_hear_of_it_at_once(
    odd_model: Path, make: Make, tmp_path: Path, is_moved: bool
) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(odd_model.read_bytes())
    with make(1, path=path) as runner:
        check(runner.predict([rows(1)]), rows(1))
        if is_moved:
            path.rename(tmp_path / "moved.onnx")
        else:
            path.write_bytes(odd_model.read_bytes())  # the same, but who knows
        kill(*pids(runner))
        expected = "does not exist" if is_moved else "was changed since the runner was built"
        with pytest.raises(ModelError, match=f"{expected}.*{path}|{path}.*{expected}"):
            runner.predict([rows(1)], timeout_s=60)


def other_data(folder: Path) -> None:
    (folder / "new.bin").write_bytes(bytes((folder / "external.bin").stat().st_size))
    (folder / "new.bin").replace(folder / "external.bin")


def exchanged_links(folder: Path) -> None:
    for name, target in {"a.bin": "blobs/b", "b.bin": "blobs/a"}.items():
        (folder / name).unlink()
        (folder / name).symlink_to(target)


def other_link(folder: Path) -> None:
    (folder / "blobs" / "new").write_bytes(np.full(3, 9, np.float32).tobytes())
    (folder / "b.bin").unlink()
    (folder / "b.bin").symlink_to("blobs/new")


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize(
    ("save", "x", "added", "change"),
    [
        (models.external, np.ones((2, 256), "f"), np.arange(256, dtype="f"), other_data),
        (models.linked, rows(2), 2, exchanged_links),
        pytest.param(models.linked, rows(2), 2, other_link, marks=pytest.mark.slow),
    ],
    ids=["other data", "exchanged links", "another link"],
)
def test_no_worker_is_started_with_other_data_files(
    make: Make, tmp_path: Path, save: Any, x: Any, added: Any, change: Any
) -> None:
    with make(1, path=save(tmp_path)) as runner:
        np.testing.assert_array_equal(runner.predict([x])[0], x + added)
        change(tmp_path)
        kill(*pids(runner))
        with pytest.raises(ModelError, match=r"\.bin: was changed since the runner was built"):
            runner.predict([x], timeout_s=60)
        assert runner.statistics().restarts == 1  # another would find the same


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_left")
def test_random_kills_lose_no_request_and_answer_none_twice(make: Make) -> None:
    counts = [0] * 6
    with make(3) as runner:
        is_over = threading.Event()

        def client(number: int) -> None:
            while not is_over.is_set():
                x = rows(1 + counts[number] % 7, counts[number])
                check(runner.predict([x]), x)
                counts[number] += 1

        with ThreadPoolExecutor(6) as clients:
            futures = [clients.submit(client, number) for number in range(6)]
            for turn in range(12):
                time.sleep(0.4)
                worker = runner.statistics().workers[turn % 3]
                if worker.state in ("ready", "busy"):
                    kill(worker.pid)
            is_over.set()
            for future in futures:
                future.result(60)
        found = runner.statistics()
        assert (found.completed, found.failed) == (sum(counts), 0)
        assert found.restarts >= 3
