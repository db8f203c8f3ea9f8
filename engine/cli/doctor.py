"""`engine doctor`: checks this machine and each backend, and says what would help."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import click
from rich.table import Column, Table
from rich.text import Text

from engine.backends import installed
from engine.backends.isolation.probe import TIME_LIMIT_S
from engine.cli import options
from engine.cli.build import require_timeout
from engine.cli.commands import Argument, Command
from engine.cli.completion import one_of
from engine.cli.output import as_json, console, line, plain, print_trimmed
from engine.cli.plugins import values
from engine.cli.progress import progress
from engine.report.diagnosis import BackendDiagnosis, Diagnosis, Finding, Status, diagnose

EPILOG = """\b
Examples:
  engine doctor
  engine doctor gpu_trt
  engine doctor --json

\b
Findings:
  ok       it is as it should be
  note     worth knowing, or a doubt; it stops nothing that is installed
  problem  it stops an installed backend, or one that you named

\b
Exit status:
  0  there is no problem
  1  there is one"""

_STYLES = {Status.OK: "green", Status.NOTE: "yellow", Status.PROBLEM: "bold red"}


@click.command("doctor", cls=Command, epilog=EPILOG)
@click.argument(
    "names",
    cls=Argument,
    nargs=-1,
    metavar="[NAME]...",
    help="A backend, or the device type that it serves; all that are installed, if none.",
    shell_complete=one_of(installed),
)
@click.option(
    "--timeout",
    type=float,
    default=TIME_LIMIT_S,
    metavar="SECONDS",
    help="How long a backend may take to answer.",
)
@options.json
def doctor(names: tuple[str, ...], timeout: float, json: bool) -> None:
    """Find out what is wrong here, and what would help.

    Looks at Python, the installed packages, the processors, the environment and the backends.
    Each backend is asked in a process of its own, so one that crashes or hangs takes nothing
    with it.
    """
    require_timeout(timeout)
    with progress() as show:
        show("asking the backends", 0, None)
        found = diagnose(names, timeout)
    found = replace(found, backends=tuple(_patient(backend, timeout) for backend in found.backends))
    if json:
        as_json(
            {
                "ok": not found.ailing,
                "machine": [asdict(finding) for finding in found.machine],
                "backends": [_values(backend) for backend in found.backends],
            }
        )
    else:
        _print(found)
    if found.ailing:
        raise click.exceptions.Exit(1)


def _patient(diagnosis: BackendDiagnosis, timeout: float) -> BackendDiagnosis:
    """Advise a longer time limit first where only ours is known to stand in the way."""
    longer = max(TIME_LIMIT_S, 2 * timeout)
    findings = (
        replace(
            finding,
            fix=f"give it longer: --timeout {longer:g}; if it does not answer, {finding.fix}",
        )
        if "did not answer within" in finding.detail
        else finding
        for finding in diagnosis.findings
    )
    return replace(diagnosis, findings=tuple(findings))


def _values(diagnosis: BackendDiagnosis) -> dict[str, Any]:
    findings = [asdict(finding) for finding in diagnosis.findings]
    return {**values(diagnosis.record), "findings": findings}


def _print(found: Diagnosis) -> None:
    _print_section("machine", found.machine)
    for diagnosis in found.backends:
        line()
        _print_section(diagnosis.title, diagnosis.findings)
    line()
    line(found.verdict)


def _print_section(title: str, findings: tuple[Finding, ...]) -> None:
    """Print the findings under a title; advice for several is printed once, with the first."""
    out = console()
    out.print(Text(plain(title), style="bold"))
    printed: set[str] = set()
    for finding in findings:
        grid = Table.grid(Column(width=len(Status.PROBLEM)), Column(), padding=(0, 2, 0, 0))
        detail = f": {plain(finding.detail)}" if finding.detail else ""
        text = Text.assemble((plain(finding.name), "bold"), detail)
        grid.add_row(Text(finding.status, style=_STYLES[finding.status]), text)
        print_trimmed(out, grid)
        if finding.fix and finding.fix not in printed:
            printed.add(finding.fix)
            # Not broken by us where the terminal is narrow: it is there to be copied.
            line(f"{'':{len(Status.PROBLEM)}}  fix: {plain(finding.fix)}")
