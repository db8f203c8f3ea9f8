"""The scenarios of MLPerf Inference, as LoadGen issues their queries and judges them.

MLPerf Inference Rules, "Scenarios" (github.com/mlcommons/inference_policies): a single stream sends
a sample when the last one is answered, a multi-stream eight samples; a server gets samples at the
times of a Poisson process; offline, all samples are there from the start. A result that counts for
MLPerf also needs ten minutes, its accuracy tests and LoadGen itself; `bench/loadgen.py` runs that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from engine.errors import InputError
from engine.report.measurement import BenchResult, batch_of
from engine.report.sweep import Point, batch_axes, in_batch
from engine.types import TensorSpec

SAMPLES = 8
"""Samples in a query of a multi-stream."""

_FIRST = 0.8
_NEAR = 1.05
"""The search for a server's rate ends where the next rate is no further than this away."""
_TRIES = 7


class Scenario(StrEnum):
    """The ways in which queries come."""

    SINGLE_STREAM = "single-stream"
    MULTI_STREAM = "multi-stream"
    OFFLINE = "offline"
    SERVER = "server"


class Metric(NamedTuple):
    """The one figure by which a scenario is judged. unit: "s" or "/s"."""

    name: str
    value: float
    unit: str


def metric_of(scenario: Scenario, result: BenchResult) -> Metric:
    """Return the figure of a scenario but the server's: see `best_rate`."""
    latency_s = result.latency_s
    if scenario is Scenario.SINGLE_STREAM:
        return Metric("p90 latency", latency_s["p90"], "s")
    if scenario is Scenario.MULTI_STREAM:
        return Metric("p99 latency of a query", latency_s["p99"], "s")
    per_s = result.samples_per_s
    if per_s is None:
        return Metric("runs", result.throughput_per_s, "/s")
    return Metric("samples", per_s, "/s")


class Query(NamedTuple):
    """One query. samples: in it, 0 for the inputs' own; runs: of the model, one after another."""

    call: Callable[[], object]
    samples: int
    runs: int


def query_of(
    specs: Sequence[TensorSpec],
    values: Sequence[Any],
    samples: int,
    predict: Callable[[Sequence[Any]], object],
    fit: Callable[[Sequence[Any]], None],
    takes_shapes: bool = False,
) -> Query:
    """Return a query of several samples: in one batch, or in runs where the batch is fixed."""
    try:
        batch = in_batch(specs, values, batch_axes(specs, takes_shapes), samples)
    except InputError:
        own = batch_of(values) or 1
        runs = -(-samples // own)

        def run() -> None:
            for _ in range(runs):
                predict(values)

        return Query(run, runs * own, runs)
    fit(batch)
    return Query(partial(predict, batch), samples, 1)


def best_rate(points: Sequence[Point]) -> float | None:
    """Return the highest rate whose latencies are within the bound; None where none's are."""
    return max((point.rate_per_s or 0.0 for point in points if point.is_valid), default=None)


def search(
    capacity_per_s: float, bound_s: float, measured: Callable[[float], Point | None]
) -> list[Point]:
    """Return the rates that were tried to find the highest one within the bound, ascending.

    measured: returns a rate's point; None ends the search.
    """
    low, high, rate = 0.0, capacity_per_s * _NEAR, capacity_per_s * _FIRST
    points: list[Point] = []
    for _ in range(_TRIES):
        found = measured(rate)
        if found is None:
            break
        point = replace(found, bound_s=bound_s)
        points.append(point)
        low, high = (rate, high) if point.is_valid else (low, rate)
        if low and high / low < _NEAR:
            break
        rate = (low + high) / 2
    return sorted(points, key=lambda point: point.rate_per_s or 0.0)
