"""Requests of several priorities: the highest that waits is served first, and none is lost."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from steps import GATED, result
from waiting import in_threads, wait_until

from engine import CancelToken
from engine.errors import Cancelled, DeadlineExceeded, QueueFull
from engine.host.fair_semaphore import CallbackWaiter, FairSemaphore
from engine.types import PredictOptions

TELLING = """
told, sizes = [], []
gated_predict = engine_predict

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s, options=None):
    told.append(options)
    sizes.append(inputs[0].shape[0])
    return gated_predict(context, inputs, outputs, deadline_s)
"""


def row(value: float) -> Any:
    return np.full((1, 3), value, np.float32)


def waiting(runner: Any) -> int:
    return int(runner.statistics().waiting)


@pytest.mark.parametrize("way", ["submit", "predict", "async"])
def test_the_highest_priority_is_served_first_and_then_who_came_first(
    way: str, gated: Any, make: Any
) -> None:
    runner = make(1, target="gated")
    priorities = [0, -3, 5, 0, 5, 100, -3, -100]
    served: list[Any] = []
    with ThreadPoolExecutor(len(priorities) + 1) as threads:
        first = threads.submit(runner.predict, [row(1000)])
        wait_until(lambda: gated.begun)

        def ask(number: int) -> Any:
            asked = {"priority": priorities[number]}
            if way == "submit":
                return runner.submit([row(number)], **asked).result(120)
            if way == "async":
                return asyncio.run(awaited(runner, number, asked))
            return runner.predict([row(number)], **asked)

        for number in range(len(priorities)):
            served.append(threads.submit(ask, number))
            wait_until(lambda count=number + 1: waiting(runner) == count)
        gated.go.set()
        assert result(first.result(120)) == [[2001.0] * 3]
        for number, call in enumerate(served):
            assert result(call.result(120)) == [[2.0 * number + 1] * 3]
    assert gated.begun == [1000, 5, 2, 4, 0, 3, 1, 6, 7]


async def awaited(runner: Any, number: int, asked: Any) -> Any:
    return await runner.predict_async([row(number)], **asked)


def test_requests_of_a_shared_run_have_its_id_and_their_highest_priority(
    make: Any, install: Any
) -> None:
    module = install("shared_gated", extra=GATED + TELLING)
    module.go.set()
    runner = make(1, target="shared_gated", max_batch_size=4, max_delay_us=0)
    module.go.clear()
    module.told.clear()
    module.sizes.clear()
    module.begun.clear()
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(runner.predict, [row(1000)], request_id="first")
        wait_until(lambda: module.begun)
        calls = []
        for number, priority in enumerate([0, -1, 7, 0, 0, 9]):
            calls.append(runner.submit([row(number)], priority=priority))
            wait_until(lambda count=number + 1: waiting(runner) == count)
        module.go.set()
        assert result(first.result(120)) == [[2001.0] * 3]
        for number, call in enumerate(calls):
            assert result(call.result(120)) == [[2.0 * number + 1] * 3]
    assert module.sizes == [1, 4, 2]  # 9, 7, and the first two of 0; then 0 and -1
    alone, shared, last = module.told
    assert alone == PredictOptions(id="first")
    assert (shared.priority, last.priority) == (9, 0)
    assert shared.id != last.id
    assert shared.id


def test_the_rest_of_a_shared_run_whose_first_is_cancelled_is_served_by_priority(
    make: Any, install: Any
) -> None:
    module = install("leader_gated", extra=GATED + TELLING)
    module.go.set()
    runner = make(1, target="leader_gated", max_batch_size=2, max_delay_us=0)
    with ThreadPoolExecutor(8) as threads:
        module.go.clear()
        module.begun.clear()
        first = threads.submit(runner.predict, [row(1000)])
        wait_until(lambda: module.begun)
        token = CancelToken()
        leader = runner.submit([row(1)], cancel=token, priority=2)
        taken = runner.submit([row(2)], priority=1)
        later = [runner.submit([row(3)], priority=p) for p in (0, 3)]
        wait_until(lambda: waiting(runner) == 4)
        token.cancel()
        module.go.set()
        with pytest.raises(Cancelled):
            leader.result(120)
        assert result(first.result(120)) == [[2001.0] * 3]
        assert result(taken.result(120)) == [[5.0] * 3]
        assert [result(each.result(120)) for each in later] == [[[7.0] * 3]] * 2


@pytest.mark.parametrize("batch", [1, 4])
def test_many_clients_with_priorities_deadlines_and_cancels_get_their_own_results(
    batch: int, make: Any
) -> None:
    config = {"null_context": {"delay_s": "0.001"}}
    runner = make(2, config=config, max_batch_size=batch)
    ended: list[str] = []

    def work(thread: int) -> None:
        draw = random.Random(thread)
        for call in range(25):
            value = 100 * thread + call
            priority = draw.choice([-100, -1, 0, 0, 0, 1, 100])
            token = CancelToken() if draw.random() < 0.3 else None
            timer = threading.Timer(draw.random() / 100, token.cancel) if token else None
            timeout_s = draw.choice([None, None, 60, 0.005])
            if timer is not None:
                timer.start()
            try:
                asked = {"priority": priority, "cancel": token, "timeout_s": timeout_s}
                if draw.random() < 0.5:
                    outputs = runner.predict([row(value)], **asked)
                else:
                    outputs = runner.submit([row(value)], **asked).result(120)
                assert result(outputs) == [[2.0 * value + 1] * 3]
                ended.append("completed")
            except (Cancelled, DeadlineExceeded) as error:
                ended.append(type(error).__name__)
            finally:
                if timer is not None:
                    timer.join()

    in_threads(8, work)
    assert len(ended) == 8 * 25
    assert ended.count("completed") > 40
    wait_until(lambda: runner.statistics().running == 0)
    assert waiting(runner) == 0
    assert result(runner.predict([row(1)])) == [[3.0] * 3]


class Waits(CallbackWaiter):
    __slots__ = ("name", "order")

    def __init__(self, name: str, order: list[str], priority: int = 0) -> None:
        super().__init__(None, priority)
        self.name, self.order = name, order

    def admitted(self) -> None:
        self.order.append(self.name)


def test_nothing_passes_a_barrier_whatever_its_priority() -> None:
    semaphore = FairSemaphore(1)
    order: list[str] = []
    assert semaphore.acquire()
    waiters = [
        Waits("low before", order, -100),
        Waits("before", order),
        Waits("barrier", order),
        Waits("after", order),
        Waits("high after", order, 100),
    ]
    for waiter in waiters:
        semaphore.enqueue(waiter, is_barrier=waiter.name == "barrier")
    semaphore.release()
    for _ in waiters:
        [owner] = semaphore._holders
        semaphore.release(owner)
    assert order == ["before", "low before", "barrier", "high after", "after"]
    assert (semaphore.waiting, semaphore.running) == (0, 0)


def test_thousands_are_admitted_by_priority_and_then_in_the_order_in_which_they_came() -> None:
    semaphore = FairSemaphore(1)
    order: list[str] = []
    draw = random.Random(1)
    assert semaphore.acquire()
    priorities = [draw.randint(-100, 100) for _ in range(4000)]
    waiters = [Waits(str(number), order, priority) for number, priority in enumerate(priorities)]
    for waiter in waiters:
        semaphore.enqueue(waiter)
    leave = set(draw.sample(range(4000), 1000))
    assert all(semaphore.withdraw(waiters[number]) for number in leave)
    assert (semaphore.waiting, semaphore.running) == (3000, 1)
    semaphore.release()
    while semaphore.running:
        [owner] = semaphore._holders
        semaphore.release(owner)
    there = [number for number in range(4000) if number not in leave]
    assert order == [str(n) for n in sorted(there, key=lambda n: (-priorities[n], n))]
    assert semaphore.waiting == 0


def test_who_comes_or_goes_looks_at_none_of_those_that_wait() -> None:
    """Looks are counted by the reads of a rank, of which those who wait have one each."""
    reads: list[int] = []

    class Counted(Waits):
        __slots__ = ("_rank",)

        @property
        def rank(self) -> int:  # type: ignore[override]
            reads.append(self.owner)
            return self._rank

        @rank.setter
        def rank(self, rank: int) -> None:
            self._rank = rank

    semaphore = FairSemaphore(1)
    assert semaphore.acquire()
    waiters = [Counted("", [], number % 5) for number in range(1000)]
    for waiter in waiters:
        semaphore.enqueue(waiter)
    last = Counted("last", [], 3)
    for step in (
        lambda: semaphore.enqueue(last),
        lambda: semaphore.withdraw(last),
        lambda: semaphore.release(),
    ):
        reads.clear()
        step()
        assert len(set(reads)) <= 2
    assert semaphore.running == 1


def test_a_thread_that_is_late_or_cancelled_leaves_the_others_in_their_order() -> None:
    semaphore = FairSemaphore(1)
    order: list[str] = []
    assert semaphore.acquire()
    semaphore.enqueue(Waits("low", order, -1))
    token = CancelToken()

    def wait(**limits: Any) -> None:
        semaphore.acquire(priority=5, **limits)

    with ThreadPoolExecutor(2) as threads:
        late = threads.submit(wait, deadline_s=0.0)
        cancelled = threads.submit(wait, cancel=token)
        assert isinstance(late.exception(120), DeadlineExceeded)
        wait_until(lambda: semaphore.waiting == 2)
        semaphore.enqueue(Waits("high", order, 5))
        token.cancel()
        assert isinstance(cancelled.exception(120), Cancelled)
    semaphore.release()
    for _ in range(2):
        [owner] = semaphore._holders
        semaphore.release(owner)
    assert order == ["high", "low"]
    assert (semaphore.waiting, semaphore.running) == (0, 0)


def test_what_comes_back_to_the_queue_comes_before_others_of_its_priority() -> None:
    semaphore = FairSemaphore(1)
    order: list[str] = []

    class Shareable:
        is_done = False

    assert semaphore.acquire()
    for name, priority in (("a", 0), ("b", 2), ("c", 0)):
        waiter = Waits(name, order, priority)
        waiter.request = Shareable()
        semaphore.enqueue(waiter)
    taken = semaphore.dequeue(lambda request: True)
    assert [waiter.name for waiter in taken] == ["b", "a", "c"]
    semaphore.enqueue(Waits("d", order))
    semaphore.enqueue(Waits("e", order, 2))
    semaphore.requeue(taken)
    semaphore.release()
    for _ in range(5):
        [owner] = semaphore._holders
        semaphore.release(owner)
    assert order == ["b", "e", "a", "c", "d"]


def test_a_full_queue_takes_a_higher_priority_in_place_of_the_newest_of_the_lowest(
    gated: Any, make: Any
) -> None:
    runner = make(1, target="gated", queue_limit=4, when_full="raise")
    first = runner.submit([row(0)])
    wait_until(lambda: gated.begun)
    futures = {n: runner.submit([row(n)], priority=p) for n, p in enumerate([0, -1, -1, 5], 1)}
    with pytest.raises(QueueFull, match=r"^4 requests wait already"):  # none is lower
        runner.submit([row(9)], priority=-1)
    futures[5] = runner.submit([row(5)], priority=0)
    text = "^one of a higher priority has its place: 4 requests wait already"
    with pytest.raises(QueueFull, match=text):
        futures.pop(3).result(0)
    futures[6] = runner.submit([row(6)], priority=100)
    with pytest.raises(QueueFull, match=text):
        futures.pop(2).result(0)
    futures[7] = runner.submit([row(7)], priority=1)
    assert isinstance(futures.pop(5).exception(0), QueueFull)
    assert waiting(runner) == 4
    gated.go.set()
    assert result(first.result(120)) == row(1).tolist()
    for number, future in futures.items():
        assert result(future.result(120)) == row(2 * number + 1).tolist()
    assert gated.begun == [0, 6, 4, 7, 1]
    runner.close()
    counted = runner.statistics()
    assert (counted.completed, counted.refused, counted.failed) == (5, 4, 0)


def steps_of(call: Callable[[], object]) -> int:
    """Return how many steps of Python's a call takes, in a thread where no handler runs."""
    count = 0

    def step(frame: Any, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return step

    def traced() -> None:
        sys.settrace(step)
        call()

    gc.collect()
    gc.disable()  # what it finds to end is ended by whatever thread runs then
    try:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(traced).result()
    finally:
        gc.enable()
    return count


def test_a_full_queue_refuses_in_about_as_many_steps_at_any_length(gated: Any, make: Any) -> None:
    steps = []
    for length in (10, 1000):
        runner = make(1, target="gated", queue_limit=length, when_full="raise")
        gated.go.clear()
        first = runner.submit([row(0)])
        wait_until(lambda: runner.statistics().running == 1)  # noqa: B023 - called at once
        futures = [runner.submit([row(n)], priority=-(n % 2)) for n in range(length)]
        urgent = []

        def refuse(priority: int, runner: Any = runner) -> None:
            with pytest.raises(QueueFull, match=r"^[0-9]+ requests wait already"):
                runner.submit([row(-1)], priority=priority)

        def take(runner: Any = runner, urgent: list[Any] = urgent) -> None:
            urgent.append(runner.submit([row(-2)], priority=1))

        refuse(-1)  # what only the first does is no part of it
        take()
        counts = [steps_of(lambda: refuse(-1)), steps_of(lambda: refuse(-2)), steps_of(take)]
        assert [place for place, it in enumerate(futures) if it.done()] == [length - 3, length - 1]
        gated.go.set()
        assert all(it.exception(120) is None for it in (first, *urgent))
        runner.close()
        steps.append(counts)
    for few, many in zip(*steps, strict=True):
        assert many < 2 * few, steps  # a hundred times as many wait


@pytest.mark.parametrize("way", ["predict", "async"])
def test_whoever_waits_for_the_result_takes_a_place_likewise(
    way: str, gated: Any, make: Any
) -> None:
    runner = make(1, target="gated", queue_limit=1, when_full="raise")
    first = runner.submit([row(0)])
    wait_until(lambda: gated.begun)
    low = runner.submit([row(1)], priority=-1)
    with ThreadPoolExecutor(1) as threads:
        if way == "predict":
            asked = threads.submit(runner.predict, [row(2)], priority=1)
        else:
            asked = threads.submit(lambda: asyncio.run(awaited(runner, 2, {"priority": 1})))
        assert isinstance(low.exception(120), QueueFull)
        gated.go.set()
        assert result(asked.result(120)) == row(5).tolist()
    assert result(first.result(120)) == row(1).tolist()


def test_a_thread_that_waits_in_predict_keeps_its_place(gated: Any, make: Any) -> None:
    runner = make(1, target="gated", queue_limit=1, when_full="raise")
    first = runner.submit([row(0)])
    wait_until(lambda: gated.begun)
    with ThreadPoolExecutor(1) as threads:
        low = threads.submit(runner.predict, [row(1)], priority=-100)
        wait_until(lambda: waiting(runner) == 1)
        with pytest.raises(QueueFull):
            runner.submit([row(2)], priority=100)
        gated.go.set()
        assert result(low.result(120)) == row(3).tolist()
    assert result(first.result(120)) == row(1).tolist()


@pytest.mark.parametrize("most", [1, 4])
def test_each_of_many_requests_to_a_full_queue_has_its_result_or_is_refused(
    most: int, make: Any
) -> None:
    config = {"null_context": {"delay_s": "0.001"}}
    runner = make(2, config, max_batch_size=most, queue_limit=3, when_full="raise")
    random_ = random.Random(0)
    priorities = [[random_.randint(-2, 2) for _ in range(60)] for _ in range(6)]

    def ask(number: int) -> tuple[int, int]:
        ended = refused = 0
        asked = []
        for place, priority in enumerate(priorities[number]):
            value = float(100 * number + place)
            try:
                asked.append((value, runner.submit([row(value)], priority=priority)))
            except QueueFull:
                refused += 1
        for value, future in asked:
            error = future.exception(120)
            if error is None:
                assert result(future.result(0)) == row(2 * value + 1).tolist()
                ended += 1
            else:
                assert isinstance(error, QueueFull)
                refused += 1
        return ended, refused

    with ThreadPoolExecutor(6) as threads:
        counts = [*threads.map(ask, range(6))]
    runner.close()
    counted = runner.statistics()
    assert [sum(each) for each in counts] == 6 * [60]
    assert (counted.completed, counted.refused) == tuple(map(sum, zip(*counts)))
    assert counted.refused > 0
