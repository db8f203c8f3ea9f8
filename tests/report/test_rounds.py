"""Interleaved rounds of a tuning."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from engine.report.tuning import rounds
from engine.report.tuning.order import LEAST
from engine.report.tuning.rounds import FEWEST, Timings, timed


def test_a_ratio_is_of_rounds_not_of_sums() -> None:
    """A burst of load in one round slows both; it moves no other round's ratio."""
    default, other = Timings(), Timings()
    for load in (1.0, 1.0, 100.0):
        default.add(load, np.array([load]))
        other.add(load / 2, np.array([load / 2]))
    assert other.over(default) == (0.5, 0.5, 0.5)
    assert default.percentile_s(100) == 100.0


def test_functions_take_turns_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(rounds, "_SLICE_S", 0.0)
    names = ("a", "b", "c")
    found = timed([partial(called.append, name) for name in names], 1, 0.0, lambda: None)
    assert [len(each.request_s) for each in found] == [LEAST] * 3
    turns = [name for name, before in zip(called, ["", *called], strict=False) if name != before]
    firsts = {tuple(turns[place : place + 3]) for place in range(3, len(turns) - 2, 3)}
    assert len(firsts) > 1, "the order changes"


def test_threads_that_still_spin_have_a_rest_to_end_it_before_the_next_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ONNX Runtime's spin for up to 20 ms after a run, on the CPUs of whoever runs next."""
    told: list[object] = []
    monkeypatch.setattr(rounds, "_SLICE_S", 0.0)
    monkeypatch.setattr(rounds, "sleep", told.append)
    timed([partial(told.append, "a"), partial(told.append, "b")], 1, 0.0, lambda: None)
    timings = told[2:]  # one call of each says whether it is slow
    rests = [place for place, each in enumerate(timings) if isinstance(each, float)]
    assert [timings[place] for place in rests] == [rounds._REST_S] * 2 * LEAST
    assert rounds._REST_S > 0.02
    assert all(len({*timings[begin:end]}) == 2 for begin, end in zip(rests, [*rests[1:], None]))


def test_what_is_clearly_lost_ends_after_a_few_rounds() -> None:
    fast, slow = partial(time.sleep, 0.001), partial(time.sleep, 0.2)
    default, lost = timed([fast, slow], 1, 1000.0, lambda: None, FEWEST)
    assert len(default.request_s) == len(lost.request_s) == FEWEST
    assert lost.over(default).low > 1.3


def test_a_decision_is_looked_for_after_twice_as_many_rounds_each() -> None:
    """Who looks after each round would take chance for a gain."""
    looks: list[int] = []

    def is_decided(timings: Sequence[Timings]) -> bool:
        assert len(timings) == 2
        looks.append(len(called) // 2)
        return len(looks) == 3

    called: list[int] = []
    slow = partial(time.sleep, 0.06)

    def first() -> None:
        called.append(0)
        slow()

    default, other = timed([first, first], 1, 1000.0, lambda: None, 2, is_decided)
    assert len(default.request_s) == len(other.request_s) == 8
    assert looks == [3, 5, 9], "after 2, 4 and 8 rounds, and one call before them"


def test_it_ends_with_the_time_that_there_is_at_most() -> None:
    """A round of each, whatever the least number of rounds is: more would be over the time."""
    found = timed([partial(time.sleep, 0.06)] * 2, 1, 1000.0, lambda: None, most_s=0.01)
    assert [len(each.request_s) for each in found] == [1, 1]


def test_several_clients_call_at_once() -> None:
    """Four that wait 20 ms each: a request takes 5 ms of the clock, and its latency is 20 ms."""
    [found] = timed([partial(time.sleep, 0.02)], 4, 0.0, lambda: None)
    assert found.percentile_s(0) >= 0.02
    assert min(found.request_s) < 0.02


def test_check_is_asked_between_timings() -> None:
    def check() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        timed([int], 1, 1000.0, check)
