"""`engine plugins`: which backends are here, in what state, and what would help."""

from __future__ import annotations

from typing import Any

import typer

from engine.backends import OFFICIAL, BackendRecord, BackendState, known, record
from engine.backends.manifest import option_values
from engine.backends.probe import probe_all
from engine.cli import check
from engine.cli.build import Json
from engine.cli.output import as_json, line, plain, size, table

EPILOG = """[bold]Examples[/bold]

  engine plugins

  engine plugins --json

  engine plugins check cpu

[bold]States[/bold]

  ready  it can be used here

  no device  it works, but finds no device; the reason says why

  broken  it fails to import, or crashed when it was asked for its devices

  incompatible  it was made for another version of this package

  disabled  ENGINE_DISABLED_BACKENDS names it

  not installed  no installed distribution offers it"""

app = typer.Typer(epilog=EPILOG)
app.command("check", epilog=check.EPILOG)(check.check_backend)


@app.callback(invoke_without_command=True)
def plugins(context: typer.Context, json: Json = False) -> None:
    """List the backends, their state, and what would help.

    Each is looked at in a process of its own, so that one that crashes takes nothing with it.
    """
    if context.invoked_subcommand is None:
        list_backends(json)
    else:
        context.obj = json


@app.command("list", epilog=EPILOG)
def list_command(context: typer.Context, json: Json = False) -> None:
    """List the backends: the same as `engine plugins`."""
    list_backends(json or bool(context.obj))


def list_backends(json: bool) -> None:
    """Print one entry for each backend that is installed or that this project ships."""
    found = {backend.name: backend for backend in probe_all(known())}
    for name in OFFICIAL.values():
        found.setdefault(name, record(name))
    ordered = sorted(found.values(), key=lambda backend: (not _is_here(backend), backend.name))
    if json:
        as_json({"backends": [values(backend) for backend in ordered]})
        return
    table(
        "",
        ("backend", "state", "version", "serves", "devices"),
        [
            (
                backend.name,
                _words(backend.state),
                backend.version,
                ", ".join(backend.info.device_types) if backend.info else "",
                tuple(_device(device) for device in values(backend)["devices"]),
            )
            for backend in ordered
        ],
    )
    for backend in ordered:
        remarks = [("reason", backend.reason), ("fix", backend.fix)]
        remarks += [("warning", text) for text in backend.warnings]
        remarks += [("lacks", text) for text in _lacking(backend)]
        shown = [f"  {label}: {plain(text)}" for label, text in remarks if text]
        if shown:
            line()
            line(f"{plain(backend.name)} ({_words(backend.state)}):")
            for text in shown:
                line(text)


def _lacking(record: BackendRecord) -> list[str]:
    """Describe what its devices cannot do of what the backend announces."""
    found = record.devices.found if record.devices else ()
    return [
        f"{info.device} has no {flag}: {why}" for info in found for flag, why in info.lacks.items()
    ]


def _is_here(backend: BackendRecord) -> bool:
    return backend.state is not BackendState.NOT_INSTALLED


def _words(state: BackendState) -> str:
    return state.replace("_", " ")


def _device(device: dict[str, Any]) -> str:
    memory = device["memory_bytes"]
    parts = [device["device"], device["name"], size(memory) if memory is not None else ""]
    return ", ".join(part for part in parts if part)


def values(backend: BackendRecord) -> dict[str, Any]:
    """A record as plain values, as `--json` prints it."""
    info, devices = backend.info, backend.devices
    return {
        "name": backend.name,
        "state": str(backend.state),
        "distribution": backend.distribution,
        "version": backend.version,
        "device_types": list(info.device_types) if info else [],
        "providers": list(info.providers) if info else [],
        "formats": list(info.formats) if info else [],
        "capabilities": sorted(str(flag) for flag in info.capabilities) if info else [],
        "devices": [
            {
                "device": str(one.device),
                "name": one.name,
                "memory_bytes": one.memory_bytes,
                "lacks": {str(flag): why for flag, why in one.lacks.items()},
            }
            for one in (devices.found if devices else ())
        ],
        "options": {
            name: option_values(option) for name, option in (info.options if info else {}).items()
        },
        "reason": backend.reason,
        "fix": backend.fix,
        "warnings": list(backend.warnings),
    }
