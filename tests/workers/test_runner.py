"""MultiDeviceRunner gives what one Model gives, from any thread, and says what is wrong."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from odd_backend import COMPILE, HANG, LAST, LEAVE, REST
from waiting import children, wait_until
from worker_steps import Make, check, rows, states

from engine import CancelToken, Context, MultiDeviceRunner, Tensor
from engine.errors import Cancelled, DeadlineExceeded, InputError, ModelError, ModelStateError
from engine.workers.assignments import assignments, core_groups
from engine_testing import models


def test_requests_of_any_batch_give_what_one_process_gives(runner: MultiDeviceRunner) -> None:
    for count in (1, 2, 3, 4, 7, 64, 3):
        x = rows(count)
        check(runner.predict([x]), x)
        check(runner.predict({"x": Tensor(x)}), x)
    early, x = rows(5), rows(5, 9)
    first = runner.predict([early])
    check(runner.submit([x]).result(30), x)
    check(asyncio.run(runner.predict_async([x])), x)
    check(first, early)  # memory of its own
    found = runner.statistics()
    assert (found.completed, found.failed, found.restarts, found.retries) == (17, 0, 0, 0)
    assert repr(found) == str(found), "what a prompt and a notebook show"
    assert [worker.device_id for worker in found.workers] == [0, 1]
    assert {worker.pid for worker in found.workers} == children()
    assert str(found).endswith(f"ready, process {found.workers[1].pid}, 0 restarts")
    [given] = runner.get_inputs()
    assert (given.name, given.shape) == ("x", [-1, 3])
    assert [str(spec) for spec in (*runner.inputs, *runner.outputs)] == 2 * ["float32[batch, 3]"]
    assert {(node.backend, node.device) for node in runner.placement} == {("null", "null:0")}
    assert (runner.is_ready, runner.is_in_process, runner.shares_runs) == (True, False, False)


def test_streams_of_requests_keep_their_order(runner: MultiDeviceRunner) -> None:
    requests = [rows(1 + number % 3, number) for number in range(20)]

    async def gather() -> list[Any]:
        return [outputs async for outputs in runner.stream([x] for x in requests)]

    for found in (list(runner.map([x] for x in requests)), asyncio.run(gather())):
        for outputs, x in zip(found, requests, strict=True):
            check(outputs, x)


def test_what_is_wrong_with_a_request_is_said_as_a_model_says_it(runner) -> None:
    before = runner.statistics().restarts
    for wrong, error in (([np.ones((2, 4), "f4")], InputError), ([], InputError), (3, TypeError)):
        with pytest.raises(error):
            runner.predict(wrong)
    with pytest.raises(InputError, match="pass that size, or export the model with that axis open"):
        runner.predict([np.ones((2, 4), "f4")])
    with pytest.raises(InputError, match="unknown input 'z'"):
        runner.predict({"z": rows(1)})
    with pytest.raises(TypeError, match="timeout_s must be a number"):
        runner.predict([rows(1)], timeout_s="soon")
    for wrong, says in (({"priority": None}, "must be an int"), ({"request_id": 0}, "be a str")):
        with pytest.raises(TypeError, match=says):
            runner.predict([rows(1)], **wrong)
        with pytest.raises(TypeError, match=says):
            runner.submit([rows(1)], **wrong)
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        runner.predict([rows(1, LEAVE)])
    check(runner.predict([rows(2)]), rows(2))
    assert runner.statistics().restarts == before


def test_ten_threads_get_their_own_results(runner: MultiDeviceRunner) -> None:
    before = runner.statistics().completed

    def client(number: int) -> None:
        for turn in range(20):
            x = rows(1 + (number + turn) % 5, number)
            check(runner.predict([x]) if turn % 2 else runner.submit([x]).result(60), x)

    with ThreadPoolExecutor(10) as clients:
        list(clients.map(client, range(10)))
    assert runner.statistics().completed - before == 200


def test_a_request_can_be_stopped_and_its_worker_stays(runner, monkeypatch) -> None:
    for module in ("watchdog", "replicas"):  # a worker may get no turn for a while
        monkeypatch.setattr(f"engine.workers.{module}.GRACE_S", 60.0)
    before = runner.statistics()
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        runner.predict([rows(1)], cancel=token)
    token = CancelToken()
    future = runner.submit([rows(1, LAST)], cancel=token)
    threading.Timer(0.05, token.cancel).start()
    with pytest.raises(Cancelled):
        future.result(60)
    wait_until(lambda: states(runner) == ["ready", "ready"])
    future = runner.submit([rows(1, LAST)])
    wait_until(future.running)
    assert future.cancel()
    assert (future.cancelled(), future.running()) == (True, False)
    with pytest.raises(CancelledError, match="cancelled by its owner"):
        future.result(0)
    with pytest.raises(DeadlineExceeded, match=r"longer than timeout_s, 0\.05 s"):
        runner.predict([rows(1, LAST)], timeout_s=0.05)
    check(runner.predict([rows(1)], timeout_s=60, cancel=CancelToken()), rows(1))
    found = runner.statistics()
    assert found.cancelled - before.cancelled == 3
    assert found.expired - before.expired == 1
    assert found.restarts == before.restarts


def test_a_forked_child_is_told_and_the_parent_goes_on(runner: MultiDeviceRunner) -> None:
    check(runner.predict([rows(2)]), rows(2))
    child = os.fork()
    if not child:
        try:
            runner.predict([rows(1)])
        except ModelStateError as error:
            os._exit(0 if "forked" in str(error) else 2)
        finally:
            os._exit(3)
    assert os.waitpid(child, 0)[1] == 0
    check(runner.predict([rows(2)]), rows(2))
    assert states(runner) == ["ready", "ready"]


@pytest.mark.usefixtures("nothing_is_left")
def test_close_finishes_what_is_under_way(make: Make) -> None:
    runner = make(1, hang_timeout_s=10**400)  # any time may be given
    futures = [runner.submit([rows(1, REST)]) for _ in range(3)]
    runner.close()
    for future in futures:
        check(future.result(0), rows(1, REST))
    runner.close()
    for call in (runner.predict, runner.submit):
        with pytest.raises(ModelStateError, match="the runner is closed"):
            call([rows(1)])
    assert "closed" in repr(runner)


@pytest.mark.usefixtures("nothing_is_left")
def test_close_can_fail_what_is_under_way(make: Make) -> None:
    runner = make(1)
    futures = [runner.submit([rows(1, first)]) for first in (HANG, 0, 1)]
    wait_until(lambda: states(runner) == ["busy"])
    runner.close(finish=False)
    for future in futures:
        with pytest.raises(ModelStateError, match="the runner is closed"):
            future.result(0)


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("step", ["Replicas", "fork.watch"])
def test_an_interrupt_after_the_build_leaves_no_worker(make, monkeypatch, step) -> None:
    def interrupt(*_: object, **named: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"engine.workers.multi_device.{step}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            make(1)


@pytest.mark.usefixtures("nothing_is_left")
def test_a_late_request_does_not_wait_for_its_parts_that_have_not_begun(
    odd_model: Path, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.workers.replicas.GRACE_S", 60.0)
    model = onnx.load(odd_model)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, tmp_path / "fixed.onnx")
    with make(1, path=tmp_path / "fixed.onnx") as runner:
        x = rows(40)
        x[:, 0] = REST
        first = runner.submit([x])  # 40 parts of 0.3 s
        wait_until(lambda: states(runner) == ["busy"])
        with pytest.raises(DeadlineExceeded, match=r"longer than timeout_s, 1\.5 s"):
            runner.predict([rows(2)], timeout_s=1.5)
        assert not first.done()
        first.cancel()


@pytest.mark.usefixtures("nothing_is_left")
def test_a_thread_that_cannot_start_holds_up_no_later_request(make, monkeypatch) -> None:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name == "engine-part":
            raise RuntimeError("can't start new thread")
        start(thread)

    with make() as runner:  # which has no such thread yet
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            for _ in range(3):  # more than there are workers
                with pytest.raises(RuntimeError, match="can't start"):
                    runner.predict([rows(4)], timeout_s=120)
        check(runner.predict([rows(4)], timeout_s=120), rows(4))


@pytest.mark.usefixtures("nothing_is_left")
def test_a_runner_that_nobody_has_any_more_ends_its_workers(make: Make) -> None:
    make(1)


@pytest.mark.usefixtures("nothing_is_left")
def test_a_runner_that_is_collected_in_the_thread_of_its_request_ends(make: Make) -> None:
    has_gone = threading.Event()

    class Collecting:
        def __array__(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
            assert has_gone.wait(60)
            gc.collect()
            return rows(1)

    class Service:
        def __init__(self) -> None:
            self.runner = make(1)
            self.cycle = self

    future = Service().runner.submit([Collecting()])
    has_gone.set()
    with suppress(ModelStateError):  # as it is closed; or it was first
        check(future.result(60), rows(1))


def test_wrong_arguments_are_refused_before_anything_is_started(odd_model: Path) -> None:
    path, before = str(odd_model), children()
    with pytest.raises(ModelError, match=r"model_path does not exist! got '/no/model\.onnx'"):
        MultiDeviceRunner("/no/model.onnx", [0])
    for devices in ([], [-1]):
        with pytest.raises(ValueError, match="device_ids must be one or more numbers from 0"):
            MultiDeviceRunner(path, devices)
    for wrong in ({"workers": "threads"}, {"queue_limit": 0}, {"hang_timeout_s": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            MultiDeviceRunner(path, [0], **wrong)
    for axes in (0, "x", {"x": "0"}, {0: 0}):
        with pytest.raises(TypeError, match="batch_axes"):
            MultiDeviceRunner(path, [0], batch_axes=axes)
    assert children() == before


@pytest.mark.usefixtures("nothing_is_left")
def test_a_model_that_cannot_be_built_is_an_error(make, monkeypatch) -> None:
    failure = "from engine.errors import ModelError; raise ModelError('cannot compile')"
    monkeypatch.setenv(COMPILE, failure)
    with pytest.raises(ModelError, match=r"^MultiDeviceRunner's build failed! .* cannot compile"):
        make(1)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_left")
def test_batch_axes_that_do_not_fit_are_an_error(make: Make) -> None:
    with pytest.raises(InputError, match="nothing"):
        make(1, batch_axes={"nothing": 0})


def test_the_build_shows_how_far_it_is(runner: MultiDeviceRunner) -> None:
    steps: list[tuple[str, int, int | None]] = runner.steps
    assert ("worker 1 (device 1): check nodes", 2, 2) in steps
    assert [step for step in steps if step[0] == "workers"][-1] == ("workers", 2, 2)


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("does_raise", [True, False])
def test_the_build_ends_when_it_is_cancelled_or_progress_raises(
    make: Make, monkeypatch: pytest.MonkeyPatch, does_raise: bool
) -> None:
    monkeypatch.setenv(COMPILE, "options.progress('compile', 0, 1); time.sleep(600)")
    token = CancelToken()

    def show(phase: str, *step: object) -> None:
        if phase.startswith("worker 0"):
            if does_raise:
                raise KeyError("the user's own")
            token.cancel()

    with pytest.raises(KeyError if does_raise else Cancelled):
        make(1, progress=show, cancel=token)


SCRIPT = """
import os, signal
import numpy as np
import engine
context = engine.Context()
context.target = ["null"]
runner = engine.MultiDeviceRunner({path!r}, [0], context)
print(runner.predict([np.ones((2, 3), "f4")])[0].get_data_to_numpy().tolist())
print(runner.statistics().workers[0].pid, flush=True)
{end}
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        pytest.param("", 0, marks=pytest.mark.slow),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("futures = [runner.submit([np.ones((2, 3), 'f4')]) for _ in range(100)]", 0),
    ],
    ids=["ends", "is killed", "ends with requests in the queue"],
)
def test_a_script_needs_no_guard_and_its_workers_go_with_it(
    end: str, status: int, null_backend: str, tmp_path: Path
) -> None:
    script = SCRIPT.format(path=str(models.affine(tmp_path)), end=end)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-"], input=script, capture_output=True, text=True, env=env, timeout=60
    )
    assert (done.returncode, done.stderr) == (status, "")
    results, worker = done.stdout.splitlines()
    assert results == "[[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]"
    wait_until(lambda: not Path(f"/proc/{worker}").exists())


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_left")
def test_keys_are_in_no_argument_and_no_environment(odd_model, make, tmp_path) -> None:
    pytest.importorskip("cryptography")
    from engine.formats.encryption import encrypt

    key = b"0123456789abcdef"
    secret = tmp_path / "secret.onnx"
    secret.write_bytes(encrypt(odd_model.read_bytes(), key))
    before = children()
    with make(1, path=secret, dec_key=key) as runner:
        check(runner.predict([rows(2)]), rows(2))
        [process] = children() - before
        command = Path(f"/proc/{process}/cmdline").read_bytes()
        assert b"engine.workers" in command
        assert key not in command + Path(f"/proc/{process}/environ").read_bytes()
    with pytest.raises(ModelError):
        make(1, path=secret, dec_key=b"0" * 16)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_left")
