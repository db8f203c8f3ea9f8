"""The registry of hostile files, and the two ways to add one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

Writer: TypeAlias = Callable[[Path], Path]
"""Writes one model into the empty folder given and returns its path."""

CASES: list[tuple[str, Writer]] = []
BOMBS: list[tuple[str, Writer]] = []


def case(writer: Writer) -> Writer:
    """Add a case under the name of its writer."""
    CASES.append((writer.__name__, writer))
    return writer


def add(name: str, make: Callable[[], bytes], where: list[tuple[str, Writer]] = CASES) -> None:
    """Add a case that is only bytes; they are made when it is written."""

    def write(folder: Path) -> Path:
        path = folder / "model.onnx"
        path.write_bytes(make())
        return path

    where.append((name, write))
