"""Full queues, closing, forks, and what remains of a request: the edges of a runner's life."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from steps import build, outcome, result
from waiting import wait_until

import engine
from engine import (
    CancelToken,
    DeadlineExceeded,
    InputError,
    ModelParallelRunner,
    ModelStateError,
    QueueFull,
)
from engine.serving.statistics import Recorder
from engine.serving.threads import Admission
from engine_testing import models
from engine_testing.interrupts import Expired, Interrupter

X = np.ones((1, 3), np.float32)
Make = Callable[..., ModelParallelRunner]
SLOW = {"null_context": {"delay_s": "0.2"}}
STUCK = {"null_context": {"delay_s": "300"}}


def test_timeouts_go_on_while_the_queue_is_full(make: Make) -> None:
    runner = make(1, STUCK, queue_limit=1)
    blocking = [runner.submit([X]) for _ in range(2)]
    begin = time.monotonic()
    late = runner.submit([X], timeout_s=0.1)  # waits for room, and no longer
    assert isinstance(late.exception(0), DeadlineExceeded)

    async def ask() -> list[Any]:
        asked = [runner.predict_async([X], timeout_s=0.1) for _ in range(3)]
        return await asyncio.gather(*asked, return_exceptions=True)

    assert [type(error) for error in asyncio.run(ask())] == 3 * [DeadlineExceeded]
    assert time.monotonic() - begin < 60
    token = CancelToken()
    timer = threading.Timer(0.05, token.cancel)
    timer.start()
    assert runner.submit([X], cancel=token).done()
    timer.join()
    for future in blocking:
        future.cancel()


def test_who_waits_for_room_keeps_its_turn(make: Make, gated: Any) -> None:
    runner = make(1, target="gated", queue_limit=1)
    runner.submit([0 * X])
    with ThreadPoolExecutor(6) as threads:
        asked = []
        for number in range(1, 7):
            asked.append(threads.submit(runner.submit, [number * X]))
            wait_until(lambda count=number: runner.statistics().waiting == count)
        gated.go.set()
    runner.close()
    for number, call in enumerate(asked, 1):
        assert result(call.result().result(0)) == (2 * number * X + 1).tolist()
    assert gated.begun == [0, 1, 2, 3, 4, 5, 6]


def test_many_awaited_requests_do_not_poll(make: Make) -> None:
    runner = make(1, STUCK, queue_limit=1)

    async def ask() -> float:
        tasks = [asyncio.ensure_future(runner.predict_async([X])) for _ in range(300)]
        await asyncio.sleep(0.05)
        used_s = []
        for _ in range(3):  # the rest of the process may have something to do in one
            begin = time.process_time()
            await asyncio.sleep(0.1)
            used_s.append(time.process_time() - begin)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return min(used_s)

    assert asyncio.run(ask()) < 0.05


def test_a_queue_takes_exactly_its_limit_of_threads_and_submitted_ones(make: Make) -> None:
    runner = make(1, STUCK, queue_limit=2, when_full="raise")
    running = runner.submit([X])
    wait_until(lambda: runner.statistics().running)
    token, together = CancelToken(), threading.Barrier(12)

    def client(number: int) -> None:
        together.wait()
        if number % 2:
            runner.submit([X], cancel=token).result(30)
        runner.predict([X], cancel=token)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(12) as clients:
            asked = [clients.submit(client, number) for number in range(12)]
            # The two in the queue stay there.
            wait_until(lambda: sum(future.done() for future in asked) >= 10)
            token.cancel()
    finally:
        sys.setswitchinterval(interval)
    running.cancel()
    assert sum(isinstance(future.exception(), QueueFull) for future in asked) == 10
    assert runner.statistics().refused == 10
    assert runner.statistics().failed == 0


def test_map_and_stream_wait_for_room_whatever_the_limit(make: Make) -> None:
    runner = make(2, queue_limit=1, when_full="raise")

    async def gather() -> list[Any]:
        return [result(outputs) async for outputs in runner.stream([[X]] * 12)]

    assert [result(outputs) for outputs in runner.map([[X]] * 12)] == [[[3.0] * 3]] * 12
    assert asyncio.run(gather()) == [[[3.0] * 3]] * 12


@pytest.mark.parametrize("finish", [True, False])
def test_close_finishes_or_fails_threads_that_wait(make: Make, gated: Any, finish: bool) -> None:
    runner = make(1, target="gated")
    [queue] = runner._queues
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(runner.predict, [X]) for _ in range(3)]
        wait_until(lambda: runner.statistics().waiting == 2)
        closing = threads.submit(runner.close, finish=finish)
        wait_until(lambda: queue.pending._closed)
        gated.go.set()
    closing.result()
    errors = [future.exception() for future in asked if future.exception()]
    assert len(errors) == (0 if finish else 2)
    for error in errors:
        assert isinstance(error, ModelStateError)
        assert "the runner is closed" in str(error)


def test_a_signal_handler_may_close_the_runner_in_a_predict(make: Make) -> None:
    runner = make(1, SLOW)
    before = signal.signal(signal.SIGALRM, lambda *_: runner.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        outcome(lambda: runner.predict([X]))
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ModelStateError, match="closed"):
        runner.predict([X])


def test_a_forked_child_may_close_a_busy_runner(make: Make) -> None:
    runner = make(1, SLOW)
    futures = [runner.submit([X]) for _ in range(3)]
    wait_until(lambda: runner.statistics().running)
    child = os.fork()
    if not child:
        signal.alarm(60)
        runner.close()
        runner.statistics()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for future in futures:
        future.result(60)


@contextmanager
def uncollected() -> Iterator[None]:
    """Free nothing that is in a cycle."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("kind", ["right", "timed", "wrong", "cancelled"])
