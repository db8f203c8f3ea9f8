"""The reference of all commands, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from engine.cli.app import app


def all_commands() -> str:
    """Return the sections of all commands, as Markdown."""
    return "".join(sections(click.Context(app, info_name="engine")))


def sections(context: click.Context) -> Iterator[str]:
    """Yield the sections of a command and of those below it."""
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"\n## {context.command_path}\n\n```text\n{usage}\n```\n"
    yield f"\n{description(command)}\n"
    rows = [
        record for each in command.get_params(context) if (record := each.get_help_record(context))
    ]
    yield table(rows)
    if command.epilog:
        yield f"\n```text\n{inspect.cleandoc(command.epilog.replace(chr(8), ''))}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from sections(click.Context(below, info_name=name, parent=context))


def description(command: click.Command) -> str:
    """Return the help text of a command as Markdown; what click keeps as it is, as code."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(command.help or ""))
    return "\n\n".join(
        f"```text\n{inspect.cleandoc(text[1:])}\n```" if text.startswith("\b") else text
        for text in paragraphs
    )


def table(rows: list[tuple[str, str]]) -> str:
    """Return options and their meanings as a table of Markdown."""
    lines = "".join(f"| `{name}` | {escaped(meaning)} |\n" for name, meaning in rows)
    return f"\n| option | meaning |\n|---|---|\n{lines}" if rows else ""


def escaped(text: str) -> str:
    """Return text as a cell of a table."""
    return re.sub(r"([|<>*_\[\]])", r"\\\1", " ".join(text.split()))
