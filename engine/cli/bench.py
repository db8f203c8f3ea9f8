"""`engine bench`: how long a run takes, and how many a second there are."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from engine.cli.build import (
    Config,
    DecKey,
    DecModeOption,
    DeviceId,
    FillWith,
    InputFiles,
    Json,
    ModelPath,
    Seed,
    Settings,
    Shapes,
    Target,
    Threads,
    build,
    decryption_of,
    devices_text,
    parse_shapes,
)
from engine.cli.clients import Clients
from engine.cli.completion import files
from engine.cli.files import require_place
from engine.cli.inputs import Fill, collect
from engine.cli.interrupt import INTERRUPTED
from engine.cli.latency import (
    METHOD,
    SUFFIXES,
    draw,
    histogram,
    new_figure,
    summary,
    write_figure,
)
from engine.cli.output import as_json, counted, duration, fields, line, note, plain
from engine.cli.progress import progress
from engine.host.cpus import usable_cpus
from engine.host.threads import threads_per_worker

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


def bench(
    model: ModelPath,
    duration_s: Annotated[
        float | None,
        typer.Option(
            "--duration",
            metavar="SECONDS",
            help=f"How long to measure.  [default: {_DURATION_S:g}]",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="How many runs to measure, of all clients together, instead of --duration.",
            show_default=False,
        ),
    ] = None,
    warmup_s: Annotated[
        float,
        typer.Option(
            "--warmup",
            metavar="SECONDS",
            help="How long to run unmeasured before, at least once; 0 for not at all.",
        ),
    ] = 1.0,
    clients: Annotated[
        int,
        typer.Option(
            min=1, max=1000, metavar="N", help="How many threads run the one model at once."
        ),
    ] = 1,
    input: InputFiles = None,
    shape: Shapes = None,
    fill: FillWith = Fill.ONES,
    seed: Seed = 0,
    target: Target = "cpu",
    device_id: DeviceId = 0,
    threads: Threads = 0,
    config: Config = None,
    settings: Settings = None,
    dec_key: DecKey = None,
    dec_mode: DecModeOption = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="Also draw a histogram of the latencies.")
    ] = False,
    plot_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also draw it into a .png, .svg or .pdf file; needs the extra 'plot'.",
            show_default=False,
            autocompletion=files,
            readable=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Measure the latency and throughput of a model.

    Runs it over and over and prints percentiles. Ctrl-C ends that early: what was measured until
    then is printed.
    """
    shapes = parse_shapes(shape or [])
    if duration_s is not None and runs is not None:
        raise typer.BadParameter("expected one of the two", param_hint="--duration, --runs")
    if runs is None:
        duration_s = _DURATION_S if duration_s is None else duration_s
        _check_seconds(duration_s, 0.001, "--duration")
    _check_seconds(warmup_s, 0, "--warmup")
    if plot_file is not None and plot_file.suffix not in SUFFIXES:
        raise typer.BadParameter(
            f"expected a file name ending in {', '.join(SUFFIXES)}, got {str(plot_file)!r}",
            param_hint="--plot-file",
        )
    figure = None
    if plot_file is not None:  # what is missing shows before the wait
        figure = new_figure()
        require_place(plot_file)
    decryption = decryption_of(model, dec_key, dec_mode)
    built = build(model, target, config, settings, threads, device_id, decryption)
    with built.model:
        inputs = collect(built.inputs, input or [], shapes, fill, seed)
        where = built.where()
        run = partial(built.model.predict, inputs.values())
        loop = Clients(run, clients, warmup_s, duration_s, runs)
        ended = _measure(loop, warmup_s, duration_s, runs)
    measured = loop.measured()
    count = len(measured.latencies_s)
    if count == 0:  # interrupted before the first run had ended
        raise typer.Exit(INTERRUPTED)
    for text in inputs.notes:
        note(plain(text))
    values = {
        "model": str(model),
        "backend": built.model.provider,
        "devices": where,
        "cpus": os.cpu_count(),
        "usable_cpus": usable_cpus(),
        "threads": threads or threads_per_worker(),
        "inputs": inputs.facts(),
        "build_s": built.seconds,
        "warmup_s": warmup_s,
        "clients": clients,
        "runs": count,
        "seconds": measured.seconds,
        "interrupted": not ended,
        "throughput_per_s": count / measured.seconds,
        "latency_s": summary(measured.latencies_s),
        "percentile_method": METHOD,
    }
    if json:
        if plot:
            edges, counts = histogram(measured.latencies_s)
            values["histogram"] = {"edges_s": edges.tolist(), "counts": counts.tolist()}
        as_json(values)
    else:
        for each in inputs.given:
            line(plain(str(each)))
        _print(values, devices_text(where))
        if plot:
            line()
            draw(measured.latencies_s)
    if count < _ENOUGH_RUNS:
        note(
            f"note: with {counted(count, 'run')} the p99 is little more than the slowest one; "
            "for a better one measure longer (--duration, --runs)"
        )
    if figure is not None and plot_file is not None:
        title = f"{model.name} on {devices_text(where)}, clients: {clients}, runs: {count:,}"
        write_figure(figure, plot_file, measured.latencies_s, plain(title))
        note(f"plot written to {plain(str(plot_file))}")
    if not ended:
        raise typer.Exit(INTERRUPTED)


def _check_seconds(value: float, least: float, option: str) -> None:
    if not least <= value < math.inf:
        raise typer.BadParameter(
            f"expected a number of seconds, {least:g} or more, got {value:g}", param_hint=option
        )


def _measure(loop: Clients, warmup_s: float, duration_s: float | None, runs: int | None) -> bool:
    """Let the clients run; whether they came to the end, and were not interrupted."""
    begin = perf_counter()
    try:
        loop.start()
        with progress(_REFRESHES_PER_S) as show:
            while not loop.wait(1 / _REFRESHES_PER_S):
                now = perf_counter()
                if loop.began is None:
                    show("warming up", _ms(now - begin), _ms(warmup_s))
                    continue
                if warmup_s:
                    show("warming up", 1, 1)
                if duration_s is not None:
                    show("measuring", _ms(now - loop.began), _ms(duration_s))
                else:
                    show("measuring", loop.calls, runs)
    except KeyboardInterrupt:
        loop.stop()
        return False
    return True


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 1000 else f"{per_second:.3g}"


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _print(values: dict[str, Any], where: str) -> None:
    clients, latency = values["clients"], values["latency_s"]
    at_once = counted(clients, "client") + (" at once" if clients > 1 else "")
    warmup_s = values["warmup_s"]
    warmed_up = f"after {duration(warmup_s)} of warm-up" if warmup_s else "without warm-up"
    fields(
        {
            "model": values["model"],
            "ran on": where or values["backend"],
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
