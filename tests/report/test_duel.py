"""Two functions are compared by the times of interleaved calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.errors import Cancelled
from engine.report.choice import duel, limits
from engine.types import CancelToken


def test_a_duel_ends_after_two_rounds_where_it_is_clearly_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    def takes(seconds: float) -> Callable[[], None]:
        def call() -> None:
            now[0] += seconds

        return call

    monkeypatch.setattr(duel, "perf_counter", lambda: now[0])
    rounds = [
        duel.duel(takes(1.0), takes(seconds), 0.0, lambda: None).rounds for seconds in (1.6, 1.4)
    ]
    assert rounds == [2, 3]


def test_a_ratio_is_the_larger_of_median_and_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the default takes 4 s; one of the candidate 2 s, or 3 s each other time."""
    now = [0.0]
    takes = [2.0, 3.0]

    def default() -> None:
        now[0] += 4.0

    def candidate() -> None:
        takes.reverse()
        now[0] += takes[0]

    monkeypatch.setattr(duel, "perf_counter", lambda: now[0])
    found = duel.duel(default, candidate, 0.0, lambda: None)
    assert (found.default_s, found.rounds) == (4.0, 3)
    assert found.fastest == 0.5
    assert found.middle in (0.5, 0.75)
    assert found.ratio == max(found.middle, found.fastest)


def test_cpu_time_counts_only_where_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidate takes 2 s of the CPU in place of 4, and waits."""
    now, cpu = [0.0], [0.0]
    monkeypatch.setattr(duel, "perf_counter", lambda: now[0])
    monkeypatch.setattr(duel, "process_time", lambda: cpu[0])

    def spend(seconds: float, wait: float) -> None:
        now[0] += seconds + wait
        cpu[0] += seconds

    def ratio(wait: float) -> float:
        return duel.duel(
            lambda: spend(4.0, 0.0), lambda: spend(2.0, wait), 0.0, lambda: None, on_one_cpu=True
        ).ratio

    assert ratio(0.0) == 0.5
    assert ratio(1.0) == 0.5
    assert ratio(2.4) == pytest.approx(1.1)
    assert ratio(30.0) == 8.0


def test_a_duel_ends_when_it_is_cancelled() -> None:
    token = CancelToken()
    calls = []

    def call() -> None:
        calls.append(1)
        if len(calls) == 5:
            token.cancel()

    with pytest.raises(Cancelled):
        duel.duel(call, call, 1000.0, token.check)


def test_the_budget_is_five_seconds_unless_it_is_set() -> None:
    assert limits.BUDGET_S == 5.0
