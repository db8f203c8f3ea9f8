"""Scenarios of `engine bench`: queries, figures, the search for a rate; deviations."""

from __future__ import annotations

import numpy as np
import pytest

from engine.report.measurement import BenchResult
from engine.report.scenarios import Scenario, best_rate, metric_of, query_of, search
from engine.report.speed.deviation import deviations
from engine.report.sweep import Point
from engine.types import DType, TensorSpec


def result(latencies, seconds=1.0, batch=1):
    return BenchResult("", "null", (), 1, None, 0, 1, seconds, np.asarray(latencies), batch=batch)


def test_each_scenario_has_the_figure_of_mlperfs_rules():
    latencies = np.arange(1, 101) * 1e-3  # 1 to 100 ms: linear percentiles by hand
    found = result(latencies, seconds=5.05, batch=4)
    assert metric_of(Scenario.SINGLE_STREAM, found).value == pytest.approx(0.0901)
    assert metric_of(Scenario.MULTI_STREAM, found).value == pytest.approx(0.09901)
    assert metric_of(Scenario.OFFLINE, found).value == pytest.approx(400 / 5.05)


def test_a_query_of_several_samples_is_a_batch_where_the_model_takes_one():
    calls, fitted = [], []
    spec = TensorSpec("x", DType.FLOAT32, ("batch", 2))
    query = query_of([spec], [np.ones((1, 2), np.float32)], 8, calls.append, fitted.append)
    query.call()
    assert (query.samples, query.runs, len(calls)) == (8, 1, 1)
    assert calls[0][0].shape == fitted[0][0].shape == (8, 2)


@pytest.mark.parametrize(("batch", "samples", "runs"), [(1, 8, 8), (4, 8, 2), (3, 9, 3)])
def test_a_query_to_a_model_of_fixed_batch_is_several_runs(batch, samples, runs):
    calls = []
    spec = TensorSpec("x", DType.FLOAT32, (batch, 2))
    query = query_of([spec], [np.ones((batch, 2), np.float32)], 8, calls.append, calls.append)
    query.call()
    assert (query.samples, query.runs, len(calls)) == (samples, runs, runs)


def tried(limit_per_s):
    """Return a server whose p99 is within 10 ms up to a rate."""
    rates = []

    def measured(rate):
        rates.append(rate)
        latency_s = 0.005 if rate <= limit_per_s else 0.02
        return Point(result(np.full(100, latency_s)), rate, 100)

    return measured, rates


@pytest.mark.parametrize("limit_per_s", [30.0, 77.0, 79.9, 95.0, 200.0])
def test_the_search_finds_the_highest_rate_within_the_bound(limit_per_s):
    measured, rates = tried(limit_per_s)
    points = search(100.0, 0.01, measured)
    assert [point.rate_per_s for point in points] == sorted(rates)
    best = best_rate(points)
    assert best <= limit_per_s
    assert best >= 0.92 * min(limit_per_s, 105.0)


def test_where_no_rate_is_within_the_bound_there_is_none():
    points = search(100.0, 0.01, tried(0.0)[0])
    assert best_rate(points) is None
    assert best_rate([]) is None
    assert search(100.0, 0.01, lambda rate: None) == []


def test_the_deviation_of_a_percentile_is_that_of_many_measurements():
    """Against 300 measurements: independent runs, and runs whose stretches are slow together."""
    chance = np.random.default_rng(5)

    def steady():
        return chance.normal(10, 1, 4000)

    def drifting():
        return chance.normal(10, 1, 4000) + np.repeat(chance.normal(0, 1, 40), 100)

    for measure in (steady, drifting):
        true = np.std([np.percentile(measure(), [50, 90]) for _ in range(300)], axis=0)
        told = np.mean([deviations(measure(), [50, 90]) for _ in range(30)], axis=0)
        assert told == pytest.approx(true, rel=0.3)


@pytest.mark.parametrize("count", [1, 2, 3, 39, 41])
def test_the_deviation_of_few_runs_is_a_number(count):
    found = deviations(np.arange(1.0, count + 1), [50, 99.9])
    assert all(0 <= value < count for value in found)
    assert (count > 1) == (found[0] > 0)
