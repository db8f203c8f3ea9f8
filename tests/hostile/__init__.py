"""Hostile and damaged model files, each to be refused with a clear error.

`cases` are refused by `engine.formats` before any runtime sees them. `bombs` are valid ONNX that
asks a runtime for absurd memory or time: a backend must answer with an error, within its limits.
Both are written without the onnx package, which would refuse to write most of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine_testing.encode import valid

# Imported for the cases that they add.
from hostile import external, files, graphs, growth, unrunnable  # noqa: F401
from hostile.registry import BOMBS, CASES, Writer

__all__ = ["Writer", "bombs", "cases", "valid"]


def cases() -> Iterator[tuple[str, Writer]]:
    """Yield (name, writer) of each file that must be refused with a ModelError."""
    yield from CASES


def bombs() -> Iterator[tuple[str, Writer]]:
    """Yield (name, writer) of valid models that would take terabytes or forever to run.

    Each takes one input "x", float32 of any length. Building or running one must end in an error
    or at the deadline. Run them in a process with limited memory (RLIMIT_AS): "concat_doubling"
    takes as much as it is given.
    """
    yield from BOMBS
