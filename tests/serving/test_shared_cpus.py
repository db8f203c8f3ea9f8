"""Several models share the CPUs of a process: who begins next, and that nobody waits for ever."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import in_threads, wait_until

from engine import Cancelled, CancelToken, DeadlineExceeded
from engine.errors import ModelStateError
from engine.host.fair_semaphore import CallbackWaiter
from engine.serving import shared_cpus
from engine.serving.shared_cpus import SharedCpus, SharedSemaphore, lent

Make = Callable[..., SharedSemaphore]


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Make]:
    """Share so many CPUs among semaphores, which the returned function makes."""

    def share(cpus: int) -> Make:
        monkeypatch.setattr(shared_cpus, "usable_cpus", lambda: cpus)
        monkeypatch.setattr(shared_cpus, "_cpus", SharedCpus())
        return lambda width=1: SharedSemaphore(max(1, cpus // width), width)

    return share


class Run(CallbackWaiter):
    """A predict, which waits in its semaphore and notes that it has begun."""

    __slots__ = ("begun", "name", "semaphore")

    def __init__(
        self, semaphore: SharedSemaphore, name: str, begun: list[str], priority: int = 0
    ) -> None:
        super().__init__(None, priority)
        self.semaphore, self.name, self.begun = semaphore, name, begun
        semaphore.enqueue(self)

    def admitted(self) -> None:
        self.begun.append(self.name)

    def end(self) -> None:
        assert self.admitted_s
        self.semaphore.release(self.owner)


def test_all_models_together_run_as_many_as_there_are_cpus_and_each_may_run_one(cpus) -> None:
    make, begun = cpus(4), []
    a, b, c = (make() for _ in range(3))
    of_a = [Run(a, "a", begun) for _ in range(6)]
    assert begun == ["a"] * 4
    of_b = [Run(b, "b", begun) for _ in range(6)]
    Run(c, "c", begun)
    assert begun[4:] == ["b", "c"]
    of_a[0].end()
    of_a[1].end()
    assert (a.running, b.running, c.running) == (2, 1, 1)  # one more would be the fifth
    of_b[0].end()
    assert (a.running, b.running, c.running) == (2, 1, 1)
    of_a[2].end()
    assert (a.running, b.running, c.running) == (2, 1, 1)  # b has begun one after a
    of_a[3].end()
    assert (a.running, b.running, c.running) == (1, 2, 1)  # and now a after b


def test_free_cpus_go_to_the_highest_priority_of_all_models(cpus) -> None:
    make, begun = cpus(1), []
    a, b = make(), make()
    runs = {"a": Run(a, "a", begun)}
    for name, priority in (("a 0", 0), ("b 1", 1), ("a 3", 3), ("b 2", 2), ("a -1", -1)):
        semaphore = a if name.startswith("a") else b
        runs[name] = Run(semaphore, name, begun, priority)
    assert begun == ["a", "b 1"]  # then of a the first, of b all that it may run beyond the CPU
    for name in ("b 1", "a", "a 3", "b 2", "a 0"):
        runs[name].end()
    assert begun == ["a", "b 1", "a 3", "b 2", "a 0", "a -1"]


def test_a_lower_priority_begins_nothing_beyond_the_cpus_while_a_higher_waits(cpus) -> None:
    make, begun = cpus(2), []
    a, b = make(), make()
    of_a = [Run(a, "a", begun, 5) for _ in range(4)]
    of_b = [Run(b, "b", begun) for _ in range(2)]
    assert begun == ["a", "a"]
    of_a[0].end()
    assert begun == ["a"] * 3
    of_a[1].end()
    assert begun == ["a"] * 4 + ["b"]  # none of a waits, and nothing of b ran
    of_a[2].end()
    assert begun == ["a"] * 4 + ["b"]
    of_a[3].end()
    assert begun == ["a"] * 4 + ["b"] * 2
    for run in of_b:
        run.end()
    assert (a.running, b.running) == (0, 0)


@pytest.mark.parametrize("way", ["withdrawn", "late", "cancelled"])
def test_who_waited_for_a_higher_priority_begins_when_that_has_left(cpus, way: str) -> None:
    make, begun = cpus(1), []
    a, b = make(), make()
    running = Run(a, "a", begun)
    high = Run(a, "high", begun, 9) if way == "withdrawn" else None
    token = CancelToken()
    limits = {"deadline_s": time.monotonic() + 0.2} if way == "late" else {"cancel": token}
    with ThreadPoolExecutor(1) as threads:
        if high is None:
            waiting = threads.submit(lambda: a.acquire(priority=9, **limits))
            wait_until(lambda: a.waiting == 1)
        low = Run(b, "b", begun)
        assert begun == ["a"]
        if high is not None:
            assert a.withdraw(high)
        else:
            token.cancel()
            assert isinstance(waiting.exception(120), (Cancelled, DeadlineExceeded))
    assert begun == ["a", "b"]
    running.end()
    low.end()


def test_models_of_one_priority_take_turns_though_one_has_many_more_requests(cpus) -> None:
    make, begun = cpus(2), []
    a, b = make(), make()
    runs = [Run(a, "a", begun) for _ in range(100)] + [Run(b, "b", begun) for _ in range(4)]
    for _ in range(8):
        min((run for run in runs if run.admitted_s), key=lambda run: run.admitted_s).end()
        runs = [run for run in runs if not run.admitted_s or run.owner in run.semaphore._holders]
    assert begun == ["a", "a", "b", "a", "b", "a", "b", "a", "b", "a"]


def test_a_predict_of_several_threads_takes_as_many_cpus(cpus) -> None:
    make, begun = cpus(4), []
    wide, narrow = make(3), make()
    first = Run(wide, "wide", begun)
    runs = [Run(narrow, "narrow", begun) for _ in range(4)]
    assert begun == ["wide", "narrow"]
    Run(wide, "wide", begun, 1)
    first.end()
    assert begun == ["wide", "narrow", "wide"]
    runs[0].end()
    assert begun == ["wide", "narrow", "wide", "narrow"]
    assert (wide.cpus, narrow.cpus) == (3, 1)


def test_a_short_predict_takes_no_cpu_and_waits_for_none(cpus) -> None:
    make, begun = cpus(1), []
    a, b = make(), make()
    run, waiting = Run(a, "a", begun), Run(a, "a", begun, 100)
    ran = []

    def short() -> None:
        thread = threading.get_ident()
        assert b.enter(thread, 62)
        ran.append(b.cpus)
        b.leave(thread)
        assert b.try_acquire(None, 62)
        ran.append(b.cpus)
        b.release()
        ran.append(b.enter(thread))  # one that is not short waits for the higher priority of `a`

    in_threads(1, lambda _: short())
    assert ran == [0, 0, False]
    run.end()
    waiting.end()


def test_a_predict_that_waits_for_another_models_lends_it_its_cpus(cpus) -> None:
    make, begun = cpus(1), []
    a, b = make(), make()
    assert a.acquire()
    high, low = Run(a, "high", begun, 9), Run(b, "b", begun)
    assert begun == []
    with lent():  # else `high` would wait for `a`, that for b, and b for `high`
        assert begun == ["b"]
        low.end()
        assert a.cpus == 0
    assert a.cpus == 1
    a.release()
    assert begun == ["b", "high"]
    high.end()
    assert (a.cpus, b.cpus) == (0, 0)


def test_who_is_interrupted_as_it_admits_another_models_predict_does_so_again(cpus) -> None:
    make, begun = cpus(1), []
    a, b = make(), make()

    class Interrupt(BaseException):
        pass

    class Interrupted(Run):
        __slots__ = ()

        def admitted(self) -> None:
            super().admitted()
            if len(self.begun) == 1:
                raise Interrupt

    first, high = Run(b, "first", []), Run(b, "high", [], 9)
    run = Interrupted(a, "a", begun)
    assert begun == []
    with pytest.raises(Interrupt):
        b.withdraw(high)
    assert b.withdraw(high)
    assert begun == ["a", "a"]
    assert (a.running, a.waiting) == (1, 0)
    run.end()
    first.end()
    assert (a.running, b.running) == (0, 0)


def test_a_predict_that_would_wait_in_the_middle_of_a_step_is_refused(cpus) -> None:
    make, begun = cpus(1), []
    semaphore = make()

    class Interrupted(Run):
        __slots__ = ()

        def admitted(self) -> None:
            super().admitted()
            with pytest.raises(ModelStateError, match="signal handler or finalizer"), lent():
                pass

    run = Interrupted(semaphore, "a", begun)
    assert begun == ["a"]
    run.end()
    with lent():
        pass


def test_who_waits_of_a_lower_priority_is_found_though_an_interrupt_left_a_rank_empty(cpus) -> None:
    make, begun = cpus(1), []
    semaphore = make()
    first, high = Run(semaphore, "a", begun), Run(semaphore, "b", begun, 9)
    low = Run(semaphore, "c", begun)
    semaphore._waiting[high.rank].clear()  # as between the two steps that take one out
    first.end()
    assert begun == ["a", "c"]
    low.end()


def test_a_short_predict_that_waits_for_a_slot_keeps_no_cpu_from_others(cpus) -> None:
    make, begun = cpus(2), []
    a, b = make(), make()
    short = [Run(a, "short", begun) for _ in range(2)]
    for run in short:
        a._holders[run.owner] = 0  # as a short one has

    def waits() -> None:
        assert a.acquire(extra=62)
        a.release()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(waits)
        wait_until(lambda: a.waiting == 1)
        for _ in range(2):
            Run(b, "b", begun)
        assert begun == ["short", "short", "b", "b"]
        short[0].end()
        waiting.result(120)


def test_a_semaphore_that_is_gone_has_no_cpus(cpus) -> None:
    make, begun = cpus(1), []
    gone, other = make(), make()
    assert gone.acquire()
    del gone
    Run(other, "first", begun)
    Run(other, "second", begun)
    assert begun == ["first"]
    assert len(shared_cpus._cpus.semaphores()) == 1


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("is_nested", [False, True])
def test_whatever_comes_and_goes_all_end_and_no_cpu_is_lost(cpus, count, is_nested) -> None:
    """Threads with deadlines, cancels, priorities, and predicts in predicts, of four models."""
    make = cpus(count)
    semaphores = [make(), make(), make(2), make()]
    running: list[int] = []
    ended: dict[str, int] = {"ran": 0, "left": 0}
    lock = threading.Lock()

    def predict(semaphore: SharedSemaphore, chance: random.Random, inner: int) -> None:
        token = CancelToken()
        kind = chance.randrange(5)
        deadline_s = time.monotonic() + chance.random() / 500 if kind == 1 else None
        canceller = threading.Timer(chance.random() / 500, token.cancel) if kind == 2 else None
        if canceller:
            canceller.start()
        try:
            if kind == 3 and semaphore.enter(threading.get_ident(), chance.choice((0, 62))):
                body(semaphores, chance, inner)
                semaphore.leave(threading.get_ident())
                return
            with lent():
                semaphore.acquire(deadline_s, token, priority=chance.randint(-3, 3))
            try:
                body(semaphores, chance, inner)
            finally:
                semaphore.release()
        except (Cancelled, DeadlineExceeded):
            with lock:
                ended["left"] += 1
        finally:
            if canceller:
                canceller.join()

    def body(semaphores: list[SharedSemaphore], chance: random.Random, inner: int) -> None:
        with lock:
            ended["ran"] += 1
        running.append(sum(each.cpus for each in semaphores))
        if is_nested and chance.random() < 0.3 and inner + 1 < len(semaphores):
            predict(semaphores[inner + 1], chance, inner + 1)
        elif chance.random() < 0.2:
            time.sleep(0.0005)

    def client(number: int) -> None:
        chance = random.Random(number)
        for _ in range(150):
            own = chance.randrange(len(semaphores))
            predict(semaphores[own], chance, own)

    in_threads(12, client)
    assert ended["ran"] > 1000
    assert ended["left"] > 20
    # Beyond the CPUs: the first of each model, and who took back what it had lent.
    assert max(running) <= count + sum(each.width for each in semaphores) + 12 * is_nested
    for semaphore in semaphores:
        assert (semaphore.running, semaphore.waiting, semaphore.cpus) == (0, 0, 0)
    assert all(semaphore.acquire() for semaphore in semaphores)
