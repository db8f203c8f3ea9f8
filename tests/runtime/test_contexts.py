"""Contexts are lent for a call: how many there are, who waits, and what close and cancel do."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from waiting import in_threads, wait_until

import engine
from engine import CancelToken, Tensor
from engine.host.fair_semaphore import FairSemaphore
from engine.model.model import model_state
from engine.plan.contexts import ContextPool
from engine_testing import models
from engine_testing.interrupts import Interrupter

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Context:
    def __init__(self) -> None:
        self.closed = self.resets = 0

    def reset(self) -> None:
        self.resets += 1

    def close(self) -> None:
        self.closed += 1


class Executable:
    def __init__(self, concurrency: int = 0) -> None:
        self.concurrency = concurrency
        self.contexts: list[Context] = []
        self.closed = 0

    def open_context(self) -> Context:
        self.contexts.append(Context())
        return self.contexts[-1]

    def close(self) -> None:
        assert all(context.closed == 1 for context in self.contexts)
        self.closed += 1


@pytest.fixture
def single(fake: ModuleType, tmp_path: Path) -> engine.Model:
    """y = 2x + 1 on the fake device, which runs one predict at a time."""
    fake.slots = 1
    return engine.load(models.affine(tmp_path), target="fake")


def test_64_threads_of_which_one_predicts_at_a_time_use_one_context(fake, fake_affine) -> None:
    turn, ready = threading.Lock(), threading.Barrier(64)

    def work(index: int) -> None:
        ready.wait()
        for _ in range(3):
            with turn:
                [y] = fake_affine.predict([X + index])
                np.testing.assert_array_equal(y, 2 * X + 2 * index + 1)

    in_threads(64, work)
    assert len(fake.contexts) == 1
    assert fake.contexts[0].resets >= 63  # each thread's arrays were let go of
    fake_affine.close()
    assert fake.contexts[0].closed == 1


def test_16_threads_share_the_two_contexts_that_a_backend_finds_worth_while(fake, tmp_path) -> None:
    fake.slots, fake.delay_s = 2, 0.01
    model = engine.load(models.affine(tmp_path), target="fake")

    def work(_: int) -> None:
        for _ in range(4):
            np.testing.assert_array_equal(model.predict([X])[0], 2 * X + 1)

    in_threads(16, work)
    assert len(fake.contexts) == 2
    assert max(fake.at_once) == 2


def test_who_waits_is_served_in_the_order_of_coming() -> None:
    pool = ContextPool(Executable(concurrency=1))
    held = pool.borrow()
    order: list[int] = []

    def work(index: int) -> None:
        lease = pool.borrow()
        order.append(index)
        pool.give_back(lease)

    with ThreadPoolExecutor(12) as threads:
        served = []
        for index in range(12):
            served.append(threads.submit(work, index))
            wait_until(lambda count=index + 1: pool.semaphore.waiting == count)
        pool.give_back(held)
    assert [each.exception() for each in served] == [None] * 12
    assert order == list(range(12))
    assert pool.open_count == 1


def test_a_thread_gets_its_own_context_back_without_a_reset_and_others_with_one() -> None:
    executable = Executable()
    pool = ContextPool(executable)
    lease = pool.borrow()
    pool.give_back(lease)
    again = pool.borrow(lease)
    assert again is lease
    assert executable.contexts[0].resets == 0
    pool.give_back(again)
    other = pool.borrow()
    assert other.context is executable.contexts[0]
    assert executable.contexts[0].resets == 1
    pool.give_back(other)
    assert lease not in pool.idle  # it finds its own again only if nobody else used the context
    assert pool.borrow(lease) is not lease


def test_waiting_counts_towards_the_deadline(fake: ModuleType, single: engine.Model) -> None:
    fake.delay_s = 300.0
    with ThreadPoolExecutor(1) as thread:
        runs = thread.submit(single.predict, [X])
        wait_until(lambda: fake.running)
        begin = time.monotonic()
        with pytest.raises(
            engine.DeadlineExceeded, match=r"0\.1 s: other predicts lasted to the d"
        ):
            single.predict([X], timeout_s=0.1)
        assert 0.09 < time.monotonic() - begin < 200
        fake.delay_s = 0
    assert runs.result()
    assert single.predict([X], timeout_s=60)  # the place in the queue was given up


def test_waiting_can_be_cancelled(fake: ModuleType, single: engine.Model) -> None:
    fake.delay_s = 300.0
    first, second = CancelToken(), CancelToken()
    with ThreadPoolExecutor(2) as threads:
        runs = threads.submit(single.predict, [X], cancel=first)
        wait_until(lambda: fake.running)
        waits = threads.submit(single.predict, [X], cancel=second)
        wait_until(lambda: model_state(single).plan.pool.semaphore.waiting)
        second.cancel()
        assert isinstance(waits.exception(60), engine.Cancelled)
        assert not runs.done()
        assert len(fake.given) == 1
        first.cancel()
        assert isinstance(runs.exception(60), engine.Cancelled)
    fake.delay_s = 0
    assert single.predict([X])


def test_a_model_closed_while_threads_wait_refuses_them_and_is_freed(fake, single) -> None:
    fake.delay_s = 300.0
    pool = model_state(single).plan.pool
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(single.predict, [X]) for _ in range(4)]
        wait_until(lambda: pool.semaphore.waiting == 3)
        single.close()
        fake.delay_s = 0
    refused = [str(call.exception()) for call in asked if call.exception()]
    assert refused == ["predict failed! the model is closed; build a new one"] * 3
    assert fake.contexts[0].closed == 1
    assert pool.open_count == 0


@contextmanager
def signal_to_this_thread(
    condition: Callable[[], object], handler: Callable[[int, Any], object]
) -> Iterator[None]:
    """Have this thread handle a signal once it has come to that, however long this takes."""

    def send() -> None:
        wait_until(condition)
        signal.pthread_kill(this_thread, signal.SIGUSR1)

    this_thread = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, handler)
    sending = threading.Thread(target=send)
    sending.start()
    try:
        yield
    finally:
        sending.join(100)
        signal.signal(signal.SIGUSR1, before)


def test_a_predict_inside_a_predict_of_its_thread_is_refused_at_a_gate(fake, single) -> None:
    single.predict([X])  # opens its context, and imports what only a first predict does
    seen: list[str] = []

    def handler(number: int, frame: object) -> None:
        with pytest.raises(engine.ModelStateError) as caught:
            single.predict([X])
        seen.append(str(caught.value))
        fake.delay_s = 0

    fake.delay_s = 300.0
    with signal_to_this_thread(lambda: fake.running, handler):
        np.testing.assert_array_equal(single.predict([X])[0], 2 * X + 1)
    assert len(seen) == 1
    assert "in the middle of a predict of the same thread" in seen[0]
    assert single.predict([X])


def test_closing_ends_what_is_idle_now_and_what_is_lent_when_it_comes_back() -> None:
    executable = Executable()
    pool = ContextPool(executable)
    lent, idle = pool.borrow(), pool.borrow()
    pool.give_back(idle)
    pool.close()
    pool.close()
    assert [context.closed for context in executable.contexts] == [0, 1]
    assert executable.closed == 0
    with pytest.raises(engine.ModelStateError, match="closed"):
        pool.borrow(lent)
    pool.give_back(lent)
    assert [context.closed for context in executable.contexts] == [1, 1]
    assert executable.closed == 1


def test_a_lease_that_an_interrupt_lost_is_closed_and_does_not_hold_up_the_rest() -> None:
    executable = Executable()
    pool = ContextPool(executable)
    lost = pool.borrow()
    pool.close()
    del lost
    gc.collect()
    pool.close()  # or the next predict, where it is still open
    assert executable.closed == 1


def test_a_pool_that_a_signal_handler_interrupts_while_it_closes_is_closed_whole() -> None:
    interrupter, interrupted = Interrupter(seed=2), 0
    with interrupter.installed():
        for _ in range(10_000):  # how many are interrupted is up to the machine
            if interrupted > 10:
                break
            pool = ContextPool(executable := Executable())
            for lease in [pool.borrow() for _ in range(5)]:
                pool.give_back(lease)
            before = interrupter.raised
            [*interrupter.calls(pool.close, 1, span_s=40e-6)]
            if interrupter.raised > before and pool.is_closed:  # else it had not begun
                interrupted += 1
                assert executable.closed == 1
            pool.close()
            assert executable.closed == 1
    assert interrupted > 10, interrupted
    assert (interrupter.lost, interrupter.unraisable) == ([], [])


def test_a_context_whose_reset_fails_is_closed_and_the_next_is_new() -> None:
    executable = Executable()
    pool = ContextPool(executable)
    pool.give_back(pool.borrow())
    executable.contexts[0].reset = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        pool.borrow()
    assert executable.contexts[0].closed == 1
    assert pool.borrow().context is executable.contexts[1]
    assert pool.open_count == 1


def test_many_threads_at_a_semaphore_leave_it_as_it_was() -> None:
    semaphore, inside, most = FairSemaphore(3), [], []

    def work(index: int) -> None:
        for step in range(200):
            deadline_s = time.monotonic() + 0.0005 if step % 3 == 0 else None
            try:
                semaphore.acquire(deadline_s)
            except engine.DeadlineExceeded:
                continue
            inside.append(index)
            most.append(len(inside))
            inside.remove(index)
            semaphore.release()

    in_threads(8, work)
    assert max(most) <= 3
    assert is_unused(semaphore)


def test_no_more_enter_than_there_are_slots_and_who_waits_is_always_admitted() -> None:
    semaphore, inside, most = FairSemaphore(2), [], []
    counts = {"entered": 0, "acquired": 0}

    def work(index: int) -> None:
        thread = threading.get_ident()
        for _ in range(1000):
            entered = semaphore.enter(thread)
            if not entered:
                semaphore.acquire(time.monotonic() + 60)  # an error where nobody admits it
            counts["entered" if entered else "acquired"] += 1
            assert not semaphore.enter(thread), "a predict in the middle of another"
            with pytest.raises(engine.ModelStateError, match="in the middle of a predict"):
                semaphore.acquire()
            inside.append(index)
            most.append(len(inside))
            time.sleep(0)
            inside.remove(index)
            semaphore.leave(thread) if entered else semaphore.release()

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(2e-6)
    try:
        in_threads(8, work)
    finally:
        sys.setswitchinterval(interval_s)
    assert max(most) <= 3, "two slots and an extra one"
    assert sum(counts.values()) == 8000
    assert is_unused(semaphore)


def test_the_main_thread_does_not_enter_and_nobody_does_before_who_waits() -> None:
    semaphore = FairSemaphore(1)
    assert not semaphore.enter(threading.get_ident()), "a signal handler may raise in it"
    assert semaphore.enter(7)
    with ThreadPoolExecutor(1) as threads:
        waiter = threads.submit(semaphore.acquire, time.monotonic() + 60)
        wait_until(lambda: semaphore.waiting == 1)
        assert not semaphore.enter(8)
        semaphore.leave(7)
        assert waiter.result(60)


def is_unused(semaphore: FairSemaphore) -> bool:
    return not (semaphore._holders or semaphore._waiting or semaphore._threads)


def test_an_interrupt_that_meets_the_admission_gives_the_slot_back() -> None:
    semaphore = FairSemaphore(1)
    may_go, has_left, slot_is_held = (threading.Event() for _ in range(3))

    def hold() -> None:
        semaphore.acquire()
        slot_is_held.set()
        may_go.wait(60)
        semaphore.release()
        has_left.set()

    def handler(number: int, frame: object) -> None:
        may_go.set()
        has_left.wait(60)  # from here on the slot is the interrupted thread's
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as thread:
        held = thread.submit(hold)
        assert slot_is_held.wait(60)
        interrupted = signal_to_this_thread(lambda: semaphore._waiting, handler)
        with interrupted, pytest.raises(KeyboardInterrupt):
            semaphore.acquire(time.monotonic() + 100)
    held.result()
    semaphore.acquire(time.monotonic() + 60)
    semaphore.release()
    assert is_unused(semaphore)


def test_a_lease_that_was_lost_gives_its_slot_back_for_the_thread_that_had_it() -> None:
    executable = Executable(concurrency=1)
    pool = ContextPool(executable)
    leases: list[Any] = []
    in_threads(1, lambda _: leases.append(pool.borrow()))
    with pytest.raises(engine.DeadlineExceeded, match="no more than 1 run at once"):
        pool.borrow(deadline_s=time.monotonic() + 0.02)
    leases.clear()
    gc.collect()
    lease = pool.borrow(deadline_s=time.monotonic() + 60)
    assert [context.closed for context in executable.contexts] == [1, 0]
    pool.give_back(lease)
    assert pool.open_count == 1


def test_an_interrupt_between_the_loan_and_the_run_leaves_the_model_usable(
    fake: ModuleType, single: engine.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    single.predict([X])
    borrow = ContextPool.borrow

    def interrupt(pool: ContextPool, *arguments: Any) -> Any:
        borrow(pool, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(ContextPool, "borrow", interrupt)
    with pytest.raises(KeyboardInterrupt):
        single.predict([X])
    monkeypatch.setattr(ContextPool, "borrow", borrow)
    gc.collect()  # the traceback, in whose frames the lease is
    for _ in range(2):
        np.testing.assert_array_equal(single.predict([X], timeout_s=60)[0], 2 * X + 1)
    single.close()
    assert all(context.closed == 1 for context in fake.contexts)


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_interrupt_as_the_context_comes_back_leaves_the_model_usable(
    where: str, fake: ModuleType, single: engine.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, interrupted = ContextPool.settle, []

    def interrupt(pool: ContextPool) -> None:
        if interrupted or where == "after":
            settle(pool)
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    monkeypatch.setattr(ContextPool, "settle", interrupt)
    with pytest.raises(KeyboardInterrupt):
        single.predict([X])
    for _ in range(2):
        np.testing.assert_array_equal(single.predict([X], timeout_s=60)[0], 2 * X + 1)
    assert len(fake.contexts) == 1


def test_a_predict_beside_the_end_of_a_thread_waits_for_its_context_and_opens_no_other() -> None:
    executable = Executable()
    pool = ContextPool(executable)
    lease = pool.borrow()
    pool.give_back(lease)
    is_resetting, may_go = threading.Event(), threading.Event()

    def reset() -> None:
        is_resetting.set()
        assert may_go.wait(60)

    executable.contexts[0].reset = reset
    with ThreadPoolExecutor(2) as threads:
        retired = threads.submit(pool.retire, lease)
        assert is_resetting.wait(60)
        other = threads.submit(pool.borrow)
        time.sleep(0.1)
        may_go.set()
    retired.result()
    assert [other.result().context] == executable.contexts
    assert pool.open_count == 1


def test_a_thread_that_ends_during_a_reset_makes_no_room_for_another_context() -> None:
    executable = Executable(concurrency=1)
    pool = ContextPool(executable)
    lease = pool.borrow()
    pool.give_back(lease)
    pool_lent, resets = [], []
    # The sight of another thread in the middle of a reset.
    executable.contexts[0].reset = lambda: pool_lent.append(pool.borrow())
    pool.retire(lease)
    assert pool_lent == []
    executable.contexts[0].reset = lambda: resets.append(True)
    pool.give_back(pool.borrow())
    assert resets == [True]  # at the next use
    assert len(executable.contexts) == 1


@pytest.mark.parametrize("with_outputs", [False, True])
def test_any_thread_stops_a_running_predict(fake, fake_affine, with_outputs) -> None:
    fake.delay_s = 300.0
    token = CancelToken()
    outputs = [Tensor(np.empty_like(X))] if with_outputs else None
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: (wait_until(lambda: fake.running), token.cancel()))
        with pytest.raises(engine.Cancelled, match="predict failed! stopped"):
            fake_affine.predict([X], outputs, cancel=token)
    assert fake.contexts[0].closed == 1  # a context that was stopped is not used again
    fake.delay_s = 0
    np.testing.assert_array_equal(fake_affine.predict([X], outputs)[0], 2 * X + 1)
    assert len(fake.contexts) == 2


def test_a_token_stops_only_while_its_predict_runs(fake, fake_affine) -> None:
    token = CancelToken()
    for _ in range(3):
        np.testing.assert_array_equal(fake_affine.predict([X], cancel=token)[0], 2 * X + 1)
    token.cancel()
    np.testing.assert_array_equal(fake_affine.predict([X])[0], 2 * X + 1)
    with pytest.raises(engine.Cancelled, match="predict failed! cancelled by its owner"):
        fake_affine.predict([X], cancel=token)
    assert len(fake.contexts) == 1
    assert not fake.contexts[0].stopped.is_set()


def test_a_signal_handler_may_cancel_the_predict_that_it_interrupts(fake, fake_affine) -> None:
    fake.delay_s = 300.0
    token = CancelToken()
    cancelled = signal_to_this_thread(lambda: fake.running, lambda *_: token.cancel())
    with cancelled, pytest.raises(engine.Cancelled):
        fake_affine.predict([X], cancel=token)


def test_cancel_is_refused_where_the_backend_cannot(fake: ModuleType, tmp_path: Path) -> None:
    fake.announced.discard("cancel_predict")
    model = engine.load(models.affine(tmp_path), target="fake")
    with pytest.raises(engine.ModelStateError, match=r"cancel: backend 'fake' cannot stop a runni"):
        model.predict([X], cancel=CancelToken())
    with pytest.raises(TypeError, match="cancel"):
        model.predict([X], cancel=True)
    assert model.predict([X])
