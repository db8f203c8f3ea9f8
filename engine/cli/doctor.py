"""`engine doctor`: what is wrong here, of this machine and of each backend, and what would help."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from engine.backends import installed
from engine.backends.probe import TIME_LIMIT_S
from engine.cli.build import Json, require_timeout
from engine.cli.output import as_json, console, line, plain, print_trimmed
from engine.cli.plugins import values
from engine.cli.progress import progress
from engine.diagnosis import BackendDiagnosis, Diagnosis, Finding, Status, diagnose

EPILOG = """[bold]Examples[/bold]

  engine doctor

  engine doctor gpu_trt

  engine doctor --json

[bold]Findings[/bold]

  ok  it is as it should be

  note  worth knowing, or a doubt; it stops nothing that is installed

  problem  it stops an installed backend, or one that you named

[bold]Exit status[/bold]

  0  there is no problem

  1  there is one"""

_STYLES = {Status.OK: "green", Status.NOTE: "yellow", Status.PROBLEM: "bold red"}


def doctor(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="A backend, or the device type that it serves; all that are installed, if none.",
            show_default=False,
            autocompletion=installed,
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a backend may take to answer.")
    ] = TIME_LIMIT_S,
    json: Json = False,
) -> None:
    """Find out what is wrong here, and what would help.

    Looks at Python, the installed packages, the processors, the environment and the backends.
    Each backend is asked in a process of its own, so one that crashes or hangs takes nothing
    with it.
    """
    require_timeout(timeout)
    with progress() as show:
        show("asking the backends", 0, None)
        found = diagnose(names or (), timeout)
    found = replace(found, backends=tuple(_patient(each, timeout) for each in found.backends))
    if json:
        as_json(
            {
                "ok": not found.ailing,
                "machine": [asdict(each) for each in found.machine],
                "backends": [_values(each) for each in found.backends],
            }
        )
    else:
        _print(found)
    if found.ailing:
        raise typer.Exit(1)


def _patient(each: BackendDiagnosis, timeout: float) -> BackendDiagnosis:
    """The same; where only our time limit is known to stand in the way, that is to go up first."""
    longer = max(TIME_LIMIT_S, 2 * timeout)
    findings = (
        replace(one, fix=f"give it longer: --timeout {longer:g}; if it does not answer, {one.fix}")
        if "did not answer within" in one.detail
        else one
        for one in each.findings
    )
    return replace(each, findings=tuple(findings))


def _values(each: BackendDiagnosis) -> dict[str, Any]:
    return {**values(each.record), "findings": [asdict(finding) for finding in each.findings]}


def _print(found: Diagnosis) -> None:
    _print_section("machine", found.machine)
    for each in found.backends:
        line()
        parts = (each.record.name, each.record.distribution, each.record.version)
        _print_section(" ".join(part for part in parts if part), each.findings)
    line()
    line(f"problems with: {', '.join(map(plain, found.ailing))}" if found.ailing else "no problem")


def _print_section(title: str, findings: tuple[Finding, ...]) -> None:
    """The findings under a title; a step that helps with several is said once, with the first."""
    out = console()
    out.print(Text(plain(title), style="bold"))
    said: set[str] = set()
    for each in findings:
        grid = Table.grid(Column(width=len(Status.PROBLEM)), Column(), padding=(0, 2, 0, 0))
        detail = f": {plain(each.detail)}" if each.detail else ""
        text = Text.assemble((plain(each.name), "bold"), detail)
        grid.add_row(Text(each.status, style=_STYLES[each.status]), text)
        print_trimmed(out, grid)
        if each.fix and each.fix not in said:
            said.add(each.fix)
            # Not broken by us where the terminal is narrow: it is there to be copied.
            line(f"{'':{len(Status.PROBLEM)}}  fix: {plain(each.fix)}")
