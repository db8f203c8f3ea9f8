"""What `--help` prints: every option in full, on any width of terminal."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterator
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from engine.cli.output import console

_WIDEST = 100  # longer lines are hard to read
_LEAST = 24  # with less room beside an option than this, its text stands under it


class HelpContext(typer.Context):
    """A command's context that writes its help page this way."""

    def get_help(self) -> str:
        """The page, with styles if standard output is a terminal."""
        out = console(min(shutil.get_terminal_size().columns, _WIDEST))
        with out.capture() as captured:
            _print(out, self.command, self)
        return "\n".join(text.rstrip() for text in captured.get().splitlines())


def use(command: Any) -> None:
    """Give `command` and those below it this kind of help page."""
    command.context_class = HelpContext
    for each in getattr(command, "commands", {}).values():
        use(each)


def _print(out: Console, command: Any, context: typer.Context) -> None:
    parameters = [each for each in command.get_params(context) if not each.hidden]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    options = [each for each in parameters if each.param_type_name == "option"]
    commands = getattr(command, "commands", {})
    pieces = ["[OPTIONS]", *(_argument(each) for each in arguments)]
    if commands:
        is_needed = not command.invoke_without_command or context.parent is None
        pieces.append("COMMAND [ARGS]..." if is_needed else "[COMMAND] [ARGS]...")
    out.print(Text.assemble(("Usage:", "bold"), f" {context.command_path} {' '.join(pieces)}"))
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        out.print()
        out.print(Text(" ".join(paragraph.split())))
    rows = [(_argument(each), each.help or "") for each in arguments]
    _definitions(out, "Arguments", rows)
    _definitions(out, "Options", [_option(each, context) for each in options])
    shown = {name: each for name, each in commands.items() if not each.hidden}
    rows = [(name, _first_paragraph(each.help)) for name, each in shown.items()]
    _definitions(out, "Commands", rows)
    for heading, paragraphs in _sections(command.epilog or ""):
        if all("  " in each for each in paragraphs):
            pairs = [each.partition("  ") for each in paragraphs]
            rows = [(term, " ".join(text.split())) for term, _, text in pairs]
            _definitions(out, heading, rows)
            continue
        _heading(out, heading)
        for each in paragraphs:
            if each.startswith("engine "):  # one line, however narrow: it is there to be copied
                out.print(Text(f"  {each}"), soft_wrap=True)
            else:
                out.print(Padding(Text(" ".join(each.split())), (0, 0, 0, 2)))


def _argument(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name.upper())
    name = name if parameter.required else f"[{name}]"
    return f"{name}..." if parameter.nargs == -1 else name


def _option(parameter: Any, context: typer.Context) -> tuple[str, str]:
    term, text = parameter.get_help_record(context)
    # Typer calls the value x when it says its range; in the help it has a name.
    return term, re.sub(r"(?<![\w.])x(?=[<>]=)", parameter.metavar or "x", text)


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())


def _sections(epilog: str) -> Iterator[tuple[str, list[str]]]:
    """The headings of an epilog, "[bold]...[/bold]" each, and the paragraphs under them."""
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
    if out.width - max(cell_len(term) for term, _ in rows) - 4 < _LEAST:
        for term, text in rows:
            out.print(Padding(Text(term, "cyan"), (0, 0, 0, 2)))
            out.print(Padding(Text(text), (0, 0, 0, 6)))
        return
    grid = Table.grid(Column(style="cyan", no_wrap=True), Column(), padding=(0, 2, 0, 0))
    for term, text in rows:
        grid.add_row(Text(term), Text(text))
    out.print(Padding(grid, (0, 0, 0, 2)))