def test_nothing_of_a_request_outlives_its_future(make: Make, kind: str) -> None:
    runner = make(1, SLOW if kind == "cancelled" else None)
    with uncollected():
        if kind == "wrong":
            future = runner.submit([np.ones((1, 4), np.float32)])
            assert isinstance(future.exception(60), InputError)
        else:
            future = runner.submit([X.copy()], timeout_s=3600 if kind == "timed" else None)
            if kind == "cancelled":
                future.cancel()
            wait([future], 60)
            assert future.inputs is None
        known = weakref.ref(future)
        del future
        wait_until(lambda: known() is None)


class Patient:
    """The block of a token's watch, which begins only once an event is there."""

    def __init__(self, watch: AbstractContextManager[None], event: threading.Event) -> None:
        self.watch, self.event = watch, event

    def __enter__(self) -> None:
        assert self.event.wait(60)
        self.watch.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self.watch.__exit__(*raised)


@pytest.mark.parametrize("timeout_s", [None, 3600])
def test_a_token_keeps_nothing_of_a_request_that_ends_while_it_is_queued(
    make: Make, monkeypatch: pytest.MonkeyPatch, timeout_s: float | None
) -> None:
    runner = make(1)
    is_ending, is_queued = threading.Event(), threading.Event()
    ended = Recorder.ended

    def note(*moments: Any) -> None:
        is_ending.set()
        assert is_queued.wait(60)
        ended(*moments)

    class Late(CancelToken):
        def watch(self, callback: Callable[[], None]) -> Any:
            return Patient(super().watch(callback), is_ending)

    monkeypatch.setattr(Recorder, "ended", note)
    token = Late()
    future = runner.submit([X], timeout_s=timeout_s, cancel=token)
    is_queued.set()
    assert future.result(60)
    known = weakref.ref(future)
    del future
    wait_until(lambda: known() is None)
    assert not token.cancelled


@pytest.mark.parametrize("most", [1, 8])
def test_a_runner_that_nobody_has_any_more_frees_its_model_at_once(
    null_backend: str, tmp_path: Path, most: int
) -> None:
    runner = build(models.affine(tmp_path), null_backend, max_batch_size=most)
    before = threading.active_count()
    future = runner.submit([X])
    assert result(future.result(60)) == [[3.0] * 3]
    model = weakref.ref(runner._queues[0].runnable.model)
    with uncollected():
        del runner
        wait_until(lambda: model() is None)
    wait_until(lambda: threading.active_count() <= before)


