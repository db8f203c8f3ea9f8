"""`engine bench --batches` and `--rates`: a measurement for each, and a table of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.cli.inputs import Inputs
from engine.cli.interrupt import start
from engine.cli.latency import bar
from engine.cli.load import Load, Sweep
from engine.cli.output import attributes, duration, note, plain, table
from engine.config.text import rate
from engine.report.clients import Clients
from engine.report.measurement import BenchResult, batch_of
from engine.report.sweep import Point, arrivals, batch_axes, in_batch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from engine.cli.subject import Subject

_BAR = 20
_SHOWN = ("p50", "p90", "p99", "max")


def measure(
    subject: Subject,
    inputs: Inputs,
    sweep: Sweep,
    load: Load,
    watch: Callable[[Clients, Load], bool],
    shaped: Collection[str] = (),
) -> tuple[list[Point], bool]:
    """Return the points, and whether all were measured to the end.

    watch: lets clients run, and returns whether they came to the end, uninterrupted. shaped: the
    inputs whose shapes the user has said.
    """
    batches, rates = sweep.checked()
    values = inputs.values()
    axes = batch_axes(subject.inputs, subject.takes_shapes) if batches else {}
    for spec, value in zip(subject.inputs, values, strict=True):
        shape = value.shape if isinstance(value, np.ndarray) else ()
        sizes = {shape[axis] for axis in axes.get(spec.name, ()) if axis < len(shape)} - {1}
        if spec.name in shaped and sizes:
            note(
                f"note: --shape: the batch of {sizes.pop()} for {plain(spec.name)!r} is not "
                "measured: --batches says which are"
            )
    points: list[Point] = []
    steps: list[tuple[int | None, float | None]] = [(batch, None) for batch in batches]
    for batch, offered in steps or [(None, offered) for offered in rates]:
        given = values if batch is None else in_batch(subject.inputs, values, axes, batch)
        subject.fit(given)
        due = None if offered is None else arrivals(offered, load.duration_s, load.runs)
        clients = Clients(
            partial(subject.predict, given), load.clients, load.warmup_s, load.duration_s,
            load.runs, start, arrivals_s=None if due is None else due.tolist(),
        )  # fmt: skip
        label = f"batch {batch}" if offered is None else f"{offered:g} requests/s"
        completed = watch(clients, replace(load, label=label))
        if clients.calls:
            result = subject.result(
                clients.measured(), load.warmup_s, load.clients, not completed, batch_of(given)
            )
            count = 0 if due is None else len(due)
            last_due_s = None if due is None or load.runs is None else float(due[-1])
            points.append(Point(result, offered, count, last_due_s))
        if not completed:
            return points, False
    return points, True


def show(points: Sequence[Point], plot: bool) -> None:
    """Print a row for each point; with a plot a bar beside it."""
    is_load = points[0].rate_per_s is not None
    heights = [_height(point) for point in points]
    rows = []
    for point, height in zip(points, heights, strict=True):
        result, latency = point.result, point.result.latency_s
        samples = "" if result.samples_per_s is None else rate(result.samples_per_s)
        first = f"{result.batch}" if point.rate_per_s is None else rate(point.rate_per_s)
        row = [first, rate(result.throughput_per_s), *(() if is_load else (samples,))]
        row += [duration(latency[name]) for name in _SHOWN]
        if is_load:
            row.append(_verdict(point))
        if plot:
            row.append(bar(round(height * 1e6), round(max(heights) * 1e6), _BAR))
        rows.append(row)
    columns = [">offered/s", ">served/s"] if is_load else [">batch", ">runs/s", ">samples/s"]
    columns += [f">{name}" for name in _SHOWN] + ([""] if is_load else [])
    table("", [*columns, *([f"{'p99' if is_load else 'samples/s'} as bars"] if plot else [])], rows)


def _verdict(point: Point) -> str:
    if point.is_overloaded:
        return "overloaded"
    return "too short to judge" if point.is_too_short else ""


def _height(point: Point) -> float:
    """Return the number that a plot shows: the tail under a load, samples a second of a batch."""
    result = point.result
    if point.rate_per_s is not None:
        return result.latency_s["p99"]
    return result.samples_per_s or result.throughput_per_s


def values(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the points as plain values, for JSON."""
    return [
        {
            **measured_values(point.result),
            "offered_per_s": point.rate_per_s,
            "due": None if point.rate_per_s is None else point.due,
            "overloaded": None
            if point.rate_per_s is None or point.is_too_short
            else point.is_overloaded,
        }
        for point in points
    ]


def measured_values(result: BenchResult) -> dict[str, Any]:
    """Return one measurement as plain values, for JSON."""
    times = ("runs", "seconds", "throughput_per_s", "samples_per_s", "latency_s")
    return {"first_run_s": result.first_s, **attributes(result, "batch", *times)}


def draw_figure(figure: Figure, points: Sequence[Point], title: str) -> None:
    """Draw throughput over the batch, or latencies over the load, into `figure`."""
    axes = figure.subplots()
    if points[0].rate_per_s is not None:
        offered = [point.rate_per_s or 0.0 for point in points]
        for name in ("p50", "p99"):
            heights = [point.result.latency_s[name] * 1e3 for point in points]
            axes.plot(offered, heights, marker="o", label=name)
        axes.set_xlabel("requests offered a second")
        axes.set_ylabel("latency, ms")
        axes.set_yscale("log")
    else:
        sizes = [point.result.batch or 1 for point in points]
        axes.plot(sizes, [_height(point) for point in points], marker="o", label="samples/s")
        beside = axes.twinx()
        tail = [point.result.latency_s["p99"] * 1e3 for point in points]
        beside.plot(sizes, tail, marker="s", color="tab:orange", label="p99")
        beside.set_ylabel("p99 of a run, ms")
        beside.set_ylim(bottom=0)
        axes.set_xlabel("batch")
        axes.set_ylabel("samples a second")
        axes.set_ylim(bottom=0)
        beside.legend(loc="lower right")
    axes.set_title(title.replace("$", r"\$"), wrap=True, fontsize="medium")
    axes.legend(loc="upper left")
