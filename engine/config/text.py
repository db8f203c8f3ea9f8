"""Text for people: names without control characters, tables, numbers, sizes, times."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from engine.options import nearest


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


def html_tables(title: str, sections: Iterable[tuple[str, Sequence[Sequence[object]]]]) -> str:
    """Return tables as HTML for notebooks: no script, no style sheet, the page's own colours.

    sections: a heading and the rows of cells under it, each; one without rows is left out.
    """
    from html import escape  # rare

    def shown(text: object) -> str:
        return escape(plain(str(text)))

    parts = [f"<strong>{shown(title)}</strong>"]
    for heading, rows in sections:
        cells = (
            "".join(f'<td style="text-align:left">{shown(c)}</td>' for c in row) for row in rows
        )
        if lines := "".join(f"<tr>{line}</tr>" for line in cells):
            parts.append(f"<div>{shown(heading)}</div><table>{lines}</table>")
    return f"<div>{''.join(parts)}</div>"


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def did_you_mean(word: str, words: Iterable[str], before: str = "") -> str:
    """Return "did you mean 'x'?" behind `before`; "" where none of the words is like it."""
    near = nearest(word, words)
    return f"{before}did you mean {str(near)!r}?" if near else ""


def counted(count: int, what: str) -> str:
    """Return a number of things as text: "1 node", "1,200 nodes"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def size(count: int) -> str:
    """Return bytes as text: "840 bytes", "76.9 kB", "1.25 GB" (powers of 1000)."""
    if count < 1000:
        return counted(count, "byte")
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5:
            return f"{value:.3g} {unit}"
    return f"{value / 1000:.0f} TB"


def duration(seconds: float) -> str:
    """Return a time as text: "85.0 us", "1.20 ms", "3.40 s"."""
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 999.5:
            return f"{seconds * factor:#.3g} {unit}".replace(". ", " ")  # "250. ms"
    return f"{seconds:.2f} s"


def rate(per_second: float) -> str:
    """Return a number of things in a second as text."""
    return f"{per_second:,.0f}" if per_second >= 1000 else f"{per_second:.3g}"
