"""`engine bench`: measures how long a run takes, and how many there are in a second."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from engine.cli import options
from engine.cli.build import build, decryption_of, devices_text, parse_shapes
from engine.cli.clients import Clients, Measured
from engine.cli.commands import Command, Integer, bundle
from engine.cli.files import require_place
from engine.cli.inputs import Inputs, collect
from engine.cli.latency import (
    METHOD,
    SUFFIXES,
    draw,
    histogram,
    new_figure,
    summary,
    write_figure,
)
from engine.cli.options import BuildOptions, InputOptions
from engine.cli.output import as_json, counted, duration, fields, line, note, plain
from engine.cli.progress import progress
from engine.host.cpus import usable_cpus
from engine.host.threads import threads_per_worker

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPILOG = """[bold]Examples[/bold]

  engine bench model.onnx

  engine bench model.onnx --runs 1000 --plot

  engine bench model.onnx --clients 4 --threads 1 --duration 30

  engine bench model.onnx --input image=photo.npy --json

[bold]What is measured[/bold]

  latency  the time of one predict call, from arrays to arrays in new memory

  percentiles  over the runs of all clients, as numpy.percentile does by default: linear between
  the two nearest runs

  clients  each runs again as soon as its last run has ended

  throughput  all runs divided by the time from the first one's start to the last one's end"""

_DURATION_S = 5.0
# A refresh of the bar keeps Python busy for half a millisecond: seldom, so as not to be measured.
_REFRESHES_PER_S = 2.0
_ENOUGH_RUNS = 100  # a p99 of fewer is decided by the slowest of them alone


@dataclass(frozen=True, slots=True)
class Load:
    """Length of a measurement, and the clients at once; one of duration_s and runs is None."""

    duration_s: float | None
    runs: int | None
    warmup_s: float
    clients: int

    def checked(self) -> Load:
        """Return this with the default duration where nothing is asked for; or a usage error."""
        if self.duration_s is not None and self.runs is not None:
            raise click.BadParameter("expected one of the two", param_hint="--duration, --runs")
        duration_s = self.duration_s
        if self.runs is None:
            duration_s = _DURATION_S if duration_s is None else duration_s
            _check_seconds(duration_s, 0.001, "--duration")
        _check_seconds(self.warmup_s, 0, "--warmup")
        return replace(self, duration_s=duration_s)


@click.command("bench", cls=Command, epilog=EPILOG)
@options.model
@bundle(
    "load",
    Load,
    click.option(
        "--duration",
        "duration_s",
        type=float,
        metavar="SECONDS",
        help=f"How long to measure.  [default: {_DURATION_S:g}]",
    ),
    click.option(
        "--runs",
        type=Integer(1),
        metavar="N",
        help="How many runs to measure, of all clients together, instead of --duration.",
    ),
    click.option(
        "--warmup",
        "warmup_s",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="How long to run unmeasured before, at least once; 0 for not at all.",
    ),
    click.option(
        "--clients",
        type=Integer(1, 1000),
        default=1,
        metavar="N",
        help="How many threads run the one model at once.",
    ),
)
@options.model_inputs
@options.model_build
@click.option("--plot", is_flag=True, help="Also draw a histogram of the latencies.")
@click.option(
    "--plot-file",
    type=options.PATH,
    metavar="FILE",
    help="Also draw it into a .png, .svg or .pdf file; needs the extra 'plot'.",
)
@options.json
def bench(
    model: Path,
    load: Load,
    given: InputOptions,
    how: BuildOptions,
    plot: bool,
    plot_file: Path | None,
    json: bool,
) -> None:
    """Measure the latency and throughput of a model.

    Runs it over and over and prints percentiles. Ctrl-C ends that early: what was measured until
    then is printed.
    """
    shapes = parse_shapes(given.shapes)
    load = load.checked()
    figure = None if plot_file is None else _prepared_figure(plot_file)
    built = build(model, how, decryption_of(model, how.dec_key, how.dec_mode))
    with built.model:
        inputs = collect(built.inputs, given.files, shapes, given.fill, given.seed)
        where = built.where()
        run = partial(built.model.predict, inputs.values())
        clients = Clients(run, load.clients, load.warmup_s, load.duration_s, load.runs)
        completed = _measure(clients, load)
    measured = clients.measured()
    count = len(measured.latencies_s)
    if count == 0:  # interrupted before the first run had ended
        raise KeyboardInterrupt
    for text in inputs.notes:
        note(plain(text))
    values = {
        "model": str(model),
        "backend": built.model.provider,
        "devices": where,
        "cpus": os.cpu_count(),
        "usable_cpus": usable_cpus(),
        "threads": how.threads or threads_per_worker(),
        "inputs": inputs.facts(),
        "build_s": built.seconds,
        "warmup_s": load.warmup_s,
        "clients": load.clients,
        "runs": count,
        "seconds": measured.seconds,
        "interrupted": not completed,
        "throughput_per_s": count / measured.seconds,
        "latency_s": summary(measured.latencies_s),
        "percentile_method": METHOD,
    }
    if json:
        _print_json(values, measured, plot)
    else:
        _print_text(values, measured, plot, inputs)
    if count < _ENOUGH_RUNS:
        note(
            f"note: with {counted(count, 'run')} the p99 is little more than the slowest one; "
            "for a better one measure longer (--duration, --runs)"
        )
    if figure is not None and plot_file is not None:
        title = f"{model.name} on {devices_text(where)}, clients: {load.clients}, runs: {count:,}"
        write_figure(figure, plot_file, measured.latencies_s, plain(title))
        note(f"plot written to {plain(str(plot_file))}")
    if not completed:
        raise KeyboardInterrupt


def _prepared_figure(path: Path) -> Figure:
    """Return an empty figure for `path`; raise what would stand in its way, before the wait."""
    if path.suffix not in SUFFIXES:
        raise click.BadParameter(
            f"expected a file name ending in {', '.join(SUFFIXES)}, got {str(path)!r}",
            param_hint="--plot-file",
        )
    figure = new_figure()
    require_place(path)
    return figure


def _check_seconds(value: float, least: float, option: str) -> None:
    if not least <= value < math.inf:
        raise click.BadParameter(
            f"expected a number of seconds, {least:g} or more, got {value:g}", param_hint=option
        )


def _measure(clients: Clients, load: Load) -> bool:
    """Let the clients run, and return whether they came to the end, uninterrupted."""
    begin = perf_counter()
    try:
        clients.start()
        with progress(_REFRESHES_PER_S) as show:
            while not clients.wait(1 / _REFRESHES_PER_S):
                now = perf_counter()
                if clients.began is None:
                    show("warming up", _ms(now - begin), _ms(load.warmup_s))
                    continue
                if load.warmup_s:
                    show("warming up", 1, 1)
                if load.duration_s is not None:
                    show("measuring", _ms(now - clients.began), _ms(load.duration_s))
                else:
                    show("measuring", clients.calls, load.runs)
    except KeyboardInterrupt:
        clients.stop()
        return False
    return True


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 1000 else f"{per_second:.3g}"


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _print_json(values: dict[str, Any], measured: Measured, plot: bool) -> None:
    if plot:
        edges, counts = histogram(measured.latencies_s)
        values["histogram"] = {"edges_s": edges.tolist(), "counts": counts.tolist()}
    as_json(values)


def _print_text(values: dict[str, Any], measured: Measured, plot: bool, inputs: Inputs) -> None:
    for given in inputs.given:
        line(plain(str(given)))
    clients, latency = values["clients"], values["latency_s"]
    at_once = counted(clients, "client") + (" at once" if clients > 1 else "")
    warmup_s = values["warmup_s"]
    warmed_up = f"after {duration(warmup_s)} of warm-up" if warmup_s else "without warm-up"
    fields(
        {
            "model": values["model"],
            "ran on": devices_text(values["devices"]) or values["backend"],
            "CPUs": f"{values['usable_cpus']} usable of {values['cpus']}, "
            f"host threads: {values['threads']}",
            "built in": duration(values["build_s"]),
            "measured": f"{counted(values['runs'], 'run')} in {duration(values['seconds'])}, "
            f"{at_once}, {warmed_up}",
            "throughput": f"{_rate(values['throughput_per_s'])} runs/s",
        }
    )
    line()
    fields({f"latency {name}": duration(seconds) for name, seconds in latency.items()})
    if plot:
        line()
        draw(measured.latencies_s)
