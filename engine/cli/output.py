"""What commands print: results on standard output, messages on standard error."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

# A pipe has no width: tables take the room they need and lines are not broken.
_UNLIMITED = 10_000


def console() -> Console:
    """A console on standard output: styled and as wide as the terminal, plain and wide in a pipe.

    COLUMNS sets the width in both; NO_COLOR is respected. Names from files are data, so nothing
    in a text is read as markup.
    """
    piped = not sys.stdout.isatty() and not os.environ.get("COLUMNS")
    return Console(
        file=sys.stdout,
        width=_UNLIMITED if piped else None,
        markup=False,
        highlight=False,
        emoji=False,
    )


def line(text: str = "") -> None:
    """Print one line of a result; the terminal breaks it where it is too long."""
    print(text)


def note(text: str) -> None:
    """Print a message about the result, not the result."""
    sys.stdout.flush()  # keeps the order where both go to one place
    print(text, file=sys.stderr)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table, nothing of it cut off; a title, if any, stands above it after a blank line.

    columns: the headings; one that begins with ">" is a column of numbers, set to the right.
    rows: cells; a tuple is several lines.
    """
    grid = Table(
        *(
            Column(
                name.removeprefix(">"),
                justify="right" if name.startswith(">") else "left",
                overflow="fold",
                # Numbers are short; where room is scarce the other columns give way.
                no_wrap=name.startswith(">"),
            )
            for name in columns
        ),
        box=None,
        header_style="bold",
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for row in rows:
        cells = (cell if isinstance(cell, tuple) else (cell,) for cell in row)
        grid.add_row(*(Text("\n".join(plain(str(each)) for each in cell)) for cell in cells))
    out = console()
    if title:
        out.print()
        out.print(Text(title, style="bold underline"))
    _print_trimmed(out, grid)


def fields(pairs: Mapping[str, str]) -> None:
    """Print names and their values, one pair a line, the values aligned; empty ones left out."""
    grid = Table.grid(Column(style="bold", no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for name, value in pairs.items():
        if value:
            grid.add_row(Text(name), Text(plain(value)))
    _print_trimmed(console(), grid)


def _print_trimmed(out: Console, grid: Table) -> None:
    """Print without the blanks that a grid leaves at the ends of lines."""
    if out.is_terminal:
        out.print(grid)
        return
    with out.capture() as captured:
        out.print(grid)
    for text in captured.get().splitlines():
        print(text.rstrip())


def as_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object, indented; numbers that JSON does not know become strings."""
    print(json.dumps(_strict(values), indent=2, allow_nan=False))


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # "nan", "inf", "-inf": float() reads them back
    if isinstance(value, Mapping):
        return {str(key): _strict(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    return value


def plain(text: str) -> str:
    """`text` with control characters spelled out: a model's names must not drive the terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def size(count: int) -> str:
    """A number of bytes for people: "840 bytes", "76.9 kB", "1.25 GB" (powers of 1000)."""
    if count < 1000:
        return f"{count} byte{'' if count == 1 else 's'}"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5:
            return f"{value:.3g} {unit}"
    return f"{value / 1000:.0f} TB"


def duration(seconds: float) -> str:
    """A time for people: "85.0 us", "1.20 ms", "3.40 s"."""
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 999.5:
            return f"{seconds * factor:#.3g} {unit}".replace(". ", " ")  # "250. ms"
    return f"{seconds:.2f} s"
