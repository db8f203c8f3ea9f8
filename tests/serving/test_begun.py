"""Requests that the backend runs without a thread that waits: engine_predict_async."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from steps import build, result, save
from waiting import wait_until

import engine
from engine import (
    Cancelled,
    CancelToken,
    DeadlineExceeded,
    InputError,
    ModelError,
    ModelStateError,
)
from engine.backends.doors import EXTENSIONS
from engine.model.model import model_state
from engine.serving import begun
from engine_testing import models, plugins

X = np.arange(6, dtype=np.float32).reshape(2, 3)
ABLE = frozenset(("async_predict", "deadlines", "cancel_predict", "dynamic_shapes"))
HELD = """
import threading

held, entered = [], []

def answer(number=0):
    context, inputs, done = held.pop(number)
    try:
        values = context.run(inputs, None, None)
    except BaseException as error:
        done(None, error)
    else:
        done(values, None)

@hookimpl
def engine_predict_async(context, inputs, outputs, deadline_s, done):
    entered.append(threading.current_thread().name)
    held.append((context, inputs, done))
    return True
"""
"""A backend whose predicts end where the test says: `answer`."""


@pytest.fixture
def held(install: Any) -> Any:
    """The module of a backend "held"."""
    return install("held", extra=HELD, capabilities=ABLE)


@pytest.fixture
def null_device(plugin_folder: Path) -> str:
    """The null backend as it is."""
    plugins.install(plugin_folder, "null", "engine_testing.null_device")
    return "null"


def test_64_requests_are_in_flight_with_at_most_4_threads_more(null_device, tmp_path) -> None:
    config = {"null_context": {"delay_s": "0.05"}}
    before = {thread.ident for thread in threading.enumerate()}
    most = 0

    async def ask(model: engine.Model) -> list[Any]:
        nonlocal most
        tasks = [asyncio.ensure_future(model.predict_async([X + n])) for n in range(64)]
        while not all(task.done() for task in tasks):
            most = max(most, len({t.ident for t in threading.enumerate()} - before))
            await asyncio.sleep(0)
        return [result(await task) for task in tasks]

    with engine.load(models.affine(tmp_path), target="null", config=config) as model:
        found = asyncio.run(ask(model))
    assert found == [(2 * (X + number) + 1).tolist() for number in range(64)]
    assert 0 < most <= 4


def test_all_are_in_flight_at_once_and_each_gets_its_own(held: Any, tmp_path: Path) -> None:
    before = threading.active_count()
    runner = build(models.affine(tmp_path), "held", 64, max_batch_size=1)
    futures = [runner.submit([X + number]) for number in range(64)]
    wait_until(lambda: len(held.held) == 64)
    assert threading.active_count() - before <= 2
    assert set(held.entered) == {"engine-runner"}
    assert runner.statistics().running == 64
    for number in reversed(range(64)):  # not in the order of their begin
        held.answer(number)
    assert [result(future.result(60)) for future in futures] == [
        (2 * (X + number) + 1).tolist() for number in range(64)
    ]
    runner.close()
    assert runner.statistics().completed == 64


def test_no_more_are_in_flight_than_the_runner_has_workers(held: Any, tmp_path: Path) -> None:
    with build(models.affine(tmp_path), "held", 2, max_batch_size=1) as runner:
        futures = [runner.submit([X + number]) for number in range(3)]
        wait_until(lambda: len(held.held) == 2)
        assert (runner.statistics().running, runner.statistics().waiting) == (2, 1)
        held.answer()
        wait_until(lambda: len(held.held) == 2)
        held.answer()
        held.answer()
        for future in futures:
            future.result(60)
        assert len({id(opened) for opened in held.opened}) == 1


def test_deadlines_and_tokens_end_requests_in_flight(null_device: str, tmp_path: Path) -> None:
    config = {"null_context": {"delay_s": "300"}}
    with build(models.affine(tmp_path), "null", 3, config, max_batch_size=1) as runner:
        token = CancelToken()
        late, told, dropped = (
            runner.submit([X], timeout_s=0.05),
            runner.submit([X], cancel=token),
            runner.submit([X]),
        )
        with pytest.raises(DeadlineExceeded, match=r"longer than timeout_s, 0\.05 s") as error:
            late.result(60)
        assert error.value.timeout_s == 0.05
        token.cancel()
        with pytest.raises(Cancelled):
            told.result(60)
        assert dropped.cancel()
        wait_until(lambda: runner.statistics().running == 0)
        counts = runner.statistics()
        assert (counts.expired, counts.cancelled, counts.completed) == (1, 2, 0)


def test_a_cancelled_task_stops_its_run(null_device: str, tmp_path: Path) -> None:
    async def ask(model: engine.Model) -> None:
        task = asyncio.ensure_future(model.predict_async([X]))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    config = {"null_context": {"delay_s": "300"}}
    with engine.load(models.affine(tmp_path), target="null", config=config) as model:
        asyncio.run(ask(model))
    wait_until(lambda: "engine-runner" not in {thread.name for thread in threading.enumerate()})


WRONG = """
@hookimpl
def engine_predict_async(context, inputs, outputs, deadline_s, done):
    values = context.run(inputs, None, None)
    if inputs[0].flat[0] == 1:  # inside the call, twice
        done(values, None)
        done(None, ValueError("late"))
    elif inputs[0].flat[0] == 2:  # tells, and raises
        done(values, None)
        raise ValueError("raised too")
    elif inputs[0].flat[0] == 3:
        raise ValueError("does not begin")
    elif inputs[0].flat[0] == 4:
        done([], None)
    elif inputs[0].flat[0] == 5:
        done(None, None)
    elif inputs[0].flat[0] == 6:
        done(None, ValueError("on its way"))
    else:
        held.append((context, inputs, done))
    return True
