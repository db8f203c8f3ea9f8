"""The pages of `--help`: every option in full, on any width of terminal."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence

import click
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from engine.cli.output import console

_WIDEST = 100  # longer lines are hard to read
_LEAST = 24  # with less room beside an option than this, its text stands under it
_GROUPS = {
    "Inputs": {"files", "shapes", "fill", "seed"},
    "Images as inputs": {"layout", "resize", "scale", "mean", "std"},
    "How it is built": {
        "target", "a", "b", "device_id", "threads", "config", "settings", "settings_a",
        "settings_b", "dec_key", "dec_mode",
    },
    "General": {"json", "verbose", "quiet", "--help", "--version"},
}  # fmt: skip
_LEAST_GROUP = 3
_TERM = 0.36  # a term that is wider than this part of the page has its text under it


class HelpContext(click.Context):
    """A command's context that writes its help page this way."""

    def get_help(self) -> str:
        """Return the page, with styles if standard output is a terminal."""
        out = console(min(shutil.get_terminal_size().columns, _WIDEST))
        with out.capture() as captured:
            _print(out, self.command, self)
        return "\n".join(text.rstrip() for text in captured.get().splitlines())


def _print(out: Console, command: click.Command, context: click.Context) -> None:
    parameters = command.get_params(context)
    arguments = [argument for argument in parameters if isinstance(argument, click.Argument)]
    options = [
        option for option in parameters if isinstance(option, click.Option) and not option.hidden
    ]
    commands: Mapping[str, click.Command] = {}
    pieces = ["[OPTIONS]", *(_argument(argument) for argument in arguments)]
    if isinstance(command, click.Group):
        names = command.list_commands(context)
        found = {name: command.get_command(context, name) for name in names}
        commands = {name: below for name, below in found.items() if below is not None}
        is_needed = not command.invoke_without_command or context.parent is None
        pieces.append("COMMAND [ARGS]..." if is_needed else "[COMMAND] [ARGS]...")
    out.print(Text.assemble(("Usage:", "bold"), f" {context.command_path} {' '.join(pieces)}"))
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        out.print()
        out.print(Text(" ".join(paragraph.split())))
    rows = [(_argument(argument), getattr(argument, "help", "") or "") for argument in arguments]
    _definitions(out, "Arguments", rows)
    for heading, group in _grouped(options):
        _definitions(out, heading, [_option(option, context) for option in group])
    rows = [(name, _first_paragraph(below.help)) for name, below in commands.items()]
    _definitions(out, "Commands", rows)
    for heading, paragraphs in _sections(command.epilog or ""):
        if all("  " in paragraph for paragraph in paragraphs):
            pairs = [paragraph.partition("  ") for paragraph in paragraphs]
            rows = [(term, " ".join(text.split())) for term, _, text in pairs]
            _definitions(out, heading, rows)
            continue
        _heading(out, heading)
        for paragraph in paragraphs:
            if paragraph.startswith(
                "engine "
            ):  # one line, however narrow: it is there to be copied
                out.print(Text(f"  {paragraph}"), soft_wrap=True)
            else:
                out.print(Padding(Text(" ".join(paragraph.split())), (0, 0, 0, 2)))


def _grouped(options: Sequence[click.Option]) -> Iterator[tuple[str, list[click.Option]]]:
    """Yield a command's own options, then those that it shares with others, under headings."""
    groups = {
        heading: [option for option in options if names & {option.name, *option.opts}]
        for heading, names in _GROUPS.items()
    }
    large = {heading: group for heading, group in groups.items() if len(group) >= _LEAST_GROUP}
    grouped = [option for group in large.values() for option in group]
    yield "Options", [option for option in options if option not in grouped]
    yield from large.items()


def _argument(argument: click.Argument) -> str:
    name = argument.human_readable_name
    name = name if argument.required else f"[{name}]"
    return f"{name}..." if argument.nargs == -1 else name


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    term, text = option.get_help_record(context) or ("", "")
    # Click calls the value x when it says its range; in the help it has a name.
    return term, re.sub(r"(?<![\w.])x(?=[<>]=)", option.metavar or "x", text)


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())


def _sections(epilog: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the headings of an epilog, "[bold]...[/bold]" each, and the paragraphs under them."""
    heading = ""
    under: list[str] = []
    for paragraph in inspect.cleandoc(epilog).split("\n\n"):
        if paragraph.startswith("[bold]"):
            if under:
                yield heading, under
            heading, under = paragraph.removeprefix("[bold]").removesuffix("[/bold]"), []
        elif paragraph:
            under.append(inspect.cleandoc(paragraph))
    if under:
        yield heading, under


def _heading(out: Console, text: str) -> None:
    out.print()
    out.print(Text(f"{text}:", style="bold"))


def _definitions(out: Console, heading: str, rows: list[tuple[str, str]]) -> None:
    if not rows:
        return
    _heading(out, heading)
    widest = max(cell_len(term) for term, _ in rows)
    most = max(int(out.width * _TERM), min(cell_len(term) for term, _ in rows))
    if out.width - min(widest, most) - 4 < _LEAST:
        for term, text in rows:
            out.print(Padding(Text(term, "cyan"), (0, 0, 0, 2)))
            out.print(Padding(Text(text), (0, 0, 0, 6)))
        return
    width = max((cell_len(term) for term, _ in rows if cell_len(term) <= most), default=most)
    for term, text in rows:
        grid = Table.grid(
            Column(style="cyan", no_wrap=True, width=width), Column(), padding=(0, 2, 0, 0)
        )
        if cell_len(term) > width:
            out.print(Padding(Text(term, "cyan"), (0, 0, 0, 2)))
            term = ""
        grid.add_row(Text(term), Text(text))
        out.print(Padding(grid, (0, 0, 0, 2)))