def test_values_that_are_no_tensors_arrive(make: Make, tmp_path: Path) -> None:
    numbers = [np.arange(n, dtype=np.float32) for n in (3, 0, 2)]
    with make(path=models.sequences(tmp_path)) as runner:
        one, longer = runner.predict([numbers, np.array(2)])
        assert one.get_data_to_numpy().tolist() == [0, 1]
        found = [tensor.get_data_to_numpy().tolist() for tensor in longer]
        assert found == [[0, 1, 2], [], [0, 1], [0, 1]]


def test_the_cpus_are_divided_among_the_workers_on_cpu() -> None:
    cores = sorted(os.sched_getaffinity(0))
    groups = core_groups(2)
    assert sorted({core for group in groups for core in group}) == cores
    assert len(groups[0]) == -(-len(cores) // 2)
    assert core_groups(3 * len(cores))[: len(cores)] == [(core,) for core in cores]
    context = Context()
    found = assignments(__file__, [3, 5], context, {})
    assert [task.context.gpu.device_id for task in found] == [3, 5]
    assert [task.cores for task in found] == groups
    assert all(1 <= task.context.cpu.thread_num <= len(task.cores) for task in found)
    assert context.cpu.thread_num == 0  # the user's own is left alone
    context.cpu.thread_num = 999
    assert [task.cores for task in assignments(__file__, [0, 1], context, {})] == [(), ()]
    context.cpu.thread_num = 0
    context.target = ["gpu"]
    assert [task.cores for task in assignments(__file__, [0, 1], context, {})] == [(), ()]
