"""`engine plugins check`: the conformance kit, run on an installed backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from engine.backends import BackendState, find_target, installed
from engine.cli import options
from engine.cli.build import require_timeout
from engine.cli.commands import Argument, Command, EnumChoice
from engine.cli.completion import one_of, targets
from engine.cli.output import as_json, line, plain, table
from engine.cli.progress import progress
from engine_testing.check import LEVELS, LIMIT_S, Outcome, Report, check
from engine_testing.page import page
from engine_testing.suite_command import is_faultless, onnx_values, print_onnx, run_onnx

if TYPE_CHECKING:
    from engine_testing.mixed import ModelResult
    from engine_testing.onnx_suite import Score

EPILOG = """\b
Examples:
  engine plugins check cpu
  engine plugins check my_backend --level manifest --level semantics
  engine plugins check my_backend -k "closed_form and not int8" --json
  engine plugins check cpu --suite onnx -k "^test_conv"
  engine plugins check my_backend --with cpu --models my_models/
  engine plugins check my_backend --suite all --with cpu --html report.html

\b
Levels:
  manifest       what the backend says of itself, and what importing it costs
  semantics      the right answers, whatever the types, shapes and values
  numerics       quantized and small numbers, whole graphs and their parts
  arithmetic     as exact as the user asks for
  meanings       operators as ONNX defines them: old operator sets, integers,
                 NaN, indices
  ownership      who owns which memory, and when it may change
  errors         what cannot be done is refused with the right error
  lifecycle      loading, compiling, opening and closing; what is reported,
                 what leaks
  settings       the options that are declared are those that are taken
  process        settings of the process, secrets on disk, the number of
                 threads
  threads        threads, deadlines, cancelling, and the users' view
  predict_options  options of one predict: id, priority, cancelling
  contexts       contexts that share memory, are cancelled, let go of arrays
  compiled       compiled forms: the same model, damaged ones, keys
  groups         nodes that run only together, and the least size of a segment
  device_values  memory of the device, copies, streams
  strided_values  buffers with strides and offsets
  profile        times of kernels
  weights        weights that are exchanged between two predicts
  sharing        weights that are lent or common to a group, and a shared
                 workspace
  several_devices  one executable on two devices
  ranks          collectives of two processes
  speed          time of a predict, against onnx's reference evaluator

\b
Models:
  --with      the kit's models with rare operators, on the backend and these
              targets together; outputs against the first of these alone
  --models    the same with the files of a folder; without --with the backend
              runs them alone, against onnx's reference evaluator
  "elsewhere": the outputs agree, but no node ran on the backend.
  Inputs are random, and tolerances are those of engine compare.

