"""Paths that stay right where the working folder changes."""

from __future__ import annotations

from pathlib import Path


def absolute(path: Path) -> Path:
    """Return a path that leads to the same file once the working folder is another.

    ".." stays in it: behind a link it leads elsewhere than the text says.
    """
    try:
        return path.absolute()
    except FileNotFoundError:  # the working folder was deleted
        return path
