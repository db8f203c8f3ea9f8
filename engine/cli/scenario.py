"""`engine bench --scenario`: MLPerf's ways of sending queries, and the figure of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from engine.cli.commands import EnumChoice, Integer, bundle
from engine.cli.hints import misuse
from engine.cli.interrupt import start
from engine.cli.load import Load, Sweep
from engine.cli.output import counted, duration, line, note
from engine.cli.sweep import measure
from engine.config.text import rate
from engine.report.clients import Clients
from engine.report.scenarios import (
    SAMPLES,
    Query,
    Scenario,
    best_rate,
    metric_of,
    query_of,
    search,
)

if TYPE_CHECKING:
    from engine.cli.inputs import Inputs
    from engine.cli.subject import Subject
    from engine.report.measurement import BenchResult
    from engine.report.sweep import Point

_CAPACITY_S = 1.0


@dataclass(frozen=True, slots=True)
class Asked:
    """The scenario that is asked for, if any, and its numbers."""

    scenario: Scenario | None
    samples: int | None
    p99_ms: float | None

    def check(self, load: Load, sweep: Sweep) -> None:
        """Raise a usage error for options that the scenario does not have."""
        scenario = self.scenario
        if self.samples is not None and scenario is not Scenario.MULTI_STREAM:
            raise misuse("--samples", "is for --scenario multi-stream")
        if self.p99_ms is not None:
            if scenario is not Scenario.SERVER:
                raise misuse("--p99-ms", "is for --scenario server")
            if not 0 < self.p99_ms < math.inf:
                raise misuse("--p99-ms", f"expected milliseconds above 0, got {self.p99_ms:g}")
        if scenario is None:
            return
        is_stream = scenario in (Scenario.SINGLE_STREAM, Scenario.MULTI_STREAM)
        for option, is_given in (
            ("--clients", is_stream and sweep.at_once != (1,)),
            ("--batches", is_stream and bool(sweep.batches)),
            ("--rates", scenario is not Scenario.SERVER and bool(sweep.rates)),
        ):
            if is_given:
                raise misuse(option, f"is not for --scenario {scenario}")
        if scenario is Scenario.SERVER:
            if not sweep.rates and self.p99_ms is None:
                text = "give --rates, or --p99-ms to find the highest rate within it"
                raise misuse("--scenario server", text)
            if not sweep.rates and (sweep or load.runs is not None):
                text = "one number of clients and --duration, for the rates are searched for"
                raise misuse("--p99-ms", f"expected {text}; or give --rates")

    @property
    def is_search(self) -> bool:
        """True where the highest rate is to be found; --rates is not given then."""
        return self.scenario is Scenario.SERVER

    def query(self, subject: Subject, inputs: Inputs) -> Query:
        """Return what a client calls."""
        values = inputs.values()
        if self.scenario is not Scenario.MULTI_STREAM:
            return Query(lambda: subject.predict(values), 0, 1)
        return query_of(
            subject.inputs, values, self.samples or SAMPLES, subject.predict, subject.fit,
            subject.takes_shapes,
        )  # fmt: skip

    def judged(self, points: Sequence[Point]) -> list[Point]:
        """Return points that know the bound."""
        if self.p99_ms is None:
            return [*points]
        return [replace(point, bound_s=self.p99_ms / 1e3) for point in points]

    def search(
        self,
        subject: Subject,
        inputs: Inputs,
        load: Load,
        watch: Callable[[Clients, Load], bool],
    ) -> tuple[list[Point], bool]:
        """Return the rates that were tried, and whether all were measured to the end."""
        assert self.p99_ms is not None  # see `check`
        values, is_over = inputs.values(), False
        whole = replace(load, label="measuring the capacity")
        clients = Clients(
            lambda: subject.predict(values), load.clients, load.warmup_s, _CAPACITY_S, None, start
        )
        if not watch(clients, whole):
            raise KeyboardInterrupt
        found = clients.measured()

        def measured(per_s: float) -> Point | None:
            nonlocal is_over
            points, completed = measure(
                subject, inputs, Sweep(rates=f"{per_s:.4g}", at_once=(load.clients,)), load, watch
            )
            is_over = is_over or not completed
            return points[0] if completed and points else None

        capacity = len(found.latencies_s) / found.seconds
        points = search(capacity, self.p99_ms / 1e3, measured)
        return points, not is_over

    def show(self, result: BenchResult, query: Query) -> None:
        """Print the figure of one measurement."""
        if self.scenario is None:
            return
        line()
        name, value, unit = metric_of(self.scenario, result)
        text = f"{name} {duration(value)}" if unit == "s" else f"{rate(value)} {name}/s"
        how = ""
        if self.scenario is Scenario.MULTI_STREAM:
            runs = "in one batch" if query.runs == 1 else f"in {query.runs} runs"
            how = f", {counted(query.samples, 'sample')} a query {runs}"
        line(f"{self.scenario}: {text}{how}")

    def show_points(self, points: Sequence[Point]) -> None:
        """Print the figure of a sweep over rates."""
        if self.scenario is not Scenario.SERVER or self.p99_ms is None:
            return
        best, bound = best_rate(points), duration(self.p99_ms / 1e3)
        if best is None:
            note(f"note: no rate was served with a p99 within {bound}")
        else:
            line()
            line(f"{self.scenario}: {rate(best)} requests/s with a p99 within {bound}")

    def facts(self, result: BenchResult, query: Query) -> dict[str, Any]:
        """Return the figure of one measurement as plain values, for JSON."""
        if self.scenario is None:
            return {}
        metric = metric_of(self.scenario, result)
        found = {**metric._asdict(), "scenario": str(self.scenario)}
        if query.samples:
            found |= {"samples_a_query": query.samples, "runs_a_query": query.runs}
        return {"scenario": found}

    def facts_of_points(self, points: Sequence[Point]) -> dict[str, Any]:
        """Return the figure of a sweep as plain values, for JSON."""
        if self.scenario is None:
            return {}
        found: dict[str, Any] = {"scenario": str(self.scenario)}
        if self.p99_ms is not None:
            found |= {"p99_bound_s": self.p99_ms / 1e3, "best_per_s": best_rate(points)}
        return {"scenario": found}


of_scenario = bundle(
    "asked",
    Asked,
    click.option(
        "--scenario",
        type=EnumChoice(Scenario),
        callback=lambda ctx, parameter, value: None if value is None else Scenario(value),
        help="Send queries as MLPerf's scenario does, and print its figure.",
    ),
    click.option(
        "--samples",
        type=Integer(1),
        metavar="N",
        help=f"Samples in a query of multi-stream.  [default: {SAMPLES}]",
    ),
    click.option(
        "--p99-ms",
        type=float,
        metavar="MS",
        help="For server: the highest 99th percentile that is allowed; without --rates the "
        "highest rate within it is searched for.",
    ),
)
"""Adds the options of scenarios to a command, which gets them as one."""
