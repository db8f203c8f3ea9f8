"""Files between the steps of a conversion; in memory, and none outlives the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from engine.converter.job import Job
from engine.errors import ModelError
from engine.host.folder import HAS_NAMELESS_FILES, nameless_file, temporary_folder

MEMORY = Path("/dev/shm")
"""Folder whose files are in memory and never reach a disk."""


@contextmanager
def scratch(job: Job) -> Iterator[Path]:
    """Yield a temporary folder of the user's own; in memory (tmpfs) where the job has keys.

    Encrypted content should not reach a disk in clear, deleted or not.
    Raises ModelError where there is no such memory.
    """
    if job.is_secret and not MEMORY.is_dir():
        raise ModelError(
            f"with a key nothing may be written to disk in clear: expected {MEMORY}, files in "
            "memory, for what lies between the model and its result; mount it, or convert without "
            "a key",
            str(job.model_file),
        )
    with temporary_folder("engine-convert-", MEMORY if job.is_secret else None) as path:
        yield path


@contextmanager
def scratch_file(job: Job) -> Iterator[tuple[IO[bytes], str]]:
    """Yield a temporary file, and a path by which a library writes it; no name where it can be.

    Raises ModelError as `scratch` does.
    """
    if not HAS_NAMELESS_FILES:
        with scratch(job) as folder, (folder / "file").open("w+b") as file:
            yield file, file.name
        return
    with nameless_file() as opened:
        yield opened
