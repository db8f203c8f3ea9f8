"""Sweeps of `engine bench`, as by `--batches`: a measurement for each, and a table of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.cli.inputs import Inputs
from engine.cli.interrupt import start
from engine.cli.latency import bar
from engine.cli.load import Load, Sweep
from engine.cli.output import attributes, duration, note, plain, table
from engine.config.text import counted, rate
from engine.report.clients import Clients
from engine.report.measurement import BenchResult, batch_of, result_of
from engine.report.sweep import Point, arrivals, batch_axes, due_rate, in_batch

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
    wanted: tuple[list[int | None], list[float | None]] = ([*batches], [*rates])
    for batch, offered, at_once in product(wanted[0] or [None], wanted[1] or [None], sweep.at_once):
        given = values if batch is None else in_batch(subject.inputs, values, axes, batch)
        subject.fit(given)
        load = replace(load, clients=at_once)
        due = None if offered is None else arrivals(offered, load.duration_s, load.runs)
        clients = Clients(
            partial(subject.predict, given), load.clients, load.warmup_s, load.duration_s,
            load.runs, start, arrivals_s=None if due is None else due.tolist(),
        )  # fmt: skip
        label = "measuring" if batch is None else f"batch {batch}"
        label = label if offered is None else f"{offered:g} requests/s"
        label = f"{label}, {counted(at_once, 'client')}" if len(sweep.at_once) > 1 else label
        completed = watch(clients, replace(load, label=label))
        if clients.calls:
            result = result_of(
                subject.origin(), clients.measured(), load.warmup_s, load.clients,
                not completed, batch_of(given),
            )  # fmt: skip
            count = 0 if due is None else len(due)
            last_due_s = None if due is None or load.runs is None else float(due[-1])
            due_per_s = None if due is None else due_rate(due, load.duration_s)
            points.append(Point(result, offered, count, last_due_s, due_per_s=due_per_s))
        if not completed:
            return points, False
    return points, True


def show(points: Sequence[Point], plot: bool) -> None:
    """Print a row for each point; with a plot a bar beside it."""
    is_load = points[0].rate_per_s is not None
    heights = [_height(point) for point in points]
    swept = {
        name: [getattr(point.result, name) for point in points] for name in ("threads", "clients")
    }
    swept = {name: numbers for name, numbers in swept.items() if len(set(numbers)) > 1}
    rows = []
    for place, (point, height) in enumerate(zip(points, heights, strict=True)):
        result, latency = point.result, point.result.latency_s
        samples = "" if result.samples_per_s is None else rate(result.samples_per_s)
        first = f"{result.batch or ''}" if point.rate_per_s is None else rate(point.rate_per_s)
        row = [str(numbers[place]) for numbers in swept.values()]
        due = "" if point.due_per_s is None else rate(point.due_per_s)
        served = rate(result.throughput_per_s)
        row += [first, due, served] if is_load else [first, served, samples]
        row += [duration(latency[name]) for name in _SHOWN]
        if is_load:
            row.append(_verdict(point))
        if plot:
            row.append(bar(round(height * 1e6), round(max(heights) * 1e6), _BAR))
        rows.append(row)
    columns = [f">{name}" for name in swept]
    of_load, of_batch = (">offered/s", ">due/s", ">served/s"), (">batch", ">runs/s", ">samples/s")
    columns += of_load if is_load else of_batch
    columns += [f">{name}" for name in _SHOWN] + ([""] if is_load else [])
    table("", [*columns, *([f"{'p99' if is_load else 'samples/s'} as bars"] if plot else [])], rows)


def _verdict(point: Point) -> str:
    if point.is_overloaded:
        return "overloaded"
    if point.is_too_short:
        return "too short to judge"
    if point.bound_s is None:
        return ""
    return "valid" if point.is_valid else f"p99 above {duration(point.bound_s)}"


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
            **attributes(point.result, "threads", "clients"),
            "offered_per_s": point.rate_per_s,
            "due": None if point.rate_per_s is None else point.due,
            "due_per_s": point.due_per_s,
            "overloaded": None
            if point.rate_per_s is None or point.is_too_short
            else point.is_overloaded,
            **({} if point.bound_s is None else {"valid": point.is_valid}),
        }
        for point in points
    ]


def measured_values(result: BenchResult) -> dict[str, Any]:
    """Return one measurement as plain values, for JSON."""
    times = ("runs", "seconds", "throughput_per_s", "samples_per_s", "latency_s", "deviation_s")
    return {"first_run_s": result.first_s, **attributes(result, "batch", *times)}


def draw_figure(figure: Figure, points: Sequence[Point], title: str) -> None:
    """Draw throughput over the batch, clients or threads, or latencies over the load."""
    axes = figure.subplots()
    is_load = points[0].rate_per_s is not None
    name, series = _series(points)
    for label, own in series:
        over = _along(own, name)
        if is_load:
            for rank in ("p50", "p99"):
                heights = [point.result.latency_s[rank] * 1e3 for point in own]
                axes.plot(over, heights, marker="o", label=f"{rank} {label}".strip())
        else:
            axes.plot(over, [_height(point) for point in own], marker="o", label=label or "rate")
    if is_load:
        axes.set_xlabel("requests offered a second")
        axes.set_ylabel("latency, ms")
        axes.set_yscale("log")
    else:
        has_samples = all(point.result.samples_per_s is not None for point in points)
        axes.set_xlabel(name)
        axes.set_ylabel(f"{'samples' if has_samples else 'runs'} a second")
        axes.set_ylim(bottom=0)
    if not is_load and len(series) == 1:
        beside = axes.twinx()
        tail = [point.result.latency_s["p99"] * 1e3 for point in points]
        beside.plot(_along(points, name), tail, marker="s", color="tab:orange", label="p99")
        beside.set_ylabel("p99 of a run, ms")
        beside.set_ylim(bottom=0)
        beside.legend(loc="lower right")
    axes.set_title(title.replace("$", r"\$"), wrap=True, fontsize="medium")
    axes.legend(loc="upper left")


def _along(points: Sequence[Point], name: str) -> list[float]:
    return [point.rate_per_s or getattr(point.result, name) or 1 for point in points]


def _series(points: Sequence[Point]) -> tuple[str, list[tuple[str, list[Point]]]]:
    """Return the number that the axis has, and the lines: points that are alike in the others."""
    swept = [
        name
        for name in ("batch", "clients", "threads")
        if len({getattr(point.result, name) for point in points}) > 1
    ]
    if points[0].rate_per_s is not None:
        swept.insert(0, "rate")
    name, *others = swept or ["batch"]
    lines: dict[str, list[Point]] = {}
    for point in points:
        label = ", ".join(f"{other}: {getattr(point.result, other)}" for other in others)
        lines.setdefault(label, []).append(point)
    return name, [*lines.items()]
