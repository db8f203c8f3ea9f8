"""The supervisor's decisions, on workers that are no processes."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from waiting import wait_until

from engine import CancelToken, Context
from engine.errors import Cancelled, DeadlineExceeded, InputError, ModelError, ModelStateError
from engine.formats.opened import FileVersion
from engine.types import DType, TensorSpec
from engine.workers import Assignment, Lost, Ready, worker_slot
from engine.workers.supervisor import Supervisor
from engine.workers.worker_slot import WorkerState

SPECS = (TensorSpec("x", DType.FLOAT32, ("n",)),)


class Fake:
    """A worker in this process. `plan`: functions that its builds and runs call.

    has_sentinel: without one it is asked whether it has ended.
    """

    started: list[Fake]
    on_build: Callable[[Fake], None]
    on_run: Callable[[Fake, Any], None]
    has_sentinel = True

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.ran: list[float] = []
        self.is_closed = False
        self.stopped = threading.Event()
        self._ended = threading.Event()
        self._why = ""
        self._ends = os.pipe() if self.has_sentinel else ()
        self.pid = 1000 + len(self.started)
        self.started.append(self)

    @property
    def sentinel(self) -> int | None:
        return self._ends[0] if self._ends else None

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def build(self, progress: Any) -> Ready:
        type(self).on_build(self)
        self.check()
        return Ready(SPECS, SPECS, keeps_deadlines=False, can_stop=True, data_files={})

    def check(self) -> None:
        if self.has_ended:
            raise Lost(self._why)

    def run(self, values: Any, deadline_s: float | None, may_stop: bool = True) -> list[Any]:
        if self.has_ended:
            raise Lost(self._why, had_begun=False)
        self.ran.append(float(values[0][0]))
        type(self).on_run(self, values)
        self.check()
        return [value + 1 for value in values]

    def stop(self) -> None:
        self.stopped.set()

    def wait(self) -> None:
        """Be at work until it is ended."""
        assert self._ended.wait(30)

    def end(self, why: str) -> None:
        self._why = self._why or why
        if not self._ended.is_set():
            self._ended.set()
            if self._ends:
                os.write(self._ends[1], b".")

    def close(self) -> None:
        self.end("closed")
        ends, self._ends = self._ends, ()
        for end in ends:
            os.close(end)
        self.is_closed = True


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    monkeypatch.setattr(worker_slot, "_PAUSE_S", 0.001)
    monkeypatch.setattr(worker_slot, "_LONGEST_PAUSE_S", 0.01)

    class Kind(Fake):
        started: list[Fake] = []  # noqa: RUF012
        on_build = staticmethod(lambda worker: None)
        on_run = staticmethod(lambda worker, values: None)

    return Kind


Make = Callable[..., Supervisor]


@pytest.fixture
def supervise(kind: type[Fake]) -> Iterator[Make]:
    made: list[Supervisor] = []

    def make(workers: int = 2, hang_s: float | None = None) -> Supervisor:
        tasks = [
            Assignment(place=n, count=workers, device_id=n, model_path="m", context=Context())
            for n in range(workers)
        ]
        made.append(Supervisor(tasks, kind, hang_s))
        made[-1].build(None, None)
        return made[-1]

    yield make
    for supervisor in made:
        supervisor.close("over")
    assert all(worker.is_closed for worker in kind.started)


def run(supervisor: Supervisor, number: float, **limits: Any) -> float:
    values = [np.array([number], np.float32)]
    limits = {"deadline_s": None, "cancel": None, **limits}
    [result] = supervisor.run(values, **limits)
    return float(result[0])


def is_ready(supervisor: Supervisor) -> bool:
    return all(slot.state is WorkerState.READY for slot in supervisor.slots)


@pytest.mark.parametrize("has_sentinel", [True, False])
def test_an_end_is_seen_at_once_or_soon(has_sentinel, kind, supervise, monkeypatch) -> None:
    if has_sentinel:  # without one, its slot looks now and then
        monkeypatch.setattr(worker_slot, "_LOOK_S", 300.0)
    kind.has_sentinel = has_sentinel
    supervisor = supervise(1)
    kind.started[0].end("died")
    wait_until(lambda: len(kind.started) == 2 and is_ready(supervisor))
    assert kind.started[0].is_closed
    assert run(supervisor, 1) == 2


def test_starts_that_fail_are_tried_again_after_longer_and_longer_pauses(
    kind: type[Fake], supervise: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_slot, "_PAUSE_S", 0.02)
    monkeypatch.setattr(worker_slot, "_LONGEST_PAUSE_S", 1.0)
    supervisor = supervise(1)
    times: list[float] = []

    def fail_thrice(worker: Fake) -> None:
        times.append(time.monotonic())
        if len(times) <= 3:
            worker.end("died in its build")

    kind.on_build = staticmethod(fail_thrice)
    for _ in range(2):  # a start that succeeds begins anew
        times.clear()
        kind.started[-1].end("died")
        assert run(supervisor, 1) == 2
        pauses = np.diff(times)
        assert len(pauses) == 3
        assert (pauses > [0.02, 0.04, 0.08]).all()
        assert supervisor.slots[0].why == ""


def test_a_device_whose_starts_fail_for_long_is_tried_again_and_comes_back(
    kind: type[Fake], supervise: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        worker_slot, "_HEALTHY_S", 0.0
    )  # the first worker may not have run anything
    supervisor = supervise(2)
    first, second = sorted(kind.started, key=lambda worker: worker.assignment.place)

    def fail_first(worker: Fake) -> None:
        if worker.assignment.place == 0:
            raise ModelError("its device is gone")

    def starts_of(place: int) -> int:
        return sum(worker.assignment.place == place for worker in kind.started)

    kind.on_build = staticmethod(fail_first)
    first.end("died")
    wait_until(lambda: starts_of(0) > 30)
    assert supervisor.slots[0].why == "ModelError: its device is gone"
    assert run(supervisor, 1) == 2  # by the other
    kind.on_build = staticmethod(lambda worker: worker.end("died in its build"))
    second.end("died")
    wait_until(lambda: starts_of(1) > 30)
    with pytest.raises(DeadlineExceeded, match=r"no worker is ready: worker 0 .* died in its"):
        run(supervisor, 1, deadline_s=time.monotonic() + 0.1)
    with ThreadPoolExecutor(4) as clients:  # what waits is lost neither
        waiting = [clients.submit(run, supervisor, number) for number in range(8)]
        kind.on_build = staticmethod(lambda worker: None)
        assert [request.result(30) for request in waiting] == [n + 1 for n in range(8)]
    wait_until(lambda: is_ready(supervisor))
    assert supervisor.count == 2


@pytest.mark.parametrize("times", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_a_device_that_goes_away_again_and_again_comes_back_each_time(
    times: int, kind: type[Fake], supervise: Make
) -> None:
    """More starts fail in a row each time than a device was once given up after: 8."""
    supervisor = supervise(1)
    failures: list[Fake] = []

    def fail(worker: Fake) -> None:
        if len(failures) < 10:
            failures.append(worker)
            worker.end("died in its build")

    kind.on_build = staticmethod(fail)
    for number in range(times):
        failures.clear()
        kind.started[-1].end("died")
        wait_until(lambda: len(failures) == 10 and is_ready(supervisor))
        assert run(supervisor, number) == number + 1


def test_no_pause_between_starts_keeps_a_device_away_for_two_seconds(
    kind: type[Fake], supervise: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    supervisor = supervise(1)
    pauses: list[float] = []
    monkeypatch.setattr(supervisor.slots[0], "_sleep", pauses.append)
    # More than the doublings that a float can hold.
    kind.on_build = staticmethod(lambda worker: worker.end("died") if len(pauses) < 1100 else None)
    kind.started[0].end("died")
    wait_until(lambda: len(pauses) >= 1100 and is_ready(supervisor))
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert max(pauses) == 1.0
    assert run(supervisor, 1) == 2


def test_a_worker_that_ends_as_soon_as_it_has_built_was_a_start_that_failed(
    kind: type[Fake], supervise: Make
) -> None:
    supervisor = supervise(1)
    kind.on_build = staticmethod(lambda worker: threading.Timer(0.02, worker.end, ["died"]).start())
    kind.started[0].end("died")
    wait_until(lambda: len(kind.started) > 8 and "as soon as" in supervisor.slots[0].why)
    kind.on_build = staticmethod(lambda worker: None)
    assert run(supervisor, 1) == 2


@pytest.mark.parametrize("is_moved", [False, True])
def test_over_files_that_have_changed_nothing_starts_until_they_are_back(
    is_moved: bool, kind: type[Fake], supervise: Make, tmp_path: Path
) -> None:
    supervisor = supervise(1)
    path, other = tmp_path / "model", tmp_path / "other"
    path.write_bytes(b"model")
    slot = supervisor.slots[0]
    version = FileVersion.of(os.stat(path))
    slot.assignment = replace(slot.assignment, model_path=str(path), version=version)
    path.rename(other)
    if not is_moved:
        path.write_bytes(b"another")
    kind.on_build = staticmethod(lambda worker: worker.end("found another model"))
    kind.started[0].end("died")
    with pytest.raises(ModelError, match=r"no worker is left.*files that have changed"):
        run(supervisor, 1)
    count = len(kind.started)
    kind.on_build = staticmethod(lambda worker: None)
    time.sleep(0.1)
    assert len(kind.started) == count
    other.rename(path)
    wait_until(lambda: is_ready(supervisor))
    assert run(supervisor, 1) == 2


def test_a_request_that_ends_its_workers_runs_alone_on_a_fresh_one_and_is_refused(
    kind: type[Fake], supervise: Make
) -> None:
    supervisor = supervise(2)
    assert run(supervisor, 1) == 2
    kind.on_run = staticmethod(
        lambda worker, values: worker.end("died") if worker.ran[-1] < 0 else 0
    )
    with pytest.raises(ModelError, match="has ended 3 workers"):
        run(supervisor, -1)
    killed = [worker for worker in kind.started if -1 in worker.ran]
    assert len(killed) == 3
    assert killed[-1].ran == [-1]
    assert run(supervisor, 1) == 2
    assert supervisor.retries == 2


def test_no_other_request_takes_the_fresh_worker_meanwhile(kind, supervise) -> None:
    supervisor = supervise(2)
    is_open = threading.Event()
    ended: list[Fake] = []

    def work(worker: Fake, values: Any) -> None:
        if worker.ran[-1] < 0:
            ended.append(worker)
            worker.end("died")
        elif worker.ran[-1] == 5:
            is_open.wait(30)

    kind.on_run = staticmethod(work)
    with ThreadPoolExecutor(20) as clients:
        poison = clients.submit(run, supervisor, -1)
        others = [clients.submit(run, supervisor, number) for number in range(5)]
        with pytest.raises(ModelError, match="has ended 3 workers"):
            poison.result(30)
        is_open.set()
        assert [other.result(30) for other in others] == [1, 2, 3, 4, 5]
    assert ended[-1].ran == [-1]


def test_a_worker_that_died_before_it_heard_of_a_request_does_not_count(kind, supervise) -> None:
    supervisor = supervise(1)
    deaths: list[int] = []

    def die_unheard(worker: Fake, values: Any) -> None:
        if len(deaths) < 5:
            deaths.append(1)
            worker.end("died")
            raise Lost("died", had_begun=False)

    kind.on_run = staticmethod(die_unheard)
    assert run(supervisor, 1) == 2


def test_an_error_of_the_model_is_the_callers_and_no_reason_to_restart(kind, supervise) -> None:
    supervisor = supervise(1)

    def refuse(worker: Fake, values: Any) -> None:
        raise InputError("it does not fit")

    kind.on_run = staticmethod(refuse)
    with pytest.raises(InputError, match="it does not fit"):
        run(supervisor, 1)
    assert len(kind.started) == 1


def test_what_hangs_is_ended_and_run_again(kind: type[Fake], supervise: Make) -> None:
    supervisor = supervise(1, hang_s=1.0)
    kind.on_run = staticmethod(lambda worker, values: worker.wait() if len(kind.started) < 2 else 0)
    assert run(supervisor, 1) == 2
    assert len(kind.started) == 2


def test_what_passes_its_deadline_or_is_cancelled_is_ended_and_not_run_again(
    kind: type[Fake], supervise: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.workers.watchdog.GRACE_S", 0.05)
    supervisor = supervise(1)
    kind.on_run = staticmethod(lambda worker, values: worker.wait())
    with pytest.raises(DeadlineExceeded):
        run(supervisor, 1, deadline_s=time.monotonic() + 1)
    token = CancelToken()
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(run, supervisor, 2, cancel=token)
        wait_until(lambda: any(2 in worker.ran for worker in kind.started))
        token.cancel()
        with pytest.raises(Cancelled):
            asked.result(60)
    [asked] = [worker for worker in kind.started if 2 in worker.ran]
    assert asked.stopped.is_set()  # first, and it did not
    assert [worker.ran for worker in kind.started if worker.ran] == [[1], [2]]


def test_those_that_wait_for_a_worker_keep_their_deadline_and_are_failed_by_the_end(
    kind: type[Fake], supervise: Make
) -> None:
    supervisor = supervise(1)
    is_open = threading.Event()
    kind.on_build = staticmethod(lambda worker: is_open.wait(30) and None)
    kind.started[0].end("died")
    with pytest.raises(DeadlineExceeded):
        run(supervisor, 1, deadline_s=time.monotonic() + 0.05)
    with ThreadPoolExecutor(1) as clients:
        waiting = clients.submit(run, supervisor, 1)
        supervisor.abort("it is over")
        with pytest.raises(ModelStateError, match="it is over"):
            waiting.result(30)
    is_open.set()


def test_an_interrupt_at_any_call_leaves_place_and_slot_to_the_next_request(
    kind: type[Fake], supervise: Make
) -> None:
    supervisor = supervise(1)
    kept: list[KeyboardInterrupt] = []  # an error has the frames of its request, with what it held
    for step in range(200):  # fewer calls than that are made
        sys.settrace(interrupting(step))
        try:
            run(supervisor, 1)
            break
        except KeyboardInterrupt as error:
            kept.append(error)
        finally:
            sys.settrace(None)
        wait_until(lambda: is_ready(supervisor) and supervisor.slots[0].is_free)
        assert run(supervisor, 2) == 3
    assert len(kept) > 10


def interrupting(step: int) -> Callable[[FrameType, str, Any], None]:
    """Return a trace function that raises as a function of the package is called."""
    calls = iter(range(step + 1))

    def interrupt(frame: FrameType, event: str, argument: Any) -> None:
        if "/engine/" in frame.f_code.co_filename and next(calls, -1) == step:
            raise KeyboardInterrupt

    return interrupt
