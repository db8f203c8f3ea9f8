"""`engine plugins`: lists the backends and all other plugins, their state, and what would help."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import click

from engine.backends import BackendRecord, BackendState, PluginRecord
from engine.backends.install import pip_install
from engine.backends.isolation.listing import plugins as listed
from engine.backends.manifest import option_values
from engine.cli import options
from engine.cli.commands import LateGroup
from engine.cli.output import as_json, attributes, line, plain, size, table
from engine.types import DeviceInfo, DeviceMemory

EPILOG = """\b
Examples:
  engine plugins
  engine plugins --json
  engine plugins check cpu
  engine plugins new my_backend

\b
States:
  ready          it can be used here
  no device      it works, but finds no device; the reason says why
  broken         it fails to import, is not what its group expects, or crashed
  incompatible   it was made for another version of this package
  disabled       ENGINE_DISABLED_BACKENDS names it
  not installed  no installed distribution offers it, or what it needs is not
                 installed; the reason says which"""


_OF_THE_KIT = {
    "check": "engine_testing.command:check_backend",
    "new": "engine_testing.new_command:new_backend",
}
_HAS_KIT = find_spec("engine_testing") is not None


@click.group(
    "plugins",
    cls=LateGroup,
    late=_OF_THE_KIT if _HAS_KIT else {},
    epilog=EPILOG,
    invoke_without_command=True,
)
@options.json
@click.pass_context
def plugins(context: click.Context, json: bool) -> None:
    """List all plugins, their state, and what would help.

    They are looked at in processes of their own, so that one that crashes takes nothing with it.
    """
    if context.invoked_subcommand is None:
        list_plugins(json)
    else:
        context.obj = json


def _without_kit(words: tuple[str, ...]) -> None:
    raise ImportError(f"the conformance kit is not installed; run: {pip_install('testing')}")


if not _HAS_KIT:
    for _name, _help in (
        ("check", "Test whether an installed backend does what every backend must"),
        ("new", "Write a repository for a new backend"),
    ):
        plugins.command(
            _name,
            context_settings={"ignore_unknown_options": True},
            help=f"{_help} (not installed).",
        )(click.argument("words", nargs=-1, type=click.UNPROCESSED)(_without_kit))


@plugins.command("list", epilog=EPILOG)
@options.json
@click.pass_context
def list_command(context: click.Context, json: bool) -> None:
    """List the plugins: the same as `engine plugins`."""
    list_plugins(json or bool(context.obj))


def list_plugins(json: bool) -> None:
    """Print an entry for each plugin that is installed and each backend that this project ships."""
    backends, others = listed()
    if json:
        as_json(
            {
                "backends": [values(backend) for backend in backends],
                "plugins": [{"kind": found.kind, **_facts(found)} for found in others],
            }
        )
        return
    rows = [_row(backend, *_about(backend)) for backend in backends]
    table(
        "",
        ("kind", "name", "state", "package", "about"),
        [*rows, *(_row(found) for found in others)],
    )
    for found in (*backends, *others):
        remarks = [("reason", found.reason), ("fix", found.fix)]
        remarks += [("warning", text) for text in found.warnings]
        if isinstance(found, BackendRecord):
            remarks += [("lacks", text) for text in _lacking(found)]
            remarks += [("element types", text) for text in _element_types(found)]
        lines = [f"  {label}: {plain(text)}" for label, text in remarks if text]
        if lines:
            line()
            name = found.name if isinstance(found, BackendRecord) else f"{found.kind} {found.name}"
            line(f"{plain(name)} ({_words(found.state)}):")
            for text in lines:
                line(text)


def _row(found: PluginRecord, *about: str) -> tuple[object, ...]:
    package = f"{found.distribution} {found.version}".strip()
    return found.kind, found.name, _words(found.state), package, about


def _about(backend: BackendRecord) -> list[str]:
    serves = [f"serves {', '.join(backend.info.device_types)}"] if backend.info else []
    return serves + [_device(device) for device in values(backend)["devices"]]


def _lacking(backend: BackendRecord) -> list[str]:
    """Describe what a backend's devices cannot do of what it announces."""
    found = backend.devices.found if backend.devices else ()
    return [
        f"{info.device} has no {flag}: {why}" for info in found for flag, why in info.lacks.items()
    ]


def _element_types(backend: BackendRecord) -> list[str]:
    """Describe the element types of a backend's devices, where it says which they have."""
    found = backend.devices.found if backend.devices else ()
    return [f"{info.device} has {', '.join(sorted(info.dtypes))}" for info in found if info.dtypes]


def _words(state: BackendState) -> str:
    return state.replace("_", " ")


def _device(device: dict[str, Any]) -> str:
    total, free, used = (device[name] for name in ("memory_bytes", "free_bytes", "used_bytes"))
    parts = [
        device["device"],
        device["name"],
        "" if total is None else size(total),
        "" if free is None else f"{size(free)} free",
        "" if used is None else f"{size(used)} used",
    ]
    return ", ".join(part for part in parts if part)


def _facts(found: PluginRecord) -> dict[str, Any]:
    """Return what the records of all plugins have, as plain values."""
    return attributes(
        found, "name", "state", "distribution", "version", "reason", "fix", "warnings"
    )


def _device_values(found: DeviceInfo, memory: DeviceMemory | None) -> dict[str, Any]:
    return {
        "device": str(found.device),
        **attributes(found, "name", "memory_bytes", "lacks"),
        **attributes(memory or DeviceMemory(), "free_bytes", "used_bytes"),
        "dtypes": sorted(map(str, found.dtypes)),
    }


def values(backend: BackendRecord) -> dict[str, Any]:
    """Return a record as plain values, as `--json` prints it."""
    info, devices = backend.info, backend.devices
    return {
        **_facts(backend),
        "device_types": info.device_types if info else (),
        "providers": info.providers if info else (),
        "formats": info.formats if info else (),
        "capabilities": sorted(map(str, info.capabilities)) if info else (),
        "devices": [
            _device_values(found, backend.memory.get(found.device))
            for found in (devices.found if devices else ())
        ],
        "options": {
            name: option_values(option) for name, option in (info.options if info else {}).items()
        },
    }
