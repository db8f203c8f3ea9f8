"""Docstrings as Markdown: lines "name: text" become a list, doctests code.

An extension of griffe, which reads the docstrings for the reference pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

_ITEM = re.compile(r"(\*{0,2}[A-Za-z_]\w*(?:, \*{0,2}[A-Za-z_]\w*)*): (.*)")
_SENTENCE = re.compile(r"(Returns?|Raises?|Yields?)\b")
_FILE = re.compile(r"[\w/]+(\.py|/)(,|:|;|  | )")


class Markdown(griffe.Extension):
    """Rewrites each docstring once it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring:
            obj.docstring.value = "\n".join(lines_of(obj.docstring.value))


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines of a docstring as Markdown."""
    for block in re.split(r"\n[ ]*\n", text):
        lines = block.splitlines()
        if not lines:
            continue
        if lines[0].startswith(">>>"):
            yield from ("```pycon", *lines, "```", "")
        elif _FILE.match(lines[0]):
            yield from ("```text", *lines, "```", "")
        else:
            yield from (*prose(lines), "")


def prose(lines: list[str]) -> Iterator[str]:
    """Yield a block of sentences and of items; what goes on in the next line stays together."""
    is_item, ended = False, True
    for line in lines:
        item = _ITEM.fullmatch(line) if ended else None
        if item:
            yield from (() if is_item else ("",))
            yield f"* `{item[1]}`: {item[2]}"
            is_item = True
        elif (ended and _SENTENCE.match(line)) or (is_item and ended and line[:1].isupper()):
            yield from ("", line)
            is_item = False
        else:
            yield f"    {line.strip()}" if is_item else line
        ended = line.endswith((".", ":", ";"))
