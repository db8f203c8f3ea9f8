"""Deadlines of runs: who is called back, in which order, and what does not stop the thread."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field

import pytest

from engine.host import deadlines


@dataclass
class Run:
    """A run that notes when it is stopped, and raises if it is told to."""

    deadline_s: float
    raises: bool = False
    done: bool = False
    stopped_s: float = 0
    stopped: threading.Event = field(default_factory=threading.Event)

    def expire(self) -> None:
        self.stopped_s = time.monotonic()
        self.stopped.set()
        if self.raises:
            raise RuntimeError("it cannot be stopped")


def run(after_s: float, *, raises: bool = False) -> Run:
    watched = Run(time.monotonic() + after_s, raises)
    deadlines.watch(watched)
    return watched


def test_each_run_is_stopped_at_its_own_deadline_whatever_their_order() -> None:
    begin_s, watch = time.monotonic(), deadlines._Watch()
    late, early, middle = (Run(begin_s + after_s) for after_s in (0.3, 0.1, 0.2))
    with watch._runs:  # its thread begins with the last, however slowly they come
        watch.add(late)
        watch.add(early)
    watch.add(middle)
    for one in (late, early, middle):
        assert one.stopped.wait(60)
        assert one.stopped_s >= one.deadline_s
    assert early.stopped_s < middle.stopped_s < late.stopped_s


def test_a_run_that_is_done_is_left_alone() -> None:
    done = Run(time.monotonic() + 0.1, done=True)
    deadlines.watch(done)
    other = run(0.2)
    assert other.stopped.wait(60)
    assert not done.stopped.is_set()


def test_one_that_cannot_be_stopped_does_not_keep_others_from_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, other = run(0.05, raises=True), run(0.2)  # the second is watched already by then
    assert broken.stopped.wait(60)
    assert other.stopped.wait(60)
    assert "was not stopped at its deadline" in caplog.text


def test_deadlines_hold_in_a_forked_child() -> None:
    assert run(0.01).stopped.wait(60)  # the parent's thread runs
    child = os.fork()
    if child == 0:
        os._exit(0 if run(0.01).stopped.wait(60) else 1)
    assert os.waitpid(child, 0)[1] == 0
