"""Prints what `engine bench` has measured: one model, or a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.cli.latency import draw, histogram
from engine.cli.output import as_json, aside, attributes, fields, line, notes, plain
from engine.cli.sweep import measured_values, show, values
from engine.report.measurement import METHOD

if TYPE_CHECKING:
    from engine.cli.inputs import Inputs
    from engine.cli.scenario import Asked
    from engine.report.measurement import BenchResult
    from engine.report.sweep import Point


def print_sweep(
    points: Sequence[Point], inputs: Inputs, asked: Asked, plot: bool, json: bool
) -> None:
    """Print a row for each point of a sweep."""
    if not points:  # interrupted before the first run had ended
        raise KeyboardInterrupt
    notes(inputs.notes)
    result = points[0].result
    if json:
        facts = asked.facts_of_points(points)
        as_json({**_facts(result, inputs), "points": values(points), **facts})
        return
    for given in inputs.given:
        aside(plain(str(given)))
    shown = result.facts()
    fields({name: shown[name] for name in ("model", "ran on", "CPUs", "clients' CPUs", "built in")})
    line()
    show(points, plot)
    asked.show_points(points)


def _facts(result: BenchResult, inputs: Inputs) -> dict[str, Any]:
    own = (
        "model",
        "server",
        "backend",
        "cpus",
        "usable_cpus",
        "threads",
        "build_s",
        "warmup_s",
        "clients",
    )
    return {
        **attributes(result, *own),
        "devices": [share._asdict() for share in result.devices],
        "inputs": inputs.facts(),
        "percentile_method": METHOD,
    }


def print_json(result: BenchResult, inputs: Inputs, more: dict[str, Any], plot: bool) -> None:
    """Print one measurement as JSON. more: what else there is to say of it."""
    found: dict[str, Any] = {
        **_facts(result, inputs),
        **measured_values(result),
        **more,
        "interrupted": result.is_interrupted,
    }
    if plot:
        edges, counts = histogram(result.latencies_s)
        found["histogram"] = {"edges_s": edges.tolist(), "counts": counts.tolist()}
    as_json(found)


def print_text(result: BenchResult, inputs: Inputs, plot: bool) -> None:
    """Print one measurement, with its histogram if that is asked for."""
    for given in inputs.given:
        aside(plain(str(given)))
    fields(result.facts())
    line()
    fields(result.latency_texts())
    if plot:
        line()
        draw(result.latencies_s)