\b
Exit status:
  0  no test failed; a declared gap is no failure, nor is a refused model, nor
     a model of --suite onnx that a target of --with ran whole
  1  a test failed, or the backend cannot be tested"""

_FIRST_LINES, _LAST_LINES = 6, 8  # of a failed test's message; --json has all
_FEW = 5  # tests that are named beside the reason they were skipped for


class Suite(StrEnum):
    """The suites that a backend can be tested with."""

    KIT = "kit"
    ONNX = "onnx"
    ALL = "all"


@click.command("check", cls=Command, epilog=EPILOG)
@click.argument(
    "name",
    cls=Argument,
    metavar="NAME",
    help="An installed backend.",
    shell_complete=one_of(installed),
)
@click.option(
    "--suite",
    type=EnumChoice(Suite),
    default=str(Suite.KIT),
    help="The tests to run: the conformance kit, the onnx package's own backend suite, or both.",
)
@click.option(
    "--level",
    "levels",
    multiple=True,
    metavar="LEVEL",
    help="Only tests of this level of the kit. May be repeated.",
    shell_complete=one_of(lambda: LEVELS),
)
@click.option(
    "-k",
    "expression",
    default="",
    show_default=False,
    metavar="EXPR",
    help="Only tests whose names fit: as for pytest's -k, for onnx a regular expression.",
)
@click.option(
    "--timeout",
    type=float,
    default=LIMIT_S,
    metavar="SECONDS",
    help="How long one test may take.",
)
@click.option(
    "--with",
    "beside",
    multiple=True,
    metavar="TARGET",
    help="Let this target run what the backend does not; see below. May be repeated.",
    shell_complete=targets,
)
@click.option(
    "--models",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Compare the outputs of the ONNX files in DIR with another target's; see below.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write all that was found into FILE, as a page for people.",
)
@options.json
@click.pass_context
def check_backend(
    context: click.Context,
    name: str,
    suite: Suite,
    levels: tuple[str, ...],
    expression: str,
    timeout: float,
    beside: tuple[str, ...],
    models: Path | None,
    html: Path | None,
    json: bool,
) -> None:
    """Test whether an installed backend does what every backend must.

    The tests run in a process of their own; one that crashes or hangs is a failed test, and the
    others still run.
    """
    for level in levels:
        if level not in LEVELS:
            raise click.BadParameter(
                f"{level!r} is not one of {', '.join(LEVELS)}", param_hint="--level"
            )
    require_timeout(timeout)
    for target in beside:
        find_target(target)
    json = json or bool(context.obj)  # of `engine plugins --json check`
    if levels and suite is not Suite.KIT:
        raise click.BadParameter("the onnx suite has no levels", param_hint="--level")
    if expression and suite is Suite.ALL:
        raise click.BadParameter("the two suites' expressions differ", param_hint="-k")
    found = Found(name, suite)
    if suite is not Suite.ONNX:
        found.kit = _run_kit(name, levels, expression, timeout)
        if beside:
            found.mixed = _run_models(name, beside, None, timeout)
    if models is not None:
        found.models = _run_models(name, beside, models, timeout)
    if suite is not Suite.KIT:
        found.onnx = run_onnx(name, expression, timeout, beside)
    if json:
        as_json(found.values())
    else:
        found.print()
    if html is not None:
        html.write_text(page(found.parts()), encoding="utf-8")
    if not found.ok:
        raise click.exceptions.Exit(1)


def _run_kit(name: str, levels: tuple[str, ...], expression: str, timeout: float) -> Report:
    try:
        with progress() as show:
            return check(
                name,
                levels=levels,
                expression=expression,
                limit_s=timeout,
                progress=lambda test, done, total: show(f"testing {name}", done, total),
            )
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="-k") from error


def _run_models(
    name: str, beside: tuple[str, ...], folder: Path | None, timeout: float
) -> ModelsReport:
    """Compare the models of a folder, or the kit's; see the epilog."""
    from engine_testing.mixed import compare_models, models_in, models_of_the_kit

    own, other = (name, *beside), beside[0] if beside else "reference"
    results = []
    with TemporaryDirectory(prefix="engine-check-") as made, progress() as show:
        paths = models_of_the_kit(Path(made)) if folder is None else models_in(folder)
        if not paths:
            raise click.BadParameter(f"{folder}: no file ends in .onnx", param_hint="--models")
        for result in compare_models(own, other, paths, limit_s=timeout):
            results.append(result)
            show(f"models on {', '.join(own)}", len(results), len(paths))
    return ModelsReport(own, other, results)