def test_a_model_that_was_awaited_is_freed_at_once(null_backend: str, tmp_path: Path) -> None:
    model = engine.load(models.affine(tmp_path), target=null_backend)
    asyncio.run(model.predict_async([X]))
    known = weakref.ref(model)
    with uncollected():
        del model
        wait_until(lambda: known() is None)


def test_a_thread_that_cannot_start_loses_no_room(make, monkeypatch) -> None:
    runner = make(1, queue_limit=1)

    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        for _ in range(5):
            with pytest.raises(RuntimeError, match="can't start"):
                runner.submit([X])
    assert runner.submit([X]).result(60)
    runner.close()


def test_a_wrong_token_is_an_error_however_full_the_queue_is(make: Make) -> None:
    runner = make(1, SLOW)
    for _ in range(2):
        with pytest.raises(TypeError, match="cancel must be CancelToken"):
            runner.predict([X], cancel="now")
        runner.submit([X])


def test_a_coroutine_that_is_dropped_cancels_its_request(make: Make) -> None:
    runner = make(1, STUCK)

    async def ask() -> None:
        asking = runner.predict_async([X])
        asking.send(None)
        asking.close()

    asyncio.run(ask())
    wait_until(lambda: runner.statistics().cancelled == 1)
    wait_until(lambda: not runner.statistics().running)


def test_statistics_have_a_request_when_its_result_is_there(make: Make) -> None:
    runner = make(1)
    for count in range(1, 200):
        runner.submit([X]).result(60)
        assert runner.statistics().completed == count


@pytest.mark.parametrize("count", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_what_a_signal_handler_raises_beside_submitted_requests_loses_none(make, count) -> None:
    runner = make(1)
    is_over = threading.Event()

    def beside() -> None:
        while not is_over.is_set():
            for future in [runner.submit([X]) for _ in range(3)]:
                assert result(future.result(20)) == [[3.0] * 3]

    with ThreadPoolExecutor(1) as thread:
        going_on = thread.submit(beside)
        interrupter = Interrupter(seed=1)
        with interrupter.installed():
            for _ in interrupter.calls(lambda: runner.predict([X]), count):
                pass
            for future in interrupter.calls(lambda: runner.submit([X]), count):
                assert future is None or future.result(20)
            for found in interrupter.calls(lambda: runner.submit([X]).result(20), count):
                assert found is None or result(found) == [[3.0] * 3]
        assert interrupter.lost == []
        is_over.set()
        going_on.result(30)
    runner.close()  # and does not hang


def test_what_a_signal_handler_raises_in_map_leaves_no_slot_taken(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, admitted = make(1), Admission.admitted

    def expire(*_: object) -> None:
        raise Expired

    def interrupted(waiter: Admission) -> None:
        monkeypatch.setattr(Admission, "admitted", admitted)
        os.kill(os.getpid(), signal.SIGALRM)
        admitted(waiter)

    monkeypatch.setattr(Admission, "admitted", interrupted)
    before = signal.signal(signal.SIGALRM, expire)
    try:
        with pytest.raises(Expired):
            list(runner.map([[X]] * 2))
    finally:
        signal.signal(signal.SIGALRM, before)
    wait_until(lambda: not runner.statistics().running)


@pytest.mark.parametrize(("workers", "expected"), [(3, [2, 1]), (1, [1, 1])])
def test_workers_are_spread_over_devices(null_backend, tmp_path, workers, expected) -> None:
    context = engine.Context()
    context.target = [null_backend]
    context.parallel.workers_num = workers
    context.parallel.device_ids = [0, 1]
    with ModelParallelRunner() as runner:
        runner.build_from_file(str(models.affine(tmp_path)), context, max_batch_size=1)
        assert [queue.semaphore.slots for queue in runner._queues] == expected
        assert [result(outputs) for outputs in runner.map([[X]] * 8)] == [[[3.0] * 3]] * 8
    assert context.parallel.workers_num == workers
