"""`engine plugins check`: the conformance kit, run on an installed backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any

import click

from engine.backends import installed
from engine.cli import options
from engine.cli.build import require_timeout
from engine.cli.commands import Argument, Command, EnumChoice
from engine.cli.completion import one_of
from engine.cli.output import as_json, line, plain, table
from engine.cli.progress import progress
from engine_testing.check import LEVELS, LIMIT_S, Outcome, Report, check
from engine_testing.suite_command import check_onnx

EPILOG = """\b
Examples:
  engine plugins check cpu
  engine plugins check my_backend --level manifest --level semantics
  engine plugins check my_backend -k "closed_form and not int8" --json
  engine plugins check cpu --suite onnx -k "^test_conv"

\b
Levels:
  manifest       what the backend says of itself, and what importing it costs
  semantics      the right answers, whatever the types, shapes and values
  ownership      who owns which memory, and when it may change
  errors         what cannot be done is refused with the right error
  lifecycle      loading, compiling, opening and closing; what is reported,
                 what leaks
  settings       the options that are declared are those that are taken
  process        settings of the process, secrets on disk, the number of
                 threads
  threads        threads, deadlines, cancelling, and the users' view
  contexts       contexts that share memory, are cancelled, let go of arrays
  compiled       compiled forms: the same model, damaged ones, keys
  device_values  memory of the device, copies, streams
  profile        times of kernels
  weights        weights that are exchanged between two predicts
  sharing        weights that are lent or common to a group, and a shared
                 workspace
  ranks          collectives of two processes

\b
Exit status:
  0  no test failed; a declared gap is no failure
  1  a test failed, or the backend cannot be tested"""

_REASON_LINES = 12  # of a failed test's message; --json has all
_FEW = 5  # tests that are named beside the reason they were skipped for


class Suite(StrEnum):
    """The suites that a backend can be tested with."""

    KIT = "kit"
    ONNX = "onnx"


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
    help="The tests to run: the conformance kit, or the onnx package's own backend suite.",
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
@options.json
@click.pass_context
def check_backend(
    context: click.Context,
    name: str,
    suite: Suite,
    levels: tuple[str, ...],
    expression: str,
    timeout: float,
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
    json = json or bool(context.obj)  # of `engine plugins --json check`
    if suite is Suite.ONNX:
        if levels:
            raise click.BadParameter("the onnx suite has no levels", param_hint="--level")
        check_onnx(name, expression, timeout, json)
        return
    try:
        with progress() as show:
            report = check(
                name,
                levels=levels,
                expression=expression,
                limit_s=timeout,
                progress=lambda test, done, total: show(f"testing {name}", done, total),
            )
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="-k") from error
    if json:
        as_json(_values(report))
    else:
        _print(report)
    if not report.ok:
        raise click.exceptions.Exit(1)


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
    for text in lines[:_REASON_LINES]:
        line(f"  {plain(text)}")
    if len(lines) > _REASON_LINES:
        line(f"  ... {len(lines) - _REASON_LINES} more lines; --json has them all")
