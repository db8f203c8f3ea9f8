"""Prints for all commands: results on standard output, messages on standard error."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Literal, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from engine.config.text import counted as counted
from engine.config.text import duration as duration
from engine.config.text import plain as plain
from engine.config.text import size as size

# A pipe has no width: tables take the room they need and lines are not broken.
_UNLIMITED = 10_000
_GAP = 2  # blanks between the columns of a table
_LEAST = 12  # a column that is squeezed below this can no longer be read
_LONGEST_WORD = 36  # a longer one, such as a path or a digest, may be broken; others are kept whole


class Talk(IntEnum):
    """The messages that are wanted on standard error, beside errors."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


_talk = Talk.NORMAL
_ALWAYS = ("error:", "help:", "interrupted")


def set_talk(talk: Talk) -> None:
    """Say which messages the user wants from now on."""
    global _talk
    _talk = talk


def talk() -> Talk:
    """Return which messages the user wants."""
    return _talk


def is_terminal(stream: str) -> bool:
    """Return whether the stream, "stdout" or "stderr", is a terminal."""
    opened = getattr(sys, stream)
    return opened is not None and opened.isatty()


class _Console(Console):
    """A console whose reader may go away: that is for the command to notice, as with print."""

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError that is being handled; rich would end the process."""
        raise


def styles() -> Literal["auto"] | None:
    """Return rich's color_system: None, for no styles at all, where NO_COLOR is set."""
    return None if os.environ.get("NO_COLOR") else "auto"


def console() -> Console:
    """Return a console on standard output: styled on a terminal, plain and wide in a pipe.

    COLUMNS sets the width in both; with NO_COLOR there are no styles at all, bold neither. Names
    from files are data, so nothing in a text is read as markup.
    """
    is_pipe = not is_terminal("stdout") and not os.environ.get("COLUMNS")
    return _Console(
        file=sys.stdout,
        width=_UNLIMITED if is_pipe else None,
        markup=False,
        highlight=False,
        emoji=False,
        color_system=styles(),
    )


def line(text: str = "") -> None:
    """Print one line of a result; the terminal breaks it where it is too long."""
    print(text)


def notes(texts: Iterable[str]) -> None:
    """Print messages about the result, which may have names from files in them."""
    for text in texts:
        note(plain(text))


def aside(text: str) -> None:
    """Print how a result came about, in front of it; --quiet leaves it out."""
    if _talk is not Talk.QUIET:
        print(text)


def note(text: str) -> None:
    """Print a message about the result, not the result. Where nobody can read it, it is lost.

    With --quiet only errors are.
    """
    if _talk is Talk.QUIET and not text.startswith(_ALWAYS):
        return
    sys.stdout.flush()  # keeps the order where both go to one place
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Let what is still to be printed go nowhere: Python flushes it once more when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], is_first: bool = False
) -> None:
    """Print a table, nothing of it cut off; a title, if any, stands above it after a blank line.

    Where the terminal is too narrow for its columns, each row becomes a list of its cells.

    columns: the headings; one that begins with ">" is a column of numbers, set to the right.
    rows: cells; a tuple is several lines. is_first: only asides stand above it, so that with
    --quiet it has no blank line.
    """
    cells = [[_lines(cell) for cell in row] for row in rows]
    out = console()
    if title:
        if is_first:
            aside("")
        else:
            out.print()
        out.print(Text(title, style="bold underline"))
    names = [name.removeprefix(">") for name in columns]
    is_number = [name.startswith(">") for name in columns]
    widest = [
        max([cell_len(name), *(cell_len(text) for row in cells for text in row[place])])
        for place, name in enumerate(names)
    ]
    gaps = _GAP * (len(names) - 1)
    # Numbers are short; where room is scarce the other columns give way.
    least = [
        width if right else max(cell_len(name), min(width, _LEAST), _longest_word(cells, place))
        for place, (name, width, right) in enumerate(zip(names, widest, is_number, strict=True))
    ]
    if sum(widest) + gaps <= out.width:
        _print_rows(out, names, cells, widest, is_number)
    elif sum(least) + gaps <= out.width:
        widths = _squeezed(widest, least, out.width - gaps)
        _print_rows(out, names, _fold(out, cells, widths), widths, is_number)
    else:
        _print_records(names, cells)


