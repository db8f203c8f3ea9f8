"""`engine bench`: measures how long a run takes, and how many there are in a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import click

from engine.cli import options
from engine.cli.breakdown import Breakdown, of_breakdown
from engine.cli.build import build, decryption_of, parse_shapes, require_free_input
from engine.cli.commands import Command, Integer, bundle
from engine.cli.example import instead_of_model, model_or_example
from engine.cli.files import require_place, written_whole
from engine.cli.hints import misuse
from engine.cli.interrupt import interruptible, start
from engine.cli.latency import SUFFIXES, draw_figure, new_figure
from engine.cli.load import SWEEP_S, Against, Integers, Load, Percent, Sweep
from engine.cli.measured import print_json, print_sweep, print_text
from engine.cli.options import BuildOptions, InputOptions
from engine.cli.output import (
    as_json,
    counted,
    note,
    notes,
    plain,
)
from engine.cli.progress import progress, waiting
from engine.cli.scenario import Asked, of_scenario
from engine.cli.setups import Setups, of_setups
from engine.cli.subject import BuiltSubject, ServedSubject
from engine.cli.sweep import draw_figure as draw_sweep
from engine.cli.sweep import measure as in_sweep
from engine.errors import EngineError
from engine.report.clients import Clients
from engine.report.measurement import (
    DURATION_S,
    BenchResult,
    are_open,
    batch_of,
    by_runs,
    devices_text,
    result_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from engine.cli.subject import Subject
    from engine.report.profiling import Profile
    from engine.report.sweep import Point

EPILOG = """\b
Examples:
  engine bench model.onnx
  engine bench model.onnx --runs 1000 --plot
  engine bench model.onnx --clients 4 --threads 1 --duration 30
  engine bench model.onnx --batches 1,2,4,8,16,32 --plot
  engine bench model.onnx --clients 1,2,4 --threads 1,2
  engine bench model.onnx --rates 50,100,200,400 --clients 4
  engine bench --url http://localhost:8000/v2/models/digits --clients 8
  engine bench model.onnx --input image=photo.npy --json
  engine bench model.onnx other.onnx --fail-above 3%
  engine bench model.onnx --versus cpu_context.spin_us=0
  engine bench model.onnx --save run.json
  engine bench model.onnx --against run.json --fail-above 3%
  engine bench model.onnx --scenario server --p99-ms 20 --clients 4

\b
What is measured:
  latency      the time of one predict call, from arrays to arrays in new
               memory; with --rates from when the request was due, so that
               waiting for a free client counts
  percentiles  over the runs of all clients, as numpy.percentile does by
               default: linear between the two nearest runs; behind +- is
               the standard deviation from one such measurement to another
  clients      each runs again as soon as its last run has ended
  first run    of the warm-up, if there is one: it is not among the others
  throughput   all runs divided by the time from the first one's start to the
               last one's end; samples are the runs times the size of the
               inputs' first axis

