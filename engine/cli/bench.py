"""`engine bench`: measures how long a run takes, and how many there are in a second."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from engine.cli import options
from engine.cli.build import build, decryption_of, parse_shapes, require_free_input
from engine.cli.commands import Command, Integer, bundle
from engine.cli.example import instead_of_model, model_or_example
from engine.cli.files import require_place, written_whole
from engine.cli.hints import misuse
from engine.cli.inputs import Inputs
from engine.cli.interrupt import interruptible, start
from engine.cli.latency import SUFFIXES, draw, draw_figure, histogram, new_figure
from engine.cli.load import SWEEP_S, Load, Sweep
from engine.cli.options import BuildOptions, InputOptions
from engine.cli.output import (
    as_json,
    aside,
    attributes,
    counted,
    duration,
    fields,
    line,
    note,
    notes,
    plain,
)
from engine.cli.progress import progress
from engine.cli.subject import BuiltSubject, ServedSubject
from engine.cli.sweep import draw_figure as draw_sweep
from engine.cli.sweep import measure as in_sweep
from engine.cli.sweep import measured_values
from engine.cli.sweep import show as show_sweep
from engine.cli.sweep import values as sweep_values
from engine.report.clients import Clients
from engine.report.measurement import (
    DURATION_S,
    METHOD,
    BenchResult,
    batch_of,
    devices_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from engine.cli.subject import Subject
    from engine.report.sweep import Point

EPILOG = """\b
Examples:
  engine bench model.onnx
  engine bench model.onnx --runs 1000 --plot
  engine bench model.onnx --clients 4 --threads 1 --duration 30
  engine bench model.onnx --batches 1,2,4,8,16,32 --plot
  engine bench model.onnx --rates 50,100,200,400 --clients 4
  engine bench --url http://localhost:8000/v2/models/digits --clients 8
  engine bench model.onnx --input image=photo.npy --json

\b
What is measured:
  latency      the time of one predict call, from arrays to arrays in new
               memory; with --rates from when the request was due, so that
               waiting for a free client counts
  percentiles  over the runs of all clients, as numpy.percentile does by
               default: linear between the two nearest runs
  clients      each runs again as soon as its last run has ended
  first run    of the warm-up, if there is one: it is not among the others
  throughput   all runs divided by the time from the first one's start to the
               last one's end; samples are the runs times the size of the
               inputs' first axis

The ranks of a sliced model predict as often as each other, so they are measured by --runs, by one
client, after as many unmeasured runs:

