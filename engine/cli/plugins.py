"""`engine plugins`: lists the backends, their state, and what would help."""

from __future__ import annotations

from typing import Any

import click

from engine.backends import BackendRecord, BackendState
from engine.backends.listing import backends
from engine.backends.manifest import option_values
from engine.cli import check, options
from engine.cli.commands import Group
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


@click.group("plugins", cls=Group, epilog=EPILOG, invoke_without_command=True)
@options.json
@click.pass_context
def plugins(context: click.Context, json: bool) -> None:
    """List the backends, their state, and what would help.

    Each is looked at in a process of its own, so that one that crashes takes nothing with it.
    """
    if context.invoked_subcommand is None:
        list_backends(json)
    else:
        context.obj = json


plugins.add_command(check.check_backend)


@plugins.command("list", epilog=EPILOG)
@options.json
@click.pass_context
def list_command(context: click.Context, json: bool) -> None:
    """List the backends: the same as `engine plugins`."""
    list_backends(json or bool(context.obj))


def list_backends(json: bool) -> None:
    """Print one entry for each backend that is installed or that this project ships."""
    ordered = backends()
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
        lines = [f"  {label}: {plain(text)}" for label, text in remarks if text]
        if lines:
            line()
            line(f"{plain(backend.name)} ({_words(backend.state)}):")
            for text in lines:
                line(text)


def _lacking(backend: BackendRecord) -> list[str]:
    """Describe what a backend's devices cannot do of what it announces."""
    found = backend.devices.found if backend.devices else ()
    return [
        f"{info.device} has no {flag}: {why}" for info in found for flag, why in info.lacks.items()
    ]


def _words(state: BackendState) -> str:
    return state.replace("_", " ")


def _device(device: dict[str, Any]) -> str:
    memory = device["memory_bytes"]
    parts = [device["device"], device["name"], size(memory) if memory is not None else ""]
    return ", ".join(part for part in parts if part)


def values(backend: BackendRecord) -> dict[str, Any]:
    """Return a record as plain values, as `--json` prints it."""
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
                "device": str(found.device),
                "name": found.name,
                "memory_bytes": found.memory_bytes,
                "lacks": {str(flag): why for flag, why in found.lacks.items()},
            }
            for found in (devices.found if devices else ())
        ],
        "options": {
            name: option_values(option) for name, option in (info.options if info else {}).items()
        },
        "reason": backend.reason,
        "fix": backend.fix,
        "warnings": list(backend.warnings),
    }
