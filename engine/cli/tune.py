"""`engine tune`: finds the settings that serve a model best here, and writes them as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine import Context
from engine.cli import options
from engine.cli.build import (
    parse_settings,
    parse_shapes,
    parse_targets,
    refuse_unknown,
    require_config,
    require_file,
    set_target,
)
from engine.cli.commands import Command, Integer
from engine.cli.completion import targets as known_targets
from engine.cli.example import file_or_example
from engine.cli.files import written_whole
from engine.cli.hints import misuse
from engine.cli.interrupt import interruptible
from engine.cli.latency import SUFFIXES, new_figure
from engine.cli.output import as_json, fields, line, note, plain, table
from engine.cli.progress import progress
from engine.config.reader import configuration
from engine.report.choice.setups import usable
from engine.report.tuning.tuning import BUDGET_S, CHOSEN, COLUMNS, Tuning
from engine.report.tuning.tuning import tune as find
from engine.types import CancelToken

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPILOG = """\b
Examples:
  engine tune --example --budget 10
  engine tune model.onnx
  engine tune model.onnx --max-error 0.01 --plot tuned.png
  engine tune model.onnx --clients 8 --p99-ms 50 --out serving.ini
  engine run model.onnx --config model.tuned.ini

\b
How it decides:
  Setups take turns with the default, in rounds; a ratio is of the time per
  request, with its confidence interval of 95 %. Those that are clearly lost
  end early, the best compete, and the last one is compared with the default
  once more. The default is kept unless that proves another faster."""


_LEAST_ERROR = 1e-8


@click.command("tune", cls=Command, epilog=EPILOG)
@file_or_example
@click.option(
    "--target",
    default="",
    show_default=False,
    metavar="TARGET,...",
    help="The only targets to try; the first is what others are compared with.  [default: all "
    "installed, and cpu]",
    shell_complete=known_targets,
)
@click.option(
    "--clients",
    type=Integer(1, 1000),
    default=1,
    metavar="N",
    help="Tune for the requests a second of so many clients, not for the latency of one.",
)
@click.option(
    "--p99-ms",
    type=float,
    metavar="X",
    help="The most that 99 of 100 requests may take, proven by 368 requests or more.",
)
@click.option(
    "--max-error",
    type=float,
    metavar="E",
    help="Allow less precise arithmetic and quantized models, up to this error, as 0.01.",
)
@click.option(
    "--budget", type=float, default=BUDGET_S, metavar="SECONDS", help="How long to measure."
)
@click.option(
    "--out",
    type=options.PATH,
    metavar="FILE",
    help="The configuration to write: .ini, .toml, .json or .yaml.  [default: MODEL.tuned.ini, in "
    "the current folder]",
)
@options.shapes
@options.config
@options.settings
@click.option(
    "--plot",
    type=options.PATH,
    metavar="FILE",
    help="Draw latency, throughput, error and memory of what was tried into a .png, .svg or .pdf "
    "file; needs the extra 'plot'.",
)
@options.json
def tune(
    model: Path,
    target: str,
    clients: int,
    p99_ms: float | None,
    max_error: float | None,
    budget: float,
    out: Path | None,
    shapes: tuple[str, ...],
    config: Path | None,
    settings: tuple[str, ...],
    plot: Path | None,
    json: bool,
) -> None:
    """Find the fastest settings for a model on this machine, and write them as a configuration.

    Tries threads, waiting, workers, shared runs, backends, precision and rewrites. engine run,
    bench and serve take the file by --config. It is refused for another machine, version or model.
    """
    if plot is not None and plot.suffix not in SUFFIXES:
        raise misuse(
            "--plot", f"expected a file name ending in {', '.join(SUFFIXES)}, got {str(plot)!r}"
        )
    figure = None if plot is None else new_figure()
    for option, value, holds, wanted in (
        ("--p99-ms", p99_ms, p99_ms is None or p99_ms > 0, "a number of milliseconds above 0"),
        (
            "--max-error",
            max_error,
            max_error is None or 0 <= max_error <= 1,
            "a number from 0 to 1",
        ),
        ("--budget", budget, budget > 0, "a number of seconds above 0"),
    ):
        if not holds:
            raise misuse(option, f"expected {wanted}, got {value:g}")
    require_file(model)
    if config is not None:
        require_config(config, "--config")
    sections, context = parse_settings(settings), Context()
    set_target(context, target or ",".join(usable()) or "cpu")
    refuse_unknown(sections, context)
    given = configuration(str(config or ""), sections, "engine.tune")
    cancel = CancelToken()
    with progress() as show:
        found = interruptible(
            lambda: find(
                model,
                targets=parse_targets(target) if target else (),
                clients=clients,
                p99_ms=p99_ms,
                max_error=max_error,
                budget_s=budget,
                out=out or "",
                config=given,
                shapes=parse_shapes(shapes),
                progress=show,
                cancel=cancel,
            ),
            cancel,
        )
    if json:
        as_json(
            {
                "config": found.path,
                "model": found.model,
                "goal": found.goal,
                "gain": found.gain,
                "frontier": [str(trial.setup) for trial in found.frontier],
                **_evidence(found),
            }
        )
    else:
        _show(found)
    if figure is not None and plot is not None:
        draw(figure, found)
        with written_whole(plot) as file:
            figure.savefig(file, format=plot.suffix[1:])
        note(f"plot written to {plain(str(plot))}")


def _evidence(found: Tuning) -> dict[str, Any]:
    """Return the evidence for JSON, with a mark at the chosen setup."""
    said = found.evidence.to_json()
    for trial, facts in zip(found.evidence.trials, said["trials"], strict=True):
        facts["is_chosen"] = found.is_chosen(trial)
    return said


def _show(found: Tuning) -> None:
    fields(
        {
            "goal": found.goal,
            "chosen": str(found.evidence.chosen),
            "because": found.evidence.reason,
            "model": found.model if found.evidence.chosen.form else "",
            "config": found.path,
        }
    )
    numbers = range(2, 7)
    heads = [f">{name}" if place in numbers else name for place, name in enumerate(COLUMNS)]
    table("Tried", heads, [found.cells(trial) for trial in found.rows()])
    line()
    line(f"engine run {plain(found.model)} --config {plain(found.path)}")


def draw(figure: Figure, found: Tuning) -> None:
    """Draw what was measured: latency and throughput, error and memory, with the frontier."""
    speed, cost = figure.subplots(1, 2)
    lines = []
    for number, trial in enumerate(found.rows(), 1):
        if (measured := trial.figures) is None:
            continue
        marker, mark = ("*", f" {CHOSEN}") if found.is_chosen(trial) else ("o", "")
        error = max(trial.error or 0.0, _LEAST_ERROR)
        is_best = trial in found.frontier
        for axes, x, y in (
            (speed, measured.p99_s * 1e3, measured.throughput_per_s),
            (cost, measured.memory_bytes / 1e6, error),
        ):
            [drawn] = axes.plot(x, y, marker, color=f"C{number - 1}", markersize=8)
            axes.annotate(f"  {number}", (x, y))
            if is_best:
                axes.plot(x, y, "o", color="gray", fillstyle="none", markersize=15)
        lines.append((drawn, plain(f"{number} {trial.setup}{mark}")))
    for axes in (speed, cost):
        axes.margins(0.15)
        axes.locator_params(axis="x", nbins=4)  # more labels would overlap
    speed.set_xlabel("p99 of a request, ms")
    speed.set_ylabel("requests a second")
    cost.set_xlabel("memory, MB")
    cost.set_ylabel(f"error ({_LEAST_ERROR:g}: less, or not measured)")
    cost.set_yscale("log")
    figure.suptitle(plain(f"{Path(found.model).name}: {found.goal}"), fontsize="medium")
    handles, labels = zip(*lines, strict=True)
    figure.legend(handles, labels, loc="outside lower center", fontsize="x-small", ncols=2)