"""


@pytest.fixture
def wrong(install: Any) -> Any:
    """The module of a backend "wrong", which tells the end as the first element of x says."""
    return install("wrong", extra=HELD + WRONG, capabilities=ABLE)


def test_an_end_that_is_told_wrongly_counts_once_and_is_logged(
    wrong: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with build(models.affine(tmp_path), "wrong", 1, max_batch_size=1) as runner:

        def ask(number: int) -> Any:
            return runner.submit([np.full((1, 3), number, np.float32)]).result(60)

        assert result(ask(1)) == [[3] * 3]
        assert "called done twice" in caplog.text
        assert result(ask(2)) == [[5] * 3]
        wait_until(lambda: "raised an error after it had called done" in caplog.text)
        for number, text in (
            (3, "backend 'wrong' raised ValueError: does not begin"),
            (4, "gave 0 values for 1"),
            (5, "gave <class 'NoneType'> for 1"),
            (6, "backend 'wrong' raised ValueError: on its way"),
        ):
            with pytest.raises(ModelError, match=text) as error:
                ask(number)
            assert error.value.at_fault == "wrong"
        counts = runner.statistics()
        assert (counts.completed, counts.failed, counts.running) == (2, 4, 0)
        with pytest.raises(InputError, match="input 'x'"):
            runner.submit([X[0]]).result(60)
    assert len({id(executable) for executable in wrong.opened}) == 1


def test_a_run_whose_end_is_not_told_is_given_up_after_its_deadline(
    wrong: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(begun, "GRACE_S", 0.1)
    runner = build(models.affine(tmp_path), "wrong", 1, max_batch_size=1)
    late = runner.submit([np.full((1, 3), 7, np.float32)], timeout_s=0.05)
    with pytest.raises(ModelError, match=r"has not called done 0\.1 s after") as error:
        late.result(60)
    assert error.value.at_fault == "wrong"
    dropped = runner.submit([np.full((1, 3), 8, np.float32)])
    wait_until(lambda: len(wrong.held) == 2)
    assert wrong.held[0][0] is not wrong.held[1][0], "a context that may be in use was lent again"
    assert dropped.cancel()
    runner.close()  # which does not wait for these
    assert caplog.text.count("has not called done") == 2
    wrong.answer()
    assert "called done more than 0.1 s after it was to stop" in caplog.text


def test_closing_waits_for_what_is_in_flight(held: Any, tmp_path: Path) -> None:
    runner = build(models.affine(tmp_path), "held", 1, max_batch_size=1)
    first, second = runner.submit([X]), runner.submit([X])
    wait_until(lambda: held.held)
    closing = threading.Thread(target=runner.close, kwargs={"finish": False})
    closing.start()
    with pytest.raises(ModelStateError, match="closed"):
        second.result(60)
    assert closing.is_alive()
    assert not first.done()
    held.answer()
    closing.join(60)
    assert not closing.is_alive()
    assert result(first.result(60)) == (2 * X + 1).tolist()
    wait_until(lambda: "engine-runner" not in {thread.name for thread in threading.enumerate()})


def test_a_model_that_is_closed_meanwhile_ends_its_requests(held: Any, tmp_path: Path) -> None:
    async def ask() -> list[Any]:
        model = engine.load(models.affine(tmp_path), target="held")
        task = asyncio.ensure_future(model.predict_async([X]))
        while not held.held:
            await asyncio.sleep(0.001)
        model.close()
        held.answer()
        return await task

    assert result(asyncio.run(ask())) == (2 * X + 1).tolist()
    wait_until(lambda: held.opened[0].evaluator is None)  # its last context closed it
    wait_until(lambda: "engine-runner" not in {thread.name for thread in threading.enumerate()})


def test_requests_in_flight_keep_no_thread_of_a_predict_waiting(held: Any, tmp_path: Path) -> None:
    """A predict takes the slot that is left, and its result is its own."""
    with build(models.affine(tmp_path), "held", 2, max_batch_size=1) as runner:
        future = runner.submit([X])
        wait_until(lambda: held.held)
        found = []
        thread = threading.Thread(target=lambda: found.append(runner.predict([X + 1])))
        thread.start()
        thread.join(60)
        assert result(found[0]) == (2 * (X + 1) + 1).tolist()
        assert not future.done()
        held.answer()
        assert result(future.result(60)) == (2 * X + 1).tolist()


def test_a_model_of_several_parts_is_run_as_before(
    null_device: str, install: Any, tmp_path: Path
) -> None:
    """Its requests are not begun: engine_predict_async knows one executable."""
    held = install("held", extra=HELD, capabilities=ABLE | {"mixed_placement"})
    model = engine.load(
        models.affine(tmp_path), target=["held", "null"],
        config={"held_context": {"unsupported_ops": "Add"}},
    )  # fmt: skip
    with model:
        assert result(asyncio.run(model.predict_async([X]))) == (2 * X + 1).tolist()
        assert {node.backend for node in model.placement} == {"held", "null"}
    assert not held.entered


def test_each_request_is_one_event_with_the_times_of_its_run(
    held: Any, tmp_path: Path, plugin_folder: Path
) -> None:
    source = """
