"""Temporary folders for intermediate files of a conversion."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.convert.job import Job
from engine.errors import ModelError

MEMORY = Path("/dev/shm")
"""Folder whose files are in memory and never reach a disk."""


@contextmanager
def scratch(job: Job) -> Iterator[Path]:
    """Yield a temporary folder of the user's own; in memory (tmpfs) where the job has keys.

    What is encrypted should not reach a disk in clear, deleted or not.
    Raises ModelError where there is no such memory.
    """
    if job.is_secret and not MEMORY.is_dir():
        raise ModelError(
            f"with a key nothing may be written to disk in clear: expected {MEMORY}, files in "
            "memory, for what lies between the model and its result; mount it, or convert without "
            "a key",
            str(job.model_file),
        )
    folder = MEMORY if job.is_secret else None
    with tempfile.TemporaryDirectory(prefix="engine-convert-", dir=folder) as path:
        yield Path(path)
