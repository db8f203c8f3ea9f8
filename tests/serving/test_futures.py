"""The future that submit returns keeps the contract of concurrent.futures."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from steps import result
from waiting import in_threads, wait_until

from engine import Cancelled, CancelToken, ModelParallelRunner

X = np.ones((1, 3), np.float32)
Make = Callable[..., ModelParallelRunner]
STUCK = {"null_context": {"delay_s": "300"}}


def check_cancelled(future: cf.Future[Any]) -> None:
    assert (future.cancelled(), future.done(), future.running()) == (True, True, False)
    for call in (future.result, future.exception):
        for wanted in (Cancelled, cf.CancelledError):
            with pytest.raises(wanted, match="predict failed! cancelled by its owner"):
                call(0)


def test_a_future_runs_from_its_slot_to_its_end(make: Make, gated: Any) -> None:
    runner = make(1, target="gated")
    first = runner.submit([X])
    wait_until(lambda: gated.begun)
    second = runner.submit([X])
    assert (first.running(), second.running()) == (True, False)
    gated.go.set()
    for future in (first, second):
        future.result(60)
        assert (future.running(), future.done(), future.cancelled()) == (False, True, False)
        assert not future.cancel()
        assert not future.cancelled()


def test_a_request_that_waits_is_cancelled_and_leaves_the_queue(make: Make, gated: Any) -> None:
    runner = make(1, target="gated")
    first, second, third = (runner.submit([X]) for _ in range(3))
    assert second.cancel()
    check_cancelled(second)
    assert second.cancel()  # as it has been before
    assert runner.statistics().waiting == 1
    gated.go.set()
    assert result(first.result(60)) == result(third.result(60)) == [[3] * 3]
    assert runner.statistics().cancelled == 1


def test_a_request_that_runs_is_cancelled_when_cancel_says_so(make: Make) -> None:
    runner = make(1, STUCK)
    future = runner.submit([X])
    wait_until(lambda: runner.statistics().running)
    assert future.cancel()
    check_cancelled(future)
    wait_until(lambda: not runner.statistics().running)  # and its run was stopped
    assert runner.statistics().cancelled == 1


def test_a_token_cancels_the_future(make: Make) -> None:
    runner = make(1, STUCK)
    token = CancelToken()
    futures = [runner.submit([X], cancel=token) for _ in range(2)]
    wait_until(lambda: runner.statistics().running)
    token.cancel()
    for future in futures:
        check_cancelled(future)
    check_cancelled(runner.submit([X], cancel=token))
    wait_until(lambda: not runner.statistics().running)


@pytest.mark.parametrize("when", [cf.ALL_COMPLETED, cf.FIRST_COMPLETED])
def test_who_waits_for_futures_hears_of_cancelled_ones(make: Make, when: str) -> None:
    runner = make(1, STUCK)
    futures = [runner.submit([X]) for _ in range(3)]
    wait_until(lambda: runner.statistics().running)

    def client(number: int) -> None:
        if number == 0:
            for future in futures:
                assert future.cancel()
        elif number == 1:
            done, left = cf.wait(futures, 60, when)
            assert done
            assert when == cf.FIRST_COMPLETED or not left
        else:
            assert set(cf.as_completed(futures, 60)) == set(futures)

    in_threads(3, client)
    done, left = cf.wait(futures, 60, cf.FIRST_EXCEPTION)
    assert (len(done), len(left)) == (3, 0)
    for future in futures:
        check_cancelled(future)


def test_none_of_many_cancels_beside_runs_is_lost(make: Make) -> None:
    runner = make(2)

    def client(number: int) -> None:
        for turn in range(100):
            futures = [runner.submit([X]) for _ in range(3)]
            is_cancelled = futures[turn % 3].cancel()
            assert not cf.wait(futures, 60).not_done
            assert is_cancelled == futures[turn % 3].cancelled()
            for future in futures:
                assert future.cancelled() or result(future.result(0)) == [[3] * 3]

    in_threads(4, client)
    found = runner.statistics()
    assert found.completed + found.cancelled == 1200
    assert found.failed == 0


def test_asyncio_takes_the_futures(make: Make, gated: Any) -> None:
    runner = make(1, target="gated")

    async def client() -> None:
        first, second, third = (asyncio.wrap_future(runner.submit([X])) for _ in range(3))
        held = runner.submit([X])
        wrapped = asyncio.wrap_future(held)
        second.cancel()
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        with pytest.raises(asyncio.CancelledError):
            await wrapped
        gated.go.set()
        assert result(await first) == result(await third) == [[3] * 3]

    asyncio.run(client())
    wait_until(lambda: runner.statistics().cancelled == 2)


def test_done_callbacks_hear_of_a_cancel(make: Make) -> None:
    runner = make(1, STUCK)
    futures = [runner.submit([X]) for _ in range(2)]
    seen: list[Any] = []
    for future in futures:
        future.add_done_callback(lambda future: seen.append(future.cancelled()))
    wait_until(lambda: runner.statistics().running)
    for future in futures:
        future.cancel()
    wait_until(lambda: seen == [True, True])
