"""Compiled forms: XLA's code of a program, which needs no compiler in the next process."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

from jax.experimental import serialize_executable

from engine.errors import CompiledFormError, one_line

_PROGRAM = "program.pickle"


def write(folder: Path, program: tuple[Any, list[str]]) -> None:
    """Write a program, after a digest to tell a damaged file by."""
    data = pickle.dumps((serialize_executable.serialize(program[0]), program[1]))
    (folder / _PROGRAM).write_bytes(hashlib.sha256(data).digest() + data)


def read(folder: Path) -> tuple[Any, list[str]]:
    """Return a program. Raises CompiledFormError where it is missing or damaged."""
    try:
        written = (folder / _PROGRAM).read_bytes()
        digest, data = written[:32], written[32:]
        if hashlib.sha256(data).digest() != digest:
            raise ValueError("its digest is another one")
        form, messages = pickle.loads(data)  # the core keeps it as this backend wrote it
        return serialize_executable.deserialize_and_load(*form), messages
    except Exception as error:  # of files, pickle and XLA
        raise CompiledFormError(f"{folder / _PROGRAM}: {one_line(error)}") from error