events = []

class Watching:
    def on_request(self, event):
        events.append(event)

def watch(*options):
    return Watching()

watch.observes = True
"""
    plugins.install(plugin_folder, "watch", "watching:watch", group=EXTENSIONS.group, source=source)
    context = engine.Context()
    context.target = ["held"]
    context.extensions = {"watch": {}}
    context.parallel.workers_num = 1
    with engine.ModelParallelRunner() as runner:
        runner.build_from_file(str(models.affine(tmp_path)), context, max_batch_size=1)
        first, second, third = (runner.submit([X]) for _ in range(3))
        wait_until(lambda: held.held)
        begun_s = time.monotonic()
        third.cancel()
        time.sleep(0.05)
        took_s = time.monotonic() - begun_s
        held.answer()
        wait_until(lambda: held.held)
        held.answer()
        first.result(60), second.result(60)
    events = sys.modules["watching"].events
    assert [event.status for event in events] == ["cancelled", "completed", "completed"]
    cancelled, one, two = events
    assert cancelled.compute_s == 0
    assert one.compute_s >= took_s
    assert two.queue_s >= took_s
    assert len({event.id for event in events}) == 3


def test_a_forked_child_forgets_what_is_in_flight(held: Any, tmp_path: Path) -> None:
    runner = build(models.affine(tmp_path), "held", 2, max_batch_size=1)
    future = runner.submit([X])
    wait_until(lambda: held.held)
    child = os.fork()
    if not child:
        status = 1
        with suppress(ModelStateError):
            runner.close()
            runner.submit([X])
            status = 2
        with suppress(BaseException):
            held.held.clear()
            gc.collect()
            status -= 1
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.answer()
    assert result(future.result(60)) == (2 * X + 1).tolist()
    runner.close()


def test_a_model_has_no_more_in_flight_than_its_backend_finds_worth_while(
    null_device: str, tmp_path: Path
) -> None:
    config = {"null_context": {"delay_s": "0.01", "concurrency": "2"}}

    async def ask(model: engine.Model) -> list[Any]:
        return await asyncio.gather(*(model.predict_async([X + number]) for number in range(8)))

    with engine.load(models.affine(tmp_path), target="null", config=config) as model:
        found = asyncio.run(ask(model))
        built = model_state(model).require_built()
        assert built.plan.pool.open_count == 2
    assert [result(outputs) for outputs in found] == [
        (2 * (X + number) + 1).tolist() for number in range(8)
    ]


def test_a_model_that_is_built_anew_for_other_sizes_is_awaited_as_before(
    null_device: str, tmp_path: Path
) -> None:
    path = save(tmp_path, "(float[2, 3] x) => (float[2, 3] y) { y = Add(x, x) }")
    for concurrency in ("0", "2"):
        config = {"null_context": {"concurrency": concurrency}}
        with engine.load(path, target="null", config=config) as model:
            assert result(asyncio.run(model.predict_async([X]))) == (2 * X).tolist()
            model.resize(model.get_inputs(), [[4, 3]])
            x = np.concatenate([X, X])

            async def ask(model: engine.Model, x: Any) -> list[Any]:
                return await asyncio.gather(*(model.predict_async([x + n]) for n in range(8)))

            found = asyncio.run(ask(model, x))
            assert [result(outputs) for outputs in found] == [
                (2 * (x + number)).tolist() for number in range(8)
            ]


def test_a_model_that_is_built_anew_as_a_request_begins_answers_it(
    null_device: str, tmp_path: Path
) -> None:
    """As an update in the mode rebuild does, which closes the plan that the request was to use."""
    changed: list[bool] = []
    section = {"variable_weights_list": "two, one", "variable_weights_mode": "rebuild"}

    class Slow:
        """An input whose conversion takes as long as an update."""

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            if not changed:
                changed.append(True)
                runner.update_weights({"two": np.array([5], np.float32)})
            return X

    with build(
        models.affine(tmp_path), "null", 2, {"common_context": section}, max_batch_size=1
    ) as runner:
        assert result(runner.submit([Slow()]).result(60)) == (5 * X + 1).tolist()


def test_a_result_is_free_when_its_future_is(null_device: str, tmp_path: Path) -> None:
    gc.disable()  # nothing is left for the collector of cycles
    try:
        with build(models.affine(tmp_path), "null", 2, max_batch_size=1) as runner:
            future = runner.submit([X])
            future.result(60)
            alive = weakref.ref(future)
            del future
            wait_until(lambda: alive() is None)
    finally:
        gc.enable()


@pytest.mark.parametrize("way", ["submit", "async", "predict"])
@pytest.mark.parametrize("fault", ["done", "raise", "input"])
def test_a_failed_request_keeps_no_model_alive_until_a_collection(
    way: str, fault: str, install: Any, tmp_path: Path
) -> None:
    extra = f"""
@hookimpl
def engine_predict_async(context, inputs, outputs, deadline_s, done):
    if {fault!r} == "raise":
        raise ValueError("not this one")
    done(None, ValueError("not this one"))
    return True

@hookimpl
def engine_predict(context, inputs):
    raise ValueError("not this one")
"""
    install("failing", extra=extra, capabilities=ABLE)
    x = np.ones((2, 4), np.float32) if fault == "input" else X
    gc.collect()
    gc.disable()
    try:
        model = engine.load(models.affine(tmp_path), target="failing")
        alive = weakref.ref(model_state(model))
        with suppress(engine.EngineError):
            if way == "submit":
                model._queue().submit([x], None, None).result(60)
            elif way == "async":
                asyncio.run(failing(model, x))
            else:
                model.predict([x])
        model.close()
        del model
        wait_until(lambda: alive() is None)
    finally:
        gc.enable()


async def failing(model: engine.Model, x: Any) -> None:
    """Await a request that fails; asyncio's own frames keep what leaves a task."""
    with suppress(engine.EngineError):
        await model.predict_async([x])
