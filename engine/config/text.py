"""Text for people: names without control characters, rows in columns."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence


def plain(text: str) -> str:
    """Return `text` with control characters spelled out: a name must not drive the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def aligned(rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()) -> list[str]:
    """Return rows of cells as lines, the columns aligned; those in `numbers` to the right."""
    cells = [[plain(str(cell)) for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = []
        for place, (text, width) in enumerate(zip(row, widths, strict=True)):
            blanks = " " * (width - _width(text))
            padded.append(blanks + text if place in numbers else text + blanks)
        lines.append("  ".join(padded).rstrip())
    return lines


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))
