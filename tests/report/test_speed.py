"""Comparisons of speed: intervals against known distributions, rounds, contests."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from itertools import chain, repeat
from random import Random

import numpy as np
import pytest

from engine.report.speed import rounds
from engine.report.speed.contest import Contender, Contest
from engine.report.speed.interval import (
    FEWEST,
    Change,
    Verdict,
    between,
    middle_of,
    paired,
    student,
)
from engine.report.speed.rounds import Clock, times_in_rounds, typical_s


@pytest.mark.parametrize(
    ("freedom", "level", "table"),
    [(4, 0.99, 4.604), (9, 0.99, 3.250), (29, 0.99, 2.756), (4, 0.95, 2.776), (1e9, 0.99, 2.576)],
)
def test_students_quantile_is_that_of_printed_tables(freedom, level, table):
    assert student(freedom, level) == pytest.approx(table, rel=0.01)


def test_a_trimmed_mean_leaves_out_the_ends_and_its_variance_is_yuens():
    # By hand: of ten values the two least and the two greatest go; the kept ones are 3 to 8.
    values = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1000]
    middle = middle_of(values)
    assert middle.mean == pytest.approx(5.5)
    assert middle.freedom == 5
    winsorised = np.array([3, 3, 3, 4, 5, 6, 7, 8, 8, 8])
    assert middle.variance == pytest.approx(((winsorised - winsorised.mean()) ** 2).sum() / 30)


@pytest.mark.parametrize("outliers", [0.0, 0.15])
def test_an_interval_holds_the_true_ratio_as_often_as_it_says(outliers):
    """2000 draws of 20 blocks: at 99.5 %, 10 are expected outside, give or take."""
    chance = np.random.default_rng(3)
    outside = 0
    for _ in range(2000):
        logs = chance.normal(math.log(1.03), 0.02, 20)
        is_disturbed = chance.random(20) < outliers
        logs = logs + is_disturbed * chance.normal(0, 0.2, 20)
        change = paired(logs.tolist())
        outside += not change.low <= 1.03 <= change.high
    assert outside <= 26  # 10 and five deviations


def test_a_clock_takes_off_the_least_that_looking_at_it_takes(monkeypatch):
    """Of 50 looks 30 took 12 us, as on a busy machine; a call of 10 us is none of -2 us."""
    looks = [*repeat(12e-6, 30), *repeat(2e-6, 20), 2e-6 + 10e-6]
    moments = chain.from_iterable((1.0, 1.0 + look) for look in looks)
    monkeypatch.setattr(rounds, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(Clock, "_waited_s", lambda self: 0.0)
    with Clock() as clock:
        assert clock.seconds(lambda: None, 1) == pytest.approx(10e-6, rel=1e-6)


def test_a_wait_that_is_counted_longer_than_the_time_it_was_in_is_not_taken_off(monkeypatch):
    with Clock() as clock:
        waits = iter((0.0, 1.0))
        monkeypatch.setattr(Clock, "_waited_s", lambda self: next(waits))
        assert 1e-3 <= clock.seconds(lambda: time.sleep(1e-3), 1) < 1.0


def test_short_calls_are_timed_together_though_the_first_ones_take_long(monkeypatch):
    """20 of 10 us make 200 us; the second call prepares the later ones, a third is disturbed."""
    asked = []
    seconds = chain((2e-3, 5e-4, 9e-4, 1e-5, 2e-5), repeat(1e-5))

    class Scripted(Clock):
        def seconds(self, call, times):
            call()
            asked.append(times)
            return next(seconds) if len(asked) > 50 else 0.0  # of 50 looks at the clock itself

    monkeypatch.setattr(rounds, "Clock", Scripted)
    times_in_rounds([lambda: None], 0.0, Random(1), lambda: None)
    assert asked[50:57] == [1, 1, 3, 3, 3, 1, 20]


def test_two_runs_are_compared_by_their_own_spreads():
    chance = np.random.default_rng(4)
    outside = 0
    for _ in range(1000):
        now = chance.normal(math.log(1.03), 0.03, 30)
        before = chance.normal(0, 0.01, 12)
        change = between(now.tolist(), before.tolist())
        outside += not change.low <= 1.03 <= change.high
    assert outside <= 17  # 5 and five deviations


@pytest.mark.parametrize(
    ("change", "verdict", "text"),
    [
        (Change(1.05, 1.02, 1.08), Verdict.SLOWER, "slower by 5.0 %"),
        (Change(0.9, 0.85, 0.95), Verdict.FASTER, "faster by 10.0 %"),
        (Change(1.0, 0.99, 1.01), Verdict.UNCHANGED, "no change beyond 3 %"),
        (Change(1.02, 0.99, 1.05), Verdict.UNKNOWN, "cannot tell"),
        (Change(1.003, 1.001, 1.005), Verdict.UNCHANGED, "no change beyond 3 %"),
        (Change(1.0, 0.0, math.inf), Verdict.UNKNOWN, "cannot tell"),
    ],
)
def test_a_verdict_follows_from_the_whole_interval(change, verdict, text):
    assert change.verdict(0.03) is verdict
    assert change.text(0.03) == text


def test_of_few_blocks_nothing_is_said():
    assert paired([0.1] * (FEWEST - 1)).verdict(0.03) is Verdict.UNKNOWN
    assert paired([0.1] * FEWEST).verdict(0.03) is Verdict.SLOWER
    assert between([0.1] * 20, [0.0] * (FEWEST - 1)).verdict(0.03) is Verdict.UNKNOWN


def test_the_clock_counts_sleep_and_work():
    with Clock() as clock:
        assert clock.seconds(lambda: time.sleep(0.02), 2) >= 0.02

        def work() -> None:
            until = time.thread_time() + 0.01
            while time.thread_time() < until:
                pass

        assert clock.seconds(work, 2) >= 0.0099


def test_the_typical_time_is_the_lower_quartile():
    assert typical_s([5.0, 1.0, 2.0, 3.0, 4.0]) == 2.0


@pytest.mark.parametrize("seconds", [0.001, 0.03])
def test_a_round_times_each_once_in_an_order_of_its_own(seconds):
    called: list[int | None] = []
    calls = [lambda place=place: (called.append(place), time.sleep(seconds)) for place in range(3)]
    found = times_in_rounds(calls, 0, Random(1), lambda: called.append(None), least=6)
    assert all(min(first_s, typical_s) >= seconds for first_s, typical_s in found)
    slots = "".join("|" if place is None else str(place) for place in called).split("|")[1:]
    assert len(slots) == 18
    assert all(set(slot) == {slot[0]} for slot in slots)
    rounds = [tuple(slot[0] for slot in slots[at : at + 3]) for at in range(0, 18, 3)]
    assert all(sorted(each) == ["0", "1", "2"] for each in rounds)
    assert len(set(rounds)) > 1
    # A short call has one in each slot that does not count; a long one is timed at once.
    longer = [len(slot) > 1 for slot in slots]
    assert sum(longer) > 9 if seconds < 0.02 else not any(longer)


class Works:
    """Contenders that sleep; counts how often each is opened, and that it is closed."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds
        self.opened = [0] * len(seconds)
        self.open_now = 0

    def contenders(self) -> list[Contender]:
        return [Contender(str(place), self._open(place)) for place in range(len(self.seconds))]

    def _open(self, place):
        @contextmanager
        def opened():
            self.opened[place] += 1
            self.open_now += 1
            try:
                yield lambda: time.sleep(self.seconds[place])
            finally:
                self.open_now -= 1

        return opened


