"""Draws docs/pictures/terminal.svg from what the commands print: python docs/site/terminal.py.

tests/test_docs.py compares the picture with what they print.
"""

from __future__ import annotations

import subprocess
import sys
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs/pictures/terminal.svg"
COMMANDS = {
    "engine run --example --input examples/digits/test_images.npz --values 5": ("-m", "engine"),
    "python examples/digits/classify.py": (),
}
_COLUMNS, _LINE, _LETTER, _EDGE = 78, 19, 8.15, 16


def printed() -> list[str]:
    """Return the lines of a terminal in which the commands were run."""
    lines: list[str] = []
    for command, start in COMMANDS.items():
        run = [sys.executable, *start, *command.split()[1:]]
        done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True)
        for line in [f"$ {command}", *done.stdout.rstrip().splitlines(), ""]:
            lines += wrap(line, _COLUMNS) or [""]
    return lines[:-1]


def drawn(lines: list[str]) -> str:
    """Return a picture of a terminal with these lines."""
    width = round(2 * _EDGE + _LETTER * _COLUMNS)
    height = 2 * _EDGE + _LINE * len(lines)
    text = "\n".join(
        f'  <text class="{"command" if line.startswith("$ ") else "line"}" x="{_EDGE}" '
        f'y="{_EDGE + _LINE * (place + 0.75):g}">{escape(line)}</text>'
        for place, line in enumerate(lines)
        if line
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
  <title>Commands of engine, and what they print</title>
  <style>
    text {{ font: 13.5px ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre; }}
    .line {{ fill: #d7dce8; }}
    .command {{ fill: #8fd18f; font-weight: bold; }}
  </style>
  <rect width="{width}" height="{height}" rx="8" fill="#1b1f2a"/>
{text}
</svg>
"""


if __name__ == "__main__":
    PICTURE.write_text(drawn(printed()))