def _longest_word(rows: Sequence[Sequence[list[str]]], place: int) -> int:
    """Return the width of a column's longest word among those that are to be kept whole."""
    words = (word for row in rows for text in row[place] for word in text.split())
    return max((n for word in words if (n := cell_len(word)) <= _LONGEST_WORD), default=0)


def _print_rows(
    out: Console,
    names: Sequence[str],
    rows: Sequence[Sequence[list[str]]],
    widths: Sequence[int],
    is_number: Sequence[bool],
) -> None:
    """Print columns that have the room they need; rich would take a second for 3000 rows."""

    def joined(texts: Sequence[str]) -> str:
        padded = []
        for text, width, right in zip(texts, widths, is_number, strict=True):
            blanks = " " * (width - cell_len(text))
            padded.append(blanks + text if right else text + blanks)
        return (" " * _GAP).join(padded).rstrip()

    out.print(Text(joined(names), style="bold"))
    for row in rows:
        for texts in itertools.zip_longest(*row, fillvalue=""):
            print(joined(texts))


def _fold(
    out: Console, rows: Sequence[Sequence[list[str]]], widths: Sequence[int]
) -> list[list[list[str]]]:
    """Return the cells with lines that are no longer than their columns are wide."""
    return [
        [
            [part.plain.rstrip() for text in texts for part in _parts(out, text, width)]
            for texts, width in zip(row, widths, strict=True)
        ]
        for row in rows
    ]


def _parts(out: Console, text: str, width: int) -> list[Text]:
    return [*Text(text).wrap(out, width, overflow="fold")] or [Text()]


def _squeezed(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return widths of columns that fit into the room: the widest that can give way does."""
    fitting = [*widths]
    while sum(fitting) > room:
        slack = [place for place, width in enumerate(fitting) if width > least[place]]
        fitting[max(slack, key=fitting.__getitem__)] -= 1
    return fitting


def _lines(cell: object) -> list[str]:
    return [plain(str(text)) for text in (cell if isinstance(cell, tuple) else (cell,))]


def _print_records(names: Sequence[str], rows: Sequence[Sequence[list[str]]]) -> None:
    for place, row in enumerate(rows):
        if place:
            line()
        _print_fields(dict(zip(names, row, strict=True)))


def fields(pairs: Mapping[str, str]) -> None:
    """Print names and their values, one pair a line, the values aligned; empty ones left out."""
    _print_fields({name: [plain(value)] for name, value in pairs.items()})


def _print_fields(pairs: Mapping[str, list[str]]) -> None:
    grid = Table.grid(
        Column(style="bold", no_wrap=True), Column(overflow="fold"), padding=(0, _GAP, 0, 0)
    )
    for name, texts in pairs.items():
        if any(texts):
            grid.add_row(Text(name), Text("\n".join(texts)))
    print_trimmed(console(), grid)


def print_trimmed(out: Console, grid: Table) -> None:
    """Print without the blanks that a grid leaves at the ends of lines."""
    if out.is_terminal:
        out.print(grid)
        return
    with out.capture() as captured:
        out.print(grid)
    for text in captured.get().splitlines():
        print(text.rstrip())


def attributes(thing: object, *names: str) -> dict[str, Any]:
    """Return attributes of an object by name, for JSON."""
    return {name: getattr(thing, name) for name in names}


def as_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object, indented; see `strict`."""
    print(json.dumps(strict(values), indent=2, allow_nan=False))


def strict(value: Any) -> Any:
    """Return a value as JSON knows it: "nan", "inf" as strings, complex numbers as pairs."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # "nan", "inf", "-inf": float() reads them back
    if isinstance(value, complex):
        return strict([value.real, value.imag])
    if isinstance(value, Mapping):
        return {str(key): strict(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [strict(element) for element in value]
    return value