def test_a_contest_builds_anew_for_each_block_and_ends_when_all_is_known():
    works = Works(0.002, 0.002, 0.004)
    contest = Contest(works.contenders(), 0.03, 60)
    passed = [*contest.run()]
    assert works.opened == [len(passed)] * 3 == [len(first) for first in contest.first_s]
    assert works.open_now == 0
    assert len(passed) < 30  # one takes twice as long: soon known
    assert contest.verdict(2) is Verdict.SLOWER
    assert contest.change(2).ratio == pytest.approx(2, rel=0.2)
    assert passed == sorted(passed)


def test_the_first_call_of_each_new_build_is_timed_apart():
    @contextmanager
    def opened():
        waits = chain([0.02], repeat(0.001))
        yield lambda: time.sleep(next(waits))

    contest = Contest([Contender("one", opened), Contender("again", opened)], 1e-6, 0.01)
    assert len([*contest.run()]) == FEWEST
    assert [len(first) for first in contest.first_s] == [FEWEST] * 2
    assert min(map(min, contest.first_s)) >= 0.02


def test_where_equals_differ_nothing_is_said_of_the_others():
    contest = Contest(Works(1, 1, 1).contenders(), 0.03, 60)
    contest.seconds = [[1.0] * 10, [1.2] * 10, [1.5] * 10]
    assert not contest.is_reliable
    assert contest.verdict(1) is Verdict.SLOWER
    assert contest.verdict(2) is Verdict.UNKNOWN
    assert not contest.is_known()
    contest.seconds[1] = [1.0] * 10
    assert contest.verdict(2) is Verdict.SLOWER
    assert contest.is_known()


def test_a_contest_that_is_interrupted_keeps_whole_blocks():
    works = Works(0.001, 0.001)
    checks = iter(range(60))  # a block has eight and more

    def check() -> None:
        if next(checks, None) is None:
            raise InterruptedError

    contest = Contest(works.contenders(), 0.001, 60, check)
    with pytest.raises(InterruptedError):
        for _ in contest.run():
            pass
    assert len(contest.seconds[0]) == len(contest.seconds[1]) == len(contest.build_s[0])
    assert works.open_now == 0


def test_what_takes_long_to_build_is_built_once():
    works = Works(0.001, 0.001, 0.001)
    contenders = works.contenders()

    @contextmanager
    def slow():
        time.sleep(0.2)
        with contenders[2].open() as call:
            yield call

    contest = Contest([*contenders[:2], Contender("slow", slow)], 1e-6, 1.0)
    blocks = len([*contest.run()])
    assert blocks >= FEWEST
    assert works.opened == [1, 1, 1] == [len(first) for first in contest.first_s]
    assert not contest.is_rebuilt
    assert works.open_now == 0


def test_the_clock_takes_off_the_time_that_it_takes():
    with Clock() as clock:
        found = [clock.seconds(lambda: None, 1) for _ in range(200)]
    assert np.median(found) < 1e-6  # half of what reading a clock of the kernel takes


def test_a_contest_ends_with_its_time():
    contest = Contest(Works(0.001, 0.001, 0.001).contenders(), 1e-6, 0.01)
    assert len([*contest.run()]) == FEWEST
