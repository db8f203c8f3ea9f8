"""Values of options that a shell offers: targets, settings, files.

click completes commands, options and choices, and prints the scripts that ask for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

VARIABLE = "_ENGINE_COMPLETE"
"""Set to SHELL_source by users and to SHELL_complete by the scripts, as click says."""

Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> Any:
    """Leave the name of a file to the shell, which knows how.

    A model is known by its content, so no ending is asked for.
    """
    return [CompletionItem(incomplete, type="file")]


def one_of(choices: Callable[[], Any]) -> Completer:
    """Return what completes a value that must be one of the `choices` then."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        return [CompletionItem(name) for name in choices() if name.startswith(incomplete)]

    return complete


def targets(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return the targets that `incomplete` may become, each described; several have commas."""
    from engine.backends import OFFICIAL, installed

    listed, comma, begun = incomplete.rpartition(",")
    known = dict.fromkeys(OFFICIAL, "device type")
    for name in installed():
        known.setdefault(name, "backend")
    return [
        CompletionItem(f"{listed}{comma}{name}", help=what)
        for name, what in known.items()
        if name not in listed.split(",") and name.startswith(begun)
    ]


def set_keys(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Return the settings that `incomplete` may become, as SECTION.KEY=, or their values."""
    from engine.cli.known_settings import known_settings  # opens the backends that are meant

    key, equals, begun = incomplete.partition("=")
    settings = known_settings(context, parameter.name or "")
    if equals:
        values = settings[key].values if key in settings else ()
        return [CompletionItem(f"{key}={value}") for value in values if value.startswith(begun)]
    return [
        CompletionItem(f"{name}=", help=setting.text)
        for name, setting in settings.items()
        if name.startswith(incomplete)
    ]