\b
  engine launch -n 2 -m engine bench slices/model.onnx --runs 1000"""

_OF_BUILD = {
    "target": "--target",
    "device_id": "--device-id",
    "threads": "--threads",
    "config": "--config",
    "settings": "--set",
    "dec_key": "--dec-key",
    "dec_mode": "--dec-mode",
}

# A refresh of the bar keeps Python busy for half a millisecond: seldom, so as not to be measured.
_REFRESHES_PER_S = 2.0
_ENOUGH_RUNS = 100  # a p99 of fewer is decided by the slowest of them alone


@click.command("bench", cls=Command, epilog=EPILOG)
@model_or_example
@bundle(
    "load",
    Load,
    click.option(
        "--duration",
        "duration_s",
        type=float,
        metavar="SECONDS",
        help="How long to measure, each point of a sweep; not for ranks of a sliced model.  "
        f"[default: {DURATION_S:g}; in a sweep {SWEEP_S:g}]",
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
@bundle(
    "sweep",
    Sweep,
    click.option(
        "--batches",
        default="",
        show_default=False,
        metavar="N,N,...",
        help="Measure batches of these sizes, one after the other: a table of throughput.",
    ),
    click.option(
        "--rates",
        default="",
        show_default=False,
        metavar="R,R,...",
        help="Offer so many requests a second, at random times, one load after the other: a table "
        "of latencies, with the load that is too much. --clients are served at once.",
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
@click.option(
    "--url",
    is_eager=True,  # before the argument that it stands for
    callback=instead_of_model,
    metavar="URL",
    help="Measure a model on a server of the Open Inference Protocol instead of MODEL, with the "
    "way there and back: http://HOST:PORT/v2/models/NAME, or http://HOST:PORT if it has one model.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME:VALUE",
    help="Sent with every request of --url, as 'Authorization: Bearer TOKEN'. May be repeated.",
)
@options.json
def bench(
    model: Path | None,
    load: Load,
    sweep: Sweep,
    given: InputOptions,
    how: BuildOptions,
    plot: bool,
    plot_file: Path | None,
    url: str | None,
    headers: tuple[str, ...],
    json: bool,
) -> None:
    """Measure the latency and throughput of a model.

    Runs it over and over and prints percentiles. Ctrl-C ends that early: what was measured until
    then is printed.
    """
    shapes = parse_shapes(given.shapes)
    require_free_input(given, model)
    load = load.checked()
    sweep.checked()
    figure = None if plot_file is None else _prepared_figure(plot_file)
    with ExitStack() as stack:
        subject = _subject(stack, model, how, url, headers)
        load = load.completed(subject.ranks, sweep)
        inputs = interruptible(  # large arrays are made, or read, in one call of numpy's
            lambda: subject.made(given, shapes)
        )
        cold_s: float | None = None
        if any(not isinstance(dim, int) for spec in subject.inputs for dim in spec.shape or ()):
            inputs, cold_s = subject.first_run(inputs)
        if sweep:
            points, completed = in_sweep(subject, inputs, sweep, load, _measure, shapes)
            _print_sweep(points, inputs, plot, json)
            if figure is not None:
                draw_sweep(figure, points, _title(points[0].result))
                _write(figure, plot_file)
            if not completed:
                raise KeyboardInterrupt
            return
        run = partial(subject.predict, inputs.values())
        clients = Clients(
            run, load.clients, load.warmup_s, load.duration_s, load.runs, start, load.warmup_runs
        )
        completed = _measure(clients, load)
        result = subject.result(
            clients.measured() if cold_s is None else replace(clients.measured(), first_s=cold_s),
            clients.warmup_took_s if load.warmup_runs else load.warmup_s,
            load.clients,
            not completed,
            batch_of(inputs.values()),
        )
    count = result.runs
    if count == 0:  # interrupted before the first run had ended
        raise KeyboardInterrupt
    notes(inputs.notes)
    if json:
        _print_json(result, inputs, plot)
    else:
        _print_text(result, inputs, plot)
    if count < _ENOUGH_RUNS:
        note(
            f"note: with {counted(count, 'run')} the p99 is little more than the slowest one; "
            "for a better one measure longer (--duration, --runs)"
        )
    if figure is not None:
        draw_figure(figure, result.latencies_s, f"{_title(result)}, runs: {count:,}")
        _write(figure, plot_file)
    if not completed:
        raise KeyboardInterrupt


def _subject(
    stack: ExitStack, model: Path | None, how: BuildOptions, url: str | None, headers: Sequence[str]
) -> Subject:
    """Return what is measured, which ends with `stack`; a usage error for options beside it."""
    if model is not None:
        if headers:
            raise misuse("--header", "is for --url, which is not given")
        built = build(model, how, decryption_of(model, how.dec_key, how.dec_mode))
        stack.enter_context(built.model)
        return BuiltSubject(built, how.threads)
    for name, option in _OF_BUILD.items():
        if getattr(how, name) != getattr(BuildOptions(), name):
            raise misuse(option, "with --url the server decides how the model runs")
    from engine.report.served import ServedModel  # http and ssl: not for every measurement

    assert url is not None  # the argument's callback
    sent = dict(_header(text) for text in headers)
    served = interruptible(lambda: ServedModel(url, sent))
    return ServedSubject(stack.enter_context(served))


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not text.isprintable():
        raise misuse("--header", "expected NAME:VALUE, as 'Authorization: Bearer TOKEN'")
    return name.strip(), value.strip()


def _write(figure: Figure, path: Path | None) -> None:
    assert path is not None  # there is a figure
    with written_whole(path) as file:
        figure.savefig(file, format=path.suffix[1:])
    note(f"plot written to {plain(str(path))}")


def _title(result: BenchResult) -> str:
    where = result.server or devices_text(result.devices)
    name = result.model if result.server else Path(result.model).name
    return plain(f"{name} on {where}, clients: {result.clients}")


def _prepared_figure(path: Path) -> Figure:
    """Return an empty figure for `path`; raise what would stand in its way, before the wait."""
    if path.suffix not in SUFFIXES:
        raise misuse(
            "--plot-file",
            f"expected a file name ending in {', '.join(SUFFIXES)}, got {str(path)!r}",
        )
    figure = new_figure()
    require_place(path)
    return figure


def _measure(clients: Clients, load: Load) -> bool:
    """Let the clients run, and return whether they came to the end, uninterrupted."""
    begin = perf_counter()
    try:
        clients.start()
        with progress(_REFRESHES_PER_S) as show:
            while not clients.wait(1 / _REFRESHES_PER_S):
                now = perf_counter()
                if clients.began is None:
                    is_timed = load.warmup_runs is None
                    total = _ms(load.warmup_s) if is_timed else None
                    show("warming up", _ms(now - begin) if is_timed else 0, total)
                    continue
                if load.warmup_s:
                    show("warming up", 1, 1)
                if load.duration_s is not None:
                    show(load.label, _ms(now - clients.began), _ms(load.duration_s))
                else:
                    show(load.label, clients.calls, load.runs)
    except KeyboardInterrupt:
        clients.stop()
        return False
    return True


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _print_sweep(points: Sequence[Point], inputs: Inputs, plot: bool, json: bool) -> None:
    if not points:  # interrupted before the first run had ended
        raise KeyboardInterrupt
    notes(inputs.notes)
    result = points[0].result
    if json:
        as_json({**_facts(result, inputs), "points": sweep_values(points)})
        return
    for given in inputs.given:
        aside(plain(str(given)))
    shown = result.facts()
    fields({name: shown[name] for name in ("model", "ran on", "CPUs", "clients' CPUs", "built in")})
    line()
    show_sweep(points, plot)


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


def _print_json(result: BenchResult, inputs: Inputs, plot: bool) -> None:
    values: dict[str, Any] = {
        **_facts(result, inputs),
        **measured_values(result),
        "interrupted": result.is_interrupted,
    }
    if plot:
        edges, counts = histogram(result.latencies_s)
        values["histogram"] = {"edges_s": edges.tolist(), "counts": counts.tolist()}
    as_json(values)


def _print_text(result: BenchResult, inputs: Inputs, plot: bool) -> None:
    for given in inputs.given:
        aside(plain(str(given)))
    fields(result.facts())
    line()
    fields({f"latency {name}": duration(seconds) for name, seconds in result.latency_s.items()})
    if plot:
        line()
        draw(result.latencies_s)
