"""Contexts are lent for a call: how many there are, who waits, and what close and cancel do."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

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


def wait_until(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.001)


def test_64_threads_of_which_one_predicts_at_a_time_use_one_context(
    fake: ModuleType, tmp_path: Path
) -> None:
    model = engine.load(models.affine(tmp_path), target="fake")
    turn, errors = threading.Lock(), []
    ready = threading.Barrier(64)

    def work(index: int) -> None:
        ready.wait()
        for _ in range(3):
            with turn:
                try:
                    [y] = model.predict([X + index])
                    np.testing.assert_array_equal(y, 2 * X + 2 * index + 1)
                except BaseException as error:
                    errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(fake.contexts) == 1
    assert fake.contexts[0].resets >= 63  # each thread's arrays were let go of
    model.close()
    assert fake.contexts[0].closed == 1


def test_16_threads_share_the_two_contexts_that_a_backend_finds_worth_while(
    fake: ModuleType, tmp_path: Path
) -> None:
    fake.slots, fake.delay_s = 2, 0.01
    model = engine.load(models.affine(tmp_path), target="fake")
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(4):
                np.testing.assert_array_equal(model.predict([X])[0], 2 * X + 1)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
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

    threads = []
    for index in range(12):
        threads.append(threading.Thread(target=work, args=(index,)))
        threads[-1].start()
        wait_until(lambda: len(pool.semaphore._waiting) == index + 1)  # type: ignore[union-attr]  # noqa: B023
    pool.give_back(held)
    for thread in threads:
        thread.join(60)
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


def test_waiting_counts_towards_the_deadline(fake: ModuleType, tmp_path: Path) -> None:
    fake.slots, fake.delay_s = 1, 300.0
    model = engine.load(models.affine(tmp_path), target="fake")
    thread = threading.Thread(target=lambda: model.predict([X]))
    thread.start()
    wait_until(lambda: fake.running)
    begin = time.monotonic()
    with pytest.raises(engine.DeadlineExceeded, match=r"0\.1 s: other predicts lasted to the dead"):
        model.predict([X], timeout_s=0.1)
    assert 0.09 < time.monotonic() - begin < 200
    fake.delay_s = 0
    thread.join()
    assert model.predict([X], timeout_s=60)  # the place in the queue was given up


def test_waiting_can_be_cancelled(fake: ModuleType, tmp_path: Path) -> None:
    fake.slots, fake.delay_s = 1, 300.0
    model = engine.load(models.affine(tmp_path), target="fake")
    first, second, ended = CancelToken(), CancelToken(), []

    def work(token: CancelToken) -> None:
        with pytest.raises(engine.Cancelled):
            model.predict([X], cancel=token)
        ended.append(token)

    threads = [threading.Thread(target=work, args=(first,))]
    threads[0].start()
    wait_until(lambda: fake.running)
    threads.append(threading.Thread(target=work, args=(second,)))
    threads[1].start()
    wait_until(lambda: model_state(model).plan.pool.semaphore._waiting)  # type: ignore[union-attr]
    second.cancel()
    threads[1].join(60)
    assert ended == [second]
    assert len(fake.given) == 1
    first.cancel()
    threads[0].join(60)
    assert ended == [second, first]
    fake.delay_s = 0
    assert model.predict([X])


def test_a_model_closed_while_threads_wait_refuses_them_and_is_freed(
    fake: ModuleType, tmp_path: Path
) -> None:
    fake.slots, fake.delay_s = 1, 300.0
    model = engine.load(models.affine(tmp_path), target="fake")
    pool = model_state(model).plan.pool  # type: ignore[union-attr]
    refused, results = [], []

    def work() -> None:
        try:
            results.append(model.predict([X]))
        except engine.ModelStateError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(pool.semaphore._waiting) == 3)  # type: ignore[union-attr]
    model.close()
    fake.delay_s = 0
    for thread in threads:
        thread.join(60)
    assert len(results) == 1
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


def test_a_predict_inside_a_predict_of_its_thread_is_refused_at_a_gate(
    fake: ModuleType, tmp_path: Path
) -> None:
    fake.slots = 1
    model = engine.load(models.affine(tmp_path), target="fake")
    model.predict([X])  # opens its context, and imports what only a first predict does
    seen: list[str] = []

    def handler(number: int, frame: object) -> None:
        with pytest.raises(engine.ModelStateError) as caught:
            model.predict([X])
        seen.append(str(caught.value))
        fake.delay_s = 0

    fake.delay_s = 300.0
    with signal_to_this_thread(lambda: fake.running, handler):
        np.testing.assert_array_equal(model.predict([X])[0], 2 * X + 1)
    assert len(seen) == 1
    assert "in the middle of a predict of the same thread" in seen[0]
    assert model.predict([X])


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
    executables: list[Executable] = []
    pools: list[ContextPool] = []

    def work() -> None:
        pools[-1].close()

    def prepare() -> None:
        executables.append(Executable())
        pools.append(ContextPool(executables[-1]))
        for lease in [pools[-1].borrow() for _ in range(5)]:
            pools[-1].give_back(lease)

    interrupter, interrupted = Interrupter(seed=2), 0
    with interrupter.installed():
        for _ in range(300):
            prepare()
            before = interrupter.raised
            [*interrupter.calls(work, 1, span_s=40e-6)]
            if interrupter.raised > before and pools[-1].is_closed:  # else it had not begun
                interrupted += 1
                assert executables[-1].closed == 1
            pools[-1].close()
    assert interrupted > 10, interrupted
    assert (interrupter.lost, interrupter.unraisable) == ([], [])
    assert {executable.closed for executable in executables} == {1}


def test_a_context_whose_reset_fails_is_closed_and_the_next_is_new() -> None:
    executable = Executable()
    pool = ContextPool(executable)
    pool.give_back(pool.borrow())

    def fail() -> None:
        raise RuntimeError("no")

    executable.contexts[0].reset = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no"):
        pool.borrow()
    assert executable.contexts[0].closed == 1
    lease = pool.borrow()
    assert lease.context is executable.contexts[1]
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

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert max(most) <= 3
    assert not semaphore._holders
    assert not semaphore._waiting
    assert not semaphore._threads


def test_an_interrupt_that_meets_the_admission_gives_the_slot_back() -> None:
    semaphore = FairSemaphore(1)
    may_go, has_left = threading.Event(), threading.Event()
    slot_is_held = threading.Event()

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

    thread = threading.Thread(target=hold)
    thread.start()
    assert slot_is_held.wait(60)
    interrupted = signal_to_this_thread(lambda: semaphore._waiting, handler)
    with interrupted, pytest.raises(KeyboardInterrupt):
        semaphore.acquire(time.monotonic() + 100)
    thread.join(60)
    semaphore.acquire(time.monotonic() + 60)
    semaphore.release()
    assert not semaphore._holders
    assert not semaphore._waiting
    assert not semaphore._threads


def test_a_lease_that_was_lost_gives_its_slot_back_for_the_thread_that_had_it() -> None:
    executable = Executable(concurrency=1)
    pool = ContextPool(executable)
    leases: list[Any] = []
    thread = threading.Thread(target=lambda: leases.append(pool.borrow()))
    thread.start()
    thread.join(60)
    with pytest.raises(engine.DeadlineExceeded, match="no more than 1 run at once"):
        pool.borrow(deadline_s=time.monotonic() + 0.02)
    leases.clear()
    gc.collect()
    lease = pool.borrow(deadline_s=time.monotonic() + 60)
    assert [context.closed for context in executable.contexts] == [1, 0]
    pool.give_back(lease)
    assert pool.open_count == 1


def test_an_interrupt_between_the_loan_and_the_run_leaves_the_model_usable(
    fake: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.slots = 1
    model = engine.load(models.affine(tmp_path), target="fake")
    model.predict([X])
    borrow, interrupted = ContextPool.borrow, []

    def interrupt(pool: ContextPool, *arguments: Any) -> Any:
        lease = borrow(pool, *arguments)
        if not interrupted:
            interrupted.append(True)
            del lease
            raise KeyboardInterrupt
        return lease

    monkeypatch.setattr(ContextPool, "borrow", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.predict([X])
    gc.collect()  # the traceback, in whose frames the lease is
    for _ in range(2):
        np.testing.assert_array_equal(model.predict([X], timeout_s=60)[0], 2 * X + 1)
    model.close()
    assert all(context.closed == 1 for context in fake.contexts)


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_interrupt_as_the_context_comes_back_leaves_the_model_usable(
    where: str, fake: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.slots = 1
    model = engine.load(models.affine(tmp_path), target="fake")
    settle, interrupted = ContextPool.settle, []

    def interrupt(pool: ContextPool) -> None:
        if interrupted:
            settle(pool)
            return
        interrupted.append(True)
        if where == "after":
            settle(pool)
        raise KeyboardInterrupt

    monkeypatch.setattr(ContextPool, "settle", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.predict([X])
    for _ in range(2):
        np.testing.assert_array_equal(model.predict([X], timeout_s=60)[0], 2 * X + 1)
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

    executable.contexts[0].reset = reset  # type: ignore[method-assign]
    ending = threading.Thread(target=pool.retire, args=(lease,))
    ending.start()
    assert is_resetting.wait(60)
    borrowed: list[Any] = []
    other = threading.Thread(target=lambda: borrowed.append(pool.borrow()))
    other.start()
    other.join(0.1)
    may_go.set()
    for thread in (ending, other):
        thread.join(60)
    assert [lease.context for lease in borrowed] == executable.contexts
    assert pool.open_count == 1


def test_a_thread_that_ends_during_a_reset_makes_no_room_for_another_context() -> None:
    executable = Executable(concurrency=1)
    pool = ContextPool(executable)
    lease = pool.borrow()
    pool.give_back(lease)
    pool_lent = []
    # What another thread sees in the middle of a reset.
    executable.contexts[0].reset = lambda: pool_lent.append(pool.borrow())  # type: ignore[method-assign]
    pool.retire(lease)
    assert pool_lent == []
    resets: list[bool] = []
    executable.contexts[0].reset = lambda: resets.append(True)  # type: ignore[method-assign]
    pool.give_back(pool.borrow())
    assert resets == [True]  # at the next use
    assert len(executable.contexts) == 1


# ------------------------------------------------------------------------------------------ cancel


@pytest.mark.parametrize("with_outputs", [False, True])
def test_any_thread_stops_a_running_predict(
    fake: ModuleType, tmp_path: Path, with_outputs: bool
) -> None:
    fake.delay_s = 300.0
    model = engine.load(models.affine(tmp_path), target="fake")
    token = CancelToken()
    thread = threading.Thread(target=lambda: (wait_until(lambda: fake.running), token.cancel()))
    thread.start()
    outputs = [Tensor(np.empty_like(X))] if with_outputs else None
    begin = time.monotonic()
    with pytest.raises(engine.Cancelled, match="predict failed! stopped"):
        model.predict([X], outputs, cancel=token)
    assert time.monotonic() - begin < 200
    thread.join()
    assert fake.contexts[0].closed == 1  # a context that was stopped is not used again
    fake.delay_s = 0
    np.testing.assert_array_equal(model.predict([X], outputs)[0], 2 * X + 1)
    assert len(fake.contexts) == 2


def test_a_token_stops_only_while_its_predict_runs(fake: ModuleType, tmp_path: Path) -> None:
    model = engine.load(models.affine(tmp_path), target="fake")
    token = CancelToken()
    for _ in range(3):
        np.testing.assert_array_equal(model.predict([X], cancel=token)[0], 2 * X + 1)
    token.cancel()
    np.testing.assert_array_equal(model.predict([X])[0], 2 * X + 1)
    with pytest.raises(engine.Cancelled, match="predict failed! cancelled by its owner"):
        model.predict([X], cancel=token)
    assert len(fake.contexts) == 1
    assert not fake.contexts[0].stopped.is_set()


def test_a_signal_handler_may_cancel_the_predict_that_it_interrupts(
    fake: ModuleType, tmp_path: Path
) -> None:
    fake.delay_s = 300.0
    model = engine.load(models.affine(tmp_path), target="fake")
    token = CancelToken()
    with (
        signal_to_this_thread(lambda: fake.running, lambda number, frame: token.cancel()),
        pytest.raises(engine.Cancelled),
    ):
        model.predict([X], cancel=token)


def test_cancel_is_refused_where_the_backend_cannot(fake: ModuleType, tmp_path: Path) -> None:
    fake.announced.discard("cancel_predict")
    model = engine.load(models.affine(tmp_path), target="fake")
    with pytest.raises(engine.ModelStateError, match=r"cancel: backend 'fake' cannot stop a runni"):
        model.predict([X], cancel=CancelToken())
    with pytest.raises(TypeError, match="cancel"):
        model.predict([X], cancel=True)  # type: ignore[arg-type]
    assert model.predict([X])