@dataclass(slots=True)
class ModelsReport:
    """Models on `targets` together, against `other` alone."""

    targets: tuple[str, ...]
    other: str
    results: list[ModelResult]

    @property
    def ok(self) -> bool:
        """Return whether no model shows a fault."""
        from engine_testing.mixed import FAULTS

        return all(result.status not in FAULTS for result in self.results)

    def values(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        tests = [result.values() for result in self.results]
        return {"targets": [*self.targets], "other": self.other, "ok": self.ok, "tests": tests}

    def print(self, title: str) -> None:
        """Print a line for each model."""
        rows = [
            (
                result.name,
                str(result.status),
                ", ".join(f"{name} {count}" for name, count in result.nodes.items()),
                _largest(result),
                f"{1000 * result.predict_s:.2f} ms" if result.predict_s else "",
                f"{1000 * result.other_predict_s:.2f} ms" if result.predict_s else "",
            )
            for result in self.results
        ]
        other = f">{self.other}"
        table(title, ("model", "outcome", "nodes on", ">largest error", ">time", other), rows)
        for result in self.results:
            if result.reason:
                line()
                line(f"{result.status}: {plain(result.name)}")
                line(f"  {plain(result.reason)}")


def _largest(result: ModelResult) -> str:
    errors = [output.relative.error for output in result.outputs if output.relative is not None]
    return f"{max(errors):.1e}" if errors else ""


@dataclass(slots=True)
class Found:
    """All that was found of a backend; None for what was not asked for."""

    name: str
    suite: Suite
    kit: Report | None = None
    mixed: ModelsReport | None = None
    models: ModelsReport | None = None
    onnx: Score | None = None

    @property
    def ok(self) -> bool:
        """Return whether nothing shows a fault."""
        onnx = self.onnx is None or is_faultless(self.onnx)
        return onnx and all(part is None or part.ok for part in (self.kit, self.mixed, self.models))

    def parts(self) -> dict[str, Any]:
        """Return each part by its name, as plain values."""
        return {
            "backend": self.name,
            "suite": str(self.suite),
            "ok": self.ok,
            **({"kit": _values(self.kit)} if self.kit is not None else {}),
            **({"mixed": self.mixed.values()} if self.mixed is not None else {}),
            **({"models": self.models.values()} if self.models is not None else {}),
            **({"onnx": onnx_values(self.onnx)} if self.onnx is not None else {}),
        }

    def values(self) -> dict[str, Any]:
        """Return the parts for JSON; those of a single suite are not in a table of their own."""
        parts = self.parts()
        if self.suite is Suite.ALL:
            return parts
        alone = parts.pop(str(self.suite))
        return {**alone, **parts}

    def print(self) -> None:
        """Print each part for people, what sums it up last."""
        if self.kit is not None:
            _print(self.kit)
        if self.mixed is not None:
            self.mixed.print("Mixed placement")
        if self.models is not None:
            self.models.print("Models")
        if self.onnx is not None:
            if self.kit is not None or self.models is not None:
                line()
            print_onnx(self.onnx)


def _values(report: Report) -> dict[str, Any]:
    record = report.record
    return {
        "backend": record.name,
        "distribution": record.distribution,
        "version": record.version,
        "state": str(record.state),
        "suite": str(Suite.KIT),
        "ok": report.ok,
        "seconds": report.seconds,
        "levels": {
            level: {str(outcome): counts[outcome] for outcome in Outcome}
            for level, counts in report.levels().items()
        },
        "tests": [asdict(result) for result in report.results],
    }


def _print(report: Report) -> None:
    table(
        "",
        ("level", *(f">{_heading(outcome)}" for outcome in Outcome)),
        [
            (level, *(counts[outcome] for outcome in Outcome))
            for level, counts in report.levels().items()
        ],
    )
    _print_reasons("skipped", report, Outcome.SKIPPED)
    _print_reasons("declared gaps", report, Outcome.GAP)
    for result in report.of(Outcome.FAILED):
        line()
        line(f"failed: {plain(result.name)} ({result.level})")
        _print_lines(result.reason.splitlines())
        if result.place:
            line(f"  at {plain(result.place)}")
    line()
    counts = ", ".join(
        f"{len(report.of(outcome))} {_heading(outcome, len(report.of(outcome)))}"
        for outcome in Outcome
        if report.of(outcome) or outcome is Outcome.PASSED
    )
    line(f"{plain(report.record.name)}: {counts} in {report.seconds:.1f} s")
    if report.record.state is BackendState.NO_DEVICE:
        line(f"not tested, without a device: {plain(str(report.record))}")


def _heading(outcome: Outcome, count: int = 0) -> str:
    return f"{outcome}s" if outcome is Outcome.GAP and count != 1 else str(outcome)


def _print_reasons(title: str, report: Report, outcome: Outcome) -> None:
    """Print each reason once, with the tests that it holds for."""
    tests: dict[str, list[str]] = {}
    for result in report.of(outcome):
        tests.setdefault(result.reason, []).append(result.name)
    if tests:
        line()
        line(f"{title}:")
    for reason, names in tests.items():
        which = ", ".join(names) if len(names) <= _FEW else f"{len(names)} tests"
        line(f"  {plain(which)}: {plain(reason)}")


def _print_lines(lines: Sequence[str]) -> None:
    """Print a message; of a long one its begin and its end, which has the exception."""
    left_out = len(lines) - _FIRST_LINES - _LAST_LINES
    if left_out <= 0:
        first, last = lines, lines[len(lines) :]
    else:
        first, last = lines[:_FIRST_LINES], lines[-_LAST_LINES:]
    for text in first:
        line(f"  {plain(text)}")
    if left_out > 0:
        line(f"  ... {left_out} more lines; --json has them all")
    for text in last:
        line(f"  {plain(text)}")
