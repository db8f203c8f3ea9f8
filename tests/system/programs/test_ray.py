"""A runner on workers that a Ray cluster of this machine places gives what one process gives."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import is_alive, wait_until

import engine
from engine import BackendUnavailable, DeadlineExceeded, InputError
from engine_testing import models


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # its token would be a file in the user's home
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


def runner(path: Path | str, workers: int = 2, **needs: str) -> engine.MultiDeviceRunner:
    context = engine.Context()
    context.parallel.config_info = {"ray_context": needs}
    return engine.MultiDeviceRunner(str(path), [*range(workers)], context, workers="ray")


def test_any_batch_gives_what_one_process_gives_in_memory_of_the_callers(tmp_path):
    with runner(models.affine(tmp_path)) as two:
        for batch in range(6):
            x = np.arange(batch * 3, dtype=np.float32).reshape(batch, 3)
            [y] = two.predict([x])
            array = y.get_data_to_numpy()
            np.testing.assert_array_equal(array, 2 * x + 1)
            array += 1  # Ray's own memory is for reading
        big = np.ones((100_000, 3), np.float32)  # too large to go along with the message
        [y] = two.predict({"x": big})
        y.get_data_to_numpy()[:] += 0
        assert (y.get_data_to_numpy() == 3).all()


def test_a_models_error_is_the_callers_and_no_reason_to_restart(tmp_path):
    with runner(models.affine(tmp_path)) as two:
        with pytest.raises(InputError, match="'x': expected float32"):
            two.predict([np.ones((2, 4), np.float32)])
        assert two.statistics().restarts == 0
    with pytest.raises(engine.ModelError, match=r"model_path does not exist! .*missing\.onnx"):
        runner(tmp_path / "missing.onnx")


def test_a_file_that_the_nodes_do_not_have_is_sent(tmp_path):
    with models.affine(tmp_path).open("rb") as file:  # open in this process alone
        path = f"/proc/self/fd/{file.fileno()}"
        with runner(path, 1) as one:
            [y] = one.predict([np.ones((1, 3), np.float32)])
        assert y.get_data_to_numpy().tolist() == [[3, 3, 3]]


def test_requests_survive_actors_that_are_killed(tmp_path):
    wrong: list[Any] = []
    answered = [0] * 4
    end = threading.Event()
    with runner(models.affine(tmp_path)) as two:

        def client(number: int) -> None:
            while not end.is_set():
                x = np.full((2, 3), number + 4 * answered[number], np.float32)
                try:
                    [y] = two.predict([x], timeout_s=240)
                except Exception as error:
                    wrong.append(error)
                    return
                answered[number] += 1
                if not (y.get_data_to_numpy() == 2 * x + 1).all():
                    wrong.append(y)

        killed: set[int] = set()

        def has_another_actor() -> bool:
            worker = two.statistics().workers[0]
            return worker.pid not in killed and worker.state in ("ready", "busy")

        def more_than(count: int) -> bool:
            return sum(answered) > count or wrong != []

        clients = [threading.Thread(target=client, args=(number,)) for number in range(4)]
        for thread in clients:
            thread.start()
        for _ in range(3):
            wait_until(has_another_actor)  # a dead one may be called ready for a moment
            before = sum(answered)
            killed.add(pid := two.statistics().workers[0].pid)
            os.kill(pid, signal.SIGKILL)
            wait_until(partial(more_than, before + 20))
        end.set()
        for thread in clients:
            thread.join(60)
            assert not thread.is_alive()
        assert wrong == []
        wait_until(lambda: two.statistics().restarts >= 3)


def test_all_actors_have_updated_weights_also_those_that_are_started_again(tmp_path):
    context = engine.Context()
    section = {"variable_weights_list": "one"}
    context.parallel.config_info = {"common_context": section}
    path, x = models.affine(tmp_path), np.zeros((4, 3), np.float32)
    with engine.MultiDeviceRunner(path, [0, 1], context, workers="ray") as two:
        two.update_weights({"one": np.array([5], np.float32)})
        with pytest.raises(InputError, match=r"update weight failed! .*'one'"):
            two.update_weights({"one": np.zeros(2, np.float32)})
        assert set(two.predict([x])[0].get_data_to_numpy().ravel().tolist()) == {5}
        for worker in two.statistics().workers:
            os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: [each.restarts for each in two.statistics().workers] == [1, 1])
        assert set(two.predict([x])[0].get_data_to_numpy().ravel().tolist()) == {5}


def test_a_late_request_is_stopped_and_its_actor_goes_on(tmp_path):
    with runner(models.slow(tmp_path), 1) as one:
        x = np.zeros((4096, models.SLOW_WIDTH), np.float32)
        begin = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            one.predict([x], timeout_s=0.001)
        assert time.monotonic() - begin < 30
        one.predict([x])


def test_closing_ends_the_actors(tmp_path):
    with runner(models.affine(tmp_path)) as two:
        pids = [worker.pid for worker in two.statistics().workers]
        assert all(map(is_alive, pids))
    wait_until(lambda: not any(map(is_alive, pids)))


def test_what_no_node_has_room_for_is_said(tmp_path):
    with pytest.raises(BackendUnavailable, match=r"room for worker 0 \(num_cpus=1, .*rare=2\)"):
        runner(models.affine(tmp_path), 1, resources="rare=2", start_timeout_s="0.5")


def test_the_server_runs_a_model_on_rays_workers_and_says_when_there_are_none(tmp_path: Path):
    pytest.importorskip("engine_serve", reason="the server is not installed")
    from engine_serve.building import builder
    from engine_serve.folder import Sources
    from engine_serve.repository import Repository
    from engine_serve.runners import Running

    (tmp_path / "net/1").mkdir(parents=True)
    models.affine(tmp_path / "net/1")
    (tmp_path / "net/config.pbtxt").write_text(
        'instance_group { count: 2 } parameters { key: "workers" value { string_value: "ray" } }'
    )
    repository = Repository(Sources([str(tmp_path / "net")]), builder(Running()))
    repository.load("net")

    def state() -> tuple[str, str, bool]:
        [line] = repository.index()
        return line.state, line.reason[:18], repository.is_ready

    assert state() == ("READY", "", True)
    [loaded] = repository.loaded("net")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(loaded.runner.predict([x])[0].get_data_to_numpy(), 2 * x + 1)
    for worker in loaded.runner.statistics().workers:
        os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: state() == ("UNAVAILABLE", "no worker is ready", False))
    wait_until(lambda: state() == ("READY", "", True))
    np.testing.assert_array_equal(loaded.runner.predict([x])[0].get_data_to_numpy(), 2 * x + 1)
    repository.close()


# The last one: it ends the cluster.
def test_a_cluster_that_was_shut_down_is_said(tmp_path):
    import ray

    with runner(models.affine(tmp_path), 1) as one:
        pid = one.statistics().workers[0].pid
        os.kill(pid, signal.SIGSTOP)  # so that no request ends before the cluster does
        try:
            token = engine.CancelToken()
            future = one.submit([np.zeros((1, 3), np.float32)], cancel=token)
            wait_until(lambda: one.statistics().workers[0].state == "busy")
            ray.shutdown()
            token.cancel()  # who cancels hears nothing of it
            with pytest.raises(engine.errors.EngineError):
                future.result(60)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    with pytest.raises(BackendUnavailable, match="shut down; call ray"):
        runner(models.affine(tmp_path), 1)
