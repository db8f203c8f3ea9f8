"""Done callbacks may do what they like: no request, deadline or thread waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from steps import result
from waiting import wait_until

from engine import DeadlineExceeded, ModelParallelRunner

X = np.ones((1, 3), np.float32)
Make = Callable[..., ModelParallelRunner]
BRIEF = {"null_context": {"delay_s": "0.02"}}


def after(future: Future[Any], call: Callable[[], Any]) -> Future[Any]:
    """Return the future of what `call` returns in a done callback."""
    outcome: Future[Any] = Future()

    def done(_: object) -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    future.add_done_callback(done)
    return outcome


@pytest.mark.parametrize("most", [1, 8])
def test_a_callback_may_ask_the_runner_again_and_wait(make: Make, most: int) -> None:
    runner = make(1, BRIEF, max_batch_size=most, queue_limit=1)
    futures = [runner.submit([X], timeout_s=30) for _ in range(2)]
    asked = [
        after(futures[0], lambda: result(runner.predict([X]))),
        after(futures[0], lambda: result(runner.submit([X]).result())),
        after(futures[0], lambda: result(futures[1].result())),
    ]
    others = [runner.submit([X]) for _ in range(6)]
    for future in (*asked, *others):
        assert future.result(60)


@pytest.mark.parametrize("most", [1, 8])
def test_a_callback_may_close_the_runner(make: Make, most: int) -> None:
    runner = make(1, BRIEF, max_batch_size=most)
    futures = [runner.submit([X]) for _ in range(5)]
    closed = [after(future, runner.close) for future in futures[1:3]]
    runner.close()  # at the same time
    for future in (*closed, *futures):
        future.result(60)


def test_close_waits_for_callbacks(make: Make) -> None:
    runner = make(1, BRIEF)
    seen = []
    runner.submit([X]).add_done_callback(lambda _: (time.sleep(0.1), seen.append(1)))
    runner.close()
    assert seen == [1]


def test_a_callback_is_called_also_where_its_thread_cannot_start(make, gated, monkeypatch) -> None:
    runner = make(1, target="gated")
    futures = [runner.submit([X]) for _ in range(2)]
    wait_until(lambda: gated.begun)
    seen: list[Future[Any]] = []
    for future in futures:
        future.add_done_callback(seen.append)

    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        gated.go.set()
        wait_until(lambda: seen == futures)
    runner.close()


@pytest.mark.parametrize("error", [KeyError, SystemExit, KeyboardInterrupt])
def test_a_callback_that_raises_stops_nobody(make, gated, error, caplog) -> None:
    runner = make(1, target="gated")

    def fail(_: object) -> None:
        raise error

    for _ in range(3):
        runner.submit([X]).add_done_callback(fail)
    gated.go.set()  # one that is done already is called back in this thread
    assert runner.submit([X]).result(60)
    runner.close()
    assert caplog.text.count("a done callback of a request failed") == 3


def test_a_callback_that_waits_holds_up_no_deadline_and_no_cancel(make: Make, gated: Any) -> None:
    runner = make(1, target="gated")
    runner.submit([X])
    go = threading.Event()
    late = runner.submit([X], timeout_s=0.05)
    late.add_done_callback(lambda _: go.wait(200))
    cancelled = runner.submit([X])
    cancelled.add_done_callback(lambda _: go.wait(200))
    begin = time.monotonic()
    assert isinstance(late.exception(60), DeadlineExceeded)
    assert cancelled.cancel()
    assert isinstance(runner.submit([X], timeout_s=0.05).exception(60), DeadlineExceeded)
    assert time.monotonic() - begin < 60
    go.set()
    gated.go.set()


def test_a_callback_that_comes_as_the_runner_closes_is_called(make: Make, gated: Any) -> None:
    runner = make(1, target="gated")
    runner.submit([X]).add_done_callback(lambda _: None)
    future: Any = runner.submit([X])
    seen: list[object] = []

    def closed_meanwhile() -> bool:
        del future.done
        gated.go.set()
        runner.close()
        return False  # as it was when the question was asked

    future.done = closed_meanwhile
    future.add_done_callback(seen.append)
    assert seen == [future]


def test_a_callback_that_comes_late_is_called_at_once(make: Make) -> None:
    future = make().submit([X])
    future.result(60)
    seen: list[object] = []
    wait_until(lambda: not future._pending)
    future.add_done_callback(seen.append)
    assert seen == [future]
