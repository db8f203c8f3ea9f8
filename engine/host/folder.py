"""Temporary files that do not outlive the process, however it ends.

    with nameless_file() as (file, path):          # in memory, and gone with the last descriptor
        library.write(path)
        content = file.read()

    with temporary_folder("engine-") as folder:    # removed by a process of its own, if need be
        ...

Signal handlers would not do: a library has no say over them, a thread inside a runtime does not
let them run, and SIGKILL has none.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

HAS_NAMELESS_FILES = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
"""True where `nameless_file` works: it takes Linux and /proc."""

_REMOVE = """
read _                       # until told, or the other end of the pipe is closed
for _ in 1 2 3 4 5 6 7 8 9; do
    rm -rf -- "$1" && exit   # fails while somebody still writes there
    sleep 0.1
done
"""


@contextmanager
def nameless_file() -> Iterator[tuple[IO[bytes], str]]:
    """Yield a file in memory that is in no folder, and a path by which libraries open it."""
    with os.fdopen(os.memfd_create("engine"), "r+b") as file:
        yield file, f"/proc/self/fd/{file.fileno()}"


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a folder of the user's own, removed at the end of the block or of the process.

    parent: the folder that it is made in; None for the system's temporary one.
    """
    path = Path(parent or tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}"
    read, write = os.pipe()
    try:
        # In a session of its own: what is sent to this process's group does not reach it.
        remover = subprocess.Popen(
            ["/bin/sh", "-c", _REMOVE, "sh", str(path)],
            stdin=read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            os.close(read)
            read = -1
            path.mkdir(mode=0o700)
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):  # somebody has killed it
                # Closing alone would not do: a child forked meanwhile has the pipe open, too.
                os.write(write, b"\n")
            remover.wait()
    finally:
        for descriptor in (read, write):
            if descriptor >= 0:
                os.close(descriptor)