\b
What is compared:
  in turn      several models, targets, configurations or settings are built
               anew again and again, and timed in turn; the first one comes
               twice, so that its ratio to itself shows the noise
  interval     holds the true ratio in 199 of 200 cases; slower and faster are
               said where all of it is on one side of 1

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
    click.option(
        "--clients",
        "at_once",
        type=Integers(1, 1000),
        default="1",
        metavar="N[,N...]",
        help="How many threads run the one model at once; several are measured one after the "
        "other.",
    ),
)
@of_scenario
@of_breakdown
@options.model_inputs
@of_setups
@bundle(
    "held",
    Against,
    click.option(
        "--save",
        type=options.PATH,
        metavar="FILE",
        help="Save the run, for --against of a later one.",
    ),
    click.option(
        "--against",
        type=options.PATH,
        metavar="FILE",
        help="Compare with a run that --save has written on this machine; where its model is still "
        "there, with that model.",
    ),
    click.option(
        "--fail-above",
        type=Percent(),
        metavar="PERCENT",
        help="Exit with status 1 if the model is slower than the saved run, or a contender than "
        "the first, by more, as 3%; that is also the change that is looked for.  [default: 3%, "
        "and status 0]",
    ),
)
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
    asked: Asked,
    breakdown: Breakdown,
    given: InputOptions,
    setups: Setups,
    held: Against,
    plot: bool,
    plot_file: Path | None,
    url: str | None,
    headers: tuple[str, ...],
    json: bool,
) -> None:
    """Measure the latency and throughput of a model, or compare several.

    Runs it over and over and prints percentiles. Ctrl-C ends that early: what was measured until
    then is printed. Several models or settings are compared in turn.
    """
    shapes = parse_shapes(given.shapes)
    require_free_input(given, model)
    setups.require_models()
    sweep = replace(sweep, host_threads=setups.threads)
    load = replace(load.checked(), clients=sweep.at_once[0])
    sweep.checked()
    asked.check(load, sweep)
    contenders = [] if model is None else setups.contenders(model)
    if model is None and (setups.is_comparison or len(setups.threads) > 1):
        raise misuse("--url", "a model on a server is measured alone, and the server decides how")
    if model is not None and headers:
        raise misuse("--header", "is for --url, which is not given")
    is_comparison = bool(held) or len(contenders) > 1
    if is_comparison and plot:
        raise misuse("--plot", "draws latencies; a comparison is drawn by --plot-file")
    breakdown.require_one_run((
        ("--url", model is None),
        ("a sweep", bool(sweep) or asked.is_search),
        ("a comparison", is_comparison),
    ))  # fmt: skip
    figure = None if plot_file is None else _prepared_figure(plot_file)
    if is_comparison:
        from engine.cli.comparing import compare  # rare

        compared, completed = compare(contenders, load, sweep, asked, given, held)
        if json:
            as_json(compared.facts())
        else:
            compared.show()
        if figure is not None:
            compared.draw(figure)
            _write(figure, plot_file)
        if not completed:
            raise KeyboardInterrupt
        if held.fail_above is not None and compared.is_too_slow:
            raise click.exceptions.Exit(1)
        return
    if held.fail_above is not None:
        text = "is for a comparison: give several models, --versus or --against"
        raise misuse("--fail-above", text)
    how = setups.first
    with ExitStack() as stack:
        subject = _subject(stack, model, how, url, headers)
        load = load.completed(subject.ranks, sweep)
        if subject.ranks and asked.is_search:
            raise misuse("--scenario server", by_runs(subject.ranks))
        inputs = interruptible(  # large arrays are made, or read, in one call of numpy's
            lambda: subject.made(given, shapes)
        )
        cold_s: float | None = None
        if are_open(subject.inputs):
            inputs, cold_s = subject.first_run(inputs)
        if sweep or asked.is_search:

            def swept(subject: Subject) -> tuple[list[Point], bool]:
                if not sweep:
                    return asked.search(subject, inputs, load, _measure)
                return in_sweep(subject, inputs, sweep, load, _measure, shapes)

            points, completed = swept(subject)
            for threads in setups.threads[1:]:
                assert model is not None  # else --threads is refused
                if completed:
                    more = stack.enter_context(_opened(model, replace(how, threads=threads)))
                    found, completed = swept(more)
                    points += found
            points = asked.judged(points)
            print_sweep(points, inputs, asked, plot, json)
            if figure is not None:
                draw_sweep(figure, points, _title(points[0].result))
                _write(figure, plot_file)
            if not completed:
                raise KeyboardInterrupt
            return
        query = asked.query(subject, inputs)
        clients = Clients(
            query.call,
            load.clients,
            load.warmup_s,
            load.duration_s,
            load.runs,
            start,
            load.warmup_runs,
        )
        completed = _measure(clients, load)
        result = result_of(
            subject.origin(),
            clients.measured() if cold_s is None else replace(clients.measured(), first_s=cold_s),
            clients.warmup_took_s if load.warmup_runs else load.warmup_s,
            load.clients,
            not completed,
            query.samples or batch_of(inputs.values()),
        )
        profile: Profile | None = None
        failure: EngineError | None = None
        if breakdown and completed:
            assert isinstance(subject, BuiltSubject)  # no --url
            with waiting("measuring the kernels"):
                try:
                    profile = interruptible(partial(subject.profile, inputs.values()))
                except EngineError as error:  # what was measured is printed first
                    failure = error
    count = result.runs
    if count == 0:  # interrupted before the first run had ended
        raise KeyboardInterrupt
    notes(inputs.notes)
    if json:
        tables = {} if profile is None else breakdown.facts(profile)
        print_json(result, inputs, {**asked.facts(result, query), **tables}, plot)
    else:
        print_text(result, inputs, plot)
        asked.show(result, query)
        if profile is not None:
            breakdown.show(profile)
    if count < _ENOUGH_RUNS:
        note(
            f"note: with {counted(count, 'run')} the p99 is little more than the slowest one; "
            "for a better one measure longer (--duration, --runs)"
        )
    if figure is not None:
        draw_figure(figure, result.latencies_s, f"{_title(result)}, runs: {count:,}")
        _write(figure, plot_file)
    if failure is not None:
        raise failure
    if not completed:
        raise KeyboardInterrupt


def _subject(
    stack: ExitStack, model: Path | None, how: BuildOptions, url: str | None, headers: Sequence[str]
) -> Subject:
    """Return what is measured, which ends with `stack`; a usage error for options beside it."""
    if model is not None:
        return stack.enter_context(_opened(model, how))
    for name, option in _OF_BUILD.items():
        if getattr(how, name) != getattr(BuildOptions(), name):
            raise misuse(option, "with --url the server decides how the model runs")
    from engine.report.served import ServedModel  # http and ssl: not for every measurement

    assert url is not None  # the argument's callback
    sent = dict(_header(text) for text in headers)
    served = interruptible(lambda: ServedModel(url, sent))
    return ServedSubject(stack.enter_context(served))


@contextmanager
def _opened(model: Path, how: BuildOptions) -> Iterator[BuiltSubject]:
    built = build(model, how, decryption_of(model, how.dec_key, how.dec_mode))
    with built.model:
        yield BuiltSubject(built, how.threads)


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
    figure = new_figure(or_else=", or use --plot for one in the terminal")
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
