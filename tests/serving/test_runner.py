"""ModelParallelRunner: many clients, one queue, and an answer or an error for each request."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest
from steps import build, result
from waiting import in_threads, wait_until

from engine import (
    Cancelled,
    CancelToken,
    DeadlineExceeded,
    InputError,
    ModelError,
    ModelParallelRunner,
    ModelStateError,
    QueueFull,
    Tensor,
)
from engine.model.model import model_state

X = np.arange(6, dtype=np.float32).reshape(2, 3)
SLOW = {"null_context": {"delay_s": "0.2"}}
STUCK = {"null_context": {"delay_s": "300"}}


def test_each_of_many_threads_gets_its_own_answers(make: Make) -> None:
    runner = make()

    def client(number: int) -> None:
        for turn in range(50):
            x = np.full((1 + turn % 3, 3), 100 * number + turn, np.float32)
            outputs = runner.submit({"x": x}).result() if turn % 2 else runner.predict([x])
            assert result(outputs) == (2 * x + 1).tolist()

    in_threads(8, client)
    statistics = runner.statistics()
    assert statistics.completed == 400
    assert statistics.waiting == statistics.running == statistics.failed == 0
    assert statistics.latency.count == 400
    assert statistics.latency.max_s >= statistics.latency.p99_s >= statistics.latency.p50_s > 0
    assert "400 completed, 0 failed" in str(statistics)
    assert repr(statistics) == str(statistics), "what a prompt and a notebook show"


def test_a_runner_tells_what_the_model_tells_and_when_it_is_ready(make: Make) -> None:
    runner = ModelParallelRunner()
    assert (runner.is_ready, runner.why_not_ready) == (
        False,
        "the runner is not built; call build_from_file first",
    )
    for wanted in ("inputs", "outputs", "placement"):
        with pytest.raises(ModelStateError, match="is not built"):
            getattr(runner, wanted)
    runner = make()
    assert [str(spec) for spec in runner.inputs] == ["float32[batch, 3]"]
    assert [(spec.name, str(spec)) for spec in runner.outputs] == [("y", "float32[batch, 3]")]
    assert [node.backend for node in runner.placement] == ["null", "null"]
    assert (runner.is_ready, runner.is_in_process, runner.shares_runs) == (True, True, False)
    assert make(max_batch_size=4).shares_runs
    runner.close()
    assert (runner.is_ready, "closed" in runner.why_not_ready) == (False, True)


def test_no_more_run_at_once_than_there_are_workers(make: Make) -> None:
    runner = make(2, {"null_context": {"delay_s": "0.01"}})
    seen: list[int] = []

    def client(number: int) -> None:
        for _ in range(5):
            runner.predict([X])
            seen.append(runner.statistics().running)

    in_threads(6, client)
    assert max(seen) == 2
    assert model_state(runner._queues[0].runnable.model).plan.pool.open_count == 2


def test_requests_of_threads_and_submitted_ones_are_done_in_the_order_of_coming(make, gated):
    runner = make(1, target="gated")
    runner.submit([np.zeros((1, 3), np.float32)])
    with ThreadPoolExecutor(4) as threads:
        asked = []
        for number in range(1, 5):
            x = np.full((1, 3), number, np.float32)
            if number % 2:
                asked.append(threads.submit(runner.predict, [x]))
            else:
                asked.append(runner.submit([x]))
            wait_until(lambda count=number: runner.statistics().waiting == count)
        gated.go.set()
    runner.close()
    assert [result(future.result(0))[0][0] for future in asked] == [3, 5, 7, 9]
    assert gated.begun == [0, 1, 2, 3, 4]


def test_given_outputs_are_filled_and_returned(make: Make) -> None:
    runner = make()
    outputs = [Tensor(np.zeros((2, 3), np.float32))]
    assert runner.predict([X], outputs) is outputs
    assert result(outputs) == (2 * X + 1).tolist()


def test_its_inputs_are_the_models(make: Make) -> None:
    [x] = make().get_inputs()
    assert (x.name, x.shape) == ("x", [-1, 3])
    assert ModelParallelRunner().get_inputs() == []


def test_map_and_stream_keep_the_order(make: Make) -> None:
    runner = make()
    inputs = [[np.full((1, 3), number, np.float32)] for number in range(20)]
    expected = [[[2.0 * number + 1] * 3] for number in range(20)]
    assert [result(outputs) for outputs in runner.map(inputs)] == expected

    async def slowly() -> AsyncIterator[Any]:
        for each in inputs:
            await asyncio.sleep(0)
            yield each

    async def gather() -> list[Any]:
        plain = [result(outputs) async for outputs in runner.stream(inputs)]
        assert plain == [result(outputs) async for outputs in runner.stream(slowly())]
        return plain

    assert asyncio.run(gather()) == expected


def test_many_awaited_requests_run_beside_each_other(make: Make, gated: Any) -> None:
    runner = make(2, target="gated")

    async def both() -> None:
        asked = [runner.predict_async([X]), runner.predict_async({"x": X})]
        tasks = [asyncio.ensure_future(each) for each in asked]
        while len(gated.begun) < 2:  # the test's time-out is for runs one after the other
            await asyncio.sleep(0.001)
        gated.go.set()
        for outputs in await asyncio.gather(*tasks):
            assert result(outputs) == (2 * X + 1).tolist()

    asyncio.run(both())


Make = Callable[..., ModelParallelRunner]


def test_a_token_cancels_predict_and_submit_in_the_queue(make: Make) -> None:
    runner = make(1, STUCK)
    blocking = runner.submit([X])
    wait_until(lambda: runner.statistics().running)
    token = CancelToken()
    with ThreadPoolExecutor(1) as thread:
        asked = [runner.submit([X], cancel=token), thread.submit(runner.predict, [X], cancel=token)]
        wait_until(lambda: runner.statistics().waiting == 2)
        token.cancel()
        for future in asked:
            with pytest.raises(Cancelled):
                future.result(60)
    assert runner.statistics().waiting == 0
    blocking.cancel()


def test_a_late_request_leaves_the_queue_with_the_time_it_was_given(make: Make) -> None:
    runner = make(1, STUCK)
    blocking = runner.submit([X])
    wait_until(lambda: runner.statistics().running)
    future = runner.submit([X], timeout_s=0.05)
    for raises in (lambda: future.result(60), lambda: runner.predict([X], timeout_s=0.05)):
        with pytest.raises(DeadlineExceeded, match=r"timeout_s, 0.05 s") as caught:
            raises()
        assert caught.value.timeout_s == 0.05
    assert runner.statistics().expired == 2
    blocking.cancel()
    with pytest.raises(DeadlineExceeded, match=r"timeout_s, 0.1 s"):
        runner.predict([X], timeout_s=0.1)  # it runs, and is stopped


def test_a_cancelled_task_cancels_its_request(make: Make) -> None:
    runner = make(1, STUCK)

    async def impatient() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(runner.predict_async([X]), 0.05)

    asyncio.run(impatient())
    wait_until(lambda: not runner.statistics().running)
    assert runner.statistics().cancelled == 1


def test_a_timeout_may_be_of_any_size(make: Make) -> None:
    runner = make()
    for timeout_s in (10**400, float("inf"), np.float32(1e30)):
        assert result(runner.predict([X], timeout_s=timeout_s)) == (2 * X + 1).tolist()
        assert result(runner.submit([X], timeout_s=timeout_s).result(60)) == (2 * X + 1).tolist()


@pytest.mark.parametrize("timeout_s", [0, -1, "1", True])
def test_a_wrong_timeout_is_an_error(make: Make, timeout_s: Any) -> None:
    runner = make()
    for call in (runner.predict, runner.submit):
        with pytest.raises((TypeError, ValueError), match="timeout_s must be"):
            call([X], timeout_s=timeout_s)


def test_a_full_queue_refuses_or_waits_as_told(make: Make, gated: Any) -> None:
    runner = make(1, target="gated", queue_limit=2, when_full="raise")
    futures = [runner.submit([X]) for _ in range(3)]  # one runs, two wait
    with pytest.raises(QueueFull, match="2 requests wait already, the runner's queue_limit"):
        runner.submit([X])
    with pytest.raises(QueueFull):
        runner.predict([X])
    gated.go.set()
    assert wait(futures, 60).not_done == set()
    assert runner.statistics().refused == 2
    patient = make(1, {"null_context": {"delay_s": "0.01"}}, queue_limit=1)
    futures = [patient.submit([X]) for _ in range(8)]
    assert [result(future.result()) for future in futures] == 8 * [(2 * X + 1).tolist()]


def test_close_finishes_what_waits(make: Make) -> None:
    runner = make(1, {"null_context": {"delay_s": "0.05"}})
    futures = [runner.submit([X]) for _ in range(4)]
    runner.close()
    assert all(future.done() for future in futures)
    assert [result(future.result()) for future in futures] == 4 * [(2 * X + 1).tolist()]
    runner.close()
    for call in (runner.predict, runner.submit):
        with pytest.raises(ModelStateError, match="the runner is closed; build a new one"):
            call([X])


@pytest.mark.parametrize("is_block", [True, False])
def test_a_block_that_fails_or_close_without_finishing_fails_what_waits(
    make: Make, gated: Any, is_block: bool
) -> None:
    runner = make(1, target="gated")
    futures = [runner.submit([X]) for _ in range(20)]
    wait_until(lambda: gated.begun)
    with ThreadPoolExecutor(1) as thread:  # lets the run go on once who waits has been failed
        thread.submit(lambda: (futures[-1].exception(60), gated.go.set()))
        if is_block:
            with pytest.raises(KeyError), runner:
                raise KeyError
        else:
            runner.close(finish=False)
    assert result(futures[0].result(0)) == (2 * X + 1).tolist()
    for future in futures[1:]:
        with pytest.raises(ModelStateError, match="the runner is closed"):
            future.result(0)


def test_a_forked_child_is_told(make: Make) -> None:
    runner = make()
    runner.submit([X]).result()
    child = os.fork()
    if not child:
        try:
            for call in (runner.predict, runner.submit):
                with pytest.raises(ModelStateError, match="forked"):
                    call([X])
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_wrong_size_is_not_sent_to_a_method_that_a_runner_lacks(make: Make) -> None:
    runner, wide = make(), np.zeros((2, 4), np.float32)
    fixed = "axis 1 is fixed to 3 in the model's file: pass that size, or export the model with"
    for call in (
        lambda: runner.predict([wide]),
        lambda: runner.submit([wide]).result(60),
        lambda: asyncio.run(runner.predict_async({"x": wide})),
    ):
        with pytest.raises(InputError, match=fixed) as caught:
            call()
        assert "resize" not in str(caught.value)


def test_bad_inputs_fail_alone(make: Make) -> None:
    runner = make(1)
    bad = [np.zeros((2, 4), np.float32)]
    futures = [runner.submit([X]), runner.submit(bad), runner.submit([X])]
    with pytest.raises(InputError, match="'x': expected"):
        futures[1].result(60)
    with pytest.raises(InputError):
        runner.predict(bad)
    for future in (futures[0], futures[2]):
        assert result(future.result(60)) == (2 * X + 1).tolist()
    assert runner.statistics().failed == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_batch_size": 0}, "max_batch_size must be 1 or more, but got 0"),
        ({"max_delay_us": -1}, "max_delay_us must be 0 or more, but got -1"),
        ({"queue_limit": 0}, "queue_limit must be 1 or more, but got 0"),
        ({"when_full": "no"}, "when_full must be 'wait' or 'raise', but got 'no'"),
    ],
)
def test_a_wrong_setting_is_an_error(make: Make, settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(2, None, **settings)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("gone.onnx",), ModelError, "from file failed, model_path does not exist! got"),
        ((1,), TypeError, "model_path must be str"),
        (("x.onnx", 1), TypeError, "context must be Context"),
    ],
)
def test_a_build_of_nothing_is_an_error(arguments, error, says) -> None:
    with pytest.raises(error, match=says):
        ModelParallelRunner().build_from_file(*arguments)


def test_a_file_that_is_no_model_and_a_second_build_are_errors(make, tmp_path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(ModelError, match=r"^ModelParallelRunner's build .* failed! Error is"):
        build(tmp_path / "bad.onnx", "null")
    runner = make()
    with pytest.raises(ModelStateError, match="already built"):
        runner.build_from_file(runner.model_path_)
    with pytest.raises(ModelStateError, match="not built"):
        ModelParallelRunner().predict([X])
    assert str(runner) == f"model_path: {runner.model_path_}."
    assert "2 at once" in repr(runner)
