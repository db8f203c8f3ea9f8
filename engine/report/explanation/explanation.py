"""An explanation of a model, as users get it: what was found, and its pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config.text import html_tables
from engine.report.explanation.found import MOST_ROWS, Findings
from engine.report.explanation.page import page
from engine.report.explanation.thumbnail import thumbnail


@dataclass(frozen=True, repr=False)
class Explanation(Findings):
    """A model, explained. Prints as text, shows as a picture in a notebook."""

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page that draws the graph; it is one file and loads nothing. Raises OSError."""
        Path(path).write_text(page([self]), encoding="utf-8")

    def _repr_html_(self) -> str:
        facts = self.facts()
        title = facts.pop("model")
        known = [(name, text) for name, text in facts.items() if text]
        tables: list[tuple[str, Sequence[Sequence[object]]]] = [
            ("", known),
            ("by operator", [self.operator_head, *self.operator_rows()[:MOST_ROWS]]),
        ]
        return f"<div>{thumbnail(self)}{html_tables(title, tables)}</div>"
