"""Confidence bounds by the order of values, and what the last comparison of a tuning proves.

Numbers are drawn, with a seed; no clock is read.
"""

from __future__ import annotations

import math
from fractions import Fraction
from math import comb

import numpy as np
import pytest

from engine.report.choice.contest import MARGIN
from engine.report.tuning.order import LEAST, interval, percentile_bounds, rank
from engine.report.tuning.proof import CHANCE, P99_CHANCE, Proof
from engine.report.tuning.rounds import Timings


@pytest.mark.parametrize("count", [LEAST, 8, 9, 12, 20, 37, 50, 200, 999])
def test_the_interval_has_the_true_median_in_95_of_100_cases(count: int) -> None:
    """By the binomial distribution: the median is inside unless too many values are on one side."""
    ordered = list(range(count))
    _, low, high = interval(ordered)
    outside = sum(comb(count, below) for below in range(int(low) + 1)) / 2**count
    assert high == count - 1 - low
    assert 2 * outside <= 0.05
    further = outside + comb(count, int(low) + 1) / 2**count
    assert 2 * further > 0.05, "it is no wider than it must be"


def test_the_interval_of_few_values_has_all_of_them() -> None:
    assert interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert interval([5.0]) == (5.0, 5.0, 5.0)


@pytest.mark.parametrize("share", [Fraction(1, 2), Fraction(1, 100), Fraction(9, 10)])
@pytest.mark.parametrize("count", [1, 7, 30, 368, 700])
@pytest.mark.parametrize("chance", [0.01, 0.025, 0.975])
def test_a_rank_is_a_quantile_of_the_binomial_distribution(
    share: Fraction, count: int, chance: float
) -> None:
    found = rank(count, float(share), chance)
    terms = [comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(found + 1)]
    assert sum(terms[:found]) <= chance < sum(terms) or found == count


def test_a_rank_of_many_values_does_not_underflow() -> None:
    """By the normal distribution: half less 2.326 standard deviations, which are 158."""
    assert rank(100_000, 0.5, 0.01) == pytest.approx(50_000 - 2.326 * 158.1, abs=2)


def test_a_bound_of_the_p99_takes_368_requests() -> None:
    """0.99 to the power of 367 is above 0.025, that of 368 below."""
    assert percentile_bounds(np.arange(367.0), 0.01, 0.025)[1] == math.inf
    assert percentile_bounds(np.arange(368.0), 0.01, 0.025)[1] == 367
    assert 0.99**368 <= P99_CHANCE / 2 < 0.99**367, "the first look"


def test_bounds_of_the_p99_are_missed_as_seldom_as_they_say() -> None:
    chance = np.random.default_rng(1)
    true = -math.log(0.01)  # of the exponential distribution
    found = [percentile_bounds(chance.exponential(size=1000), 0.01, 0.025) for _ in range(2000)]
    below = sum(low > true for low, _ in found)
    above = sum(high < true for _, high in found)
    # 50 of each are allowed, give or take five deviations; fewer than 10 would be too wide.
    assert 10 <= below <= 85
    assert 10 <= above <= 85


# ------------------------------------------------------------------------------- what it decides


def proven(ratios: np.ndarray) -> Proof:
    """Look at drawn ratios as they come in, until it is decided or they are over."""
    proof = Proof(None)
    values = ratios.tolist()
    for count in range(LEAST, len(values) + 1):
        if proof.is_due(count) and proof.look(values[:count], ()):
            return proof
    proof.look(values, ())
    return proof


DRAWN = {
    "normal": lambda chance, size: np.exp(chance.normal(0, 0.2, size)),
    "with bursts": lambda chance, size: np.exp(
        chance.normal(0, 0.1, size) + chance.normal(0, 2, size) * (chance.random(size) < 0.2)
    ),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_equal_setups_are_told_apart_in_2_of_100_cases_at_most(kind: str) -> None:
    """With noise of 20 % the margin of 3 % is no help: only the intervals keep chance out."""
    chance = np.random.default_rng(0)
    count, wrong, looks = 5000, 0, set()
    for _ in range(count):
        length = int(chance.integers(LEAST, 8 * LEAST))  # until the time is over
        found = proven(DRAWN[kind](chance, length))
        wrong += found.is_faster
        looks.add(found._looks)
    assert len(looks) == 4, "at 7, 14 and 28, and in the end"
    assert wrong <= CHANCE * count
    assert wrong >= CHANCE * count / 4, "it is not needlessly strict"


def test_a_gain_is_found() -> None:
    """A tenth less time, with noise of 5 %, in 28 rounds at most."""
    chance = np.random.default_rng(2)
    found = [proven(0.9 * np.exp(chance.normal(0, 0.05, 28))).is_faster for _ in range(500)]
    assert sum(found) >= 490


def test_a_gain_below_the_margin_is_none() -> None:
    assert not proven(np.full(60, MARGIN + 0.001)).is_faster
    assert proven(np.full(60, MARGIN - 0.001)).is_faster


def test_fewer_than_seven_ratios_prove_nothing() -> None:
    proof = Proof(None)
    proof.look([0.1] * (LEAST - 1), ())
    assert not proof.is_faster
    assert proven(np.full(LEAST, 0.1)).is_faster


def test_equal_numbers_are_looked_at_once() -> None:
    """A look that brings nothing new costs no chance."""
    proof = Proof(None)
    assert proof.look([0.9] * 5 + [1.1] * 2, ()) is False
    before = proof.ratio
    proof.look([0.9] * 5 + [1.1] * 2, ())
    assert proof.ratio == before
    assert proof.is_due(2 * LEAST)


# ------------------------------------------------------------------------------------ with a limit


def requests(count: int, usual_s: float, late_s: float = 0.0, late: int = 0) -> Timings:
    made = Timings()
    made.add(usual_s, np.array([usual_s] * (count - late) + [late_s] * late))
    return made


def test_a_setup_must_be_known_to_keep_the_limit() -> None:
    fast = [0.5] * LEAST
    for count, late, keeps in ((367, 0, None), (368, 0, True), (1000, 2, True), (1000, 30, False),
                               (1000, 10, None)):  # fmt: skip
        proof = Proof(2.0)
        is_decided = proof.look(fast, [requests(count, 1.0), requests(count, 0.5, 3.0, late)])
        assert proof.keeps[1] is keeps, (count, late)
        assert is_decided is (keeps is not None)
        assert proof.is_better is (keeps is True)


def test_a_slower_setup_is_better_where_it_alone_is_known_to_keep_the_limit() -> None:
    slow = [1.5] * LEAST
    within, late, few = requests(1000, 1.0), requests(1000, 1.0, 3.0, 50), requests(50, 1.0)
    for default, is_decided, is_better in ((within, True, False), (late, True, True),
                                           (few, False, True)):  # fmt: skip
        proof = Proof(2.0)
        assert proof.look(slow, [default, within]) is is_decided
        assert proof.is_better is is_better
        assert not proof.is_faster
