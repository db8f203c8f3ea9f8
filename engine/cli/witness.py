"""A witness of a command's end: says so where a runtime ends the process without a word.

A crash is a signal, of which a shell says "Segmentation fault" at most. No handler in a process
that has crashed can be trusted to say more, so another one waits for its end.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.cli.output import plain

# The end of what is read is the end of the command; one that ends in good order says so.
_SCRIPT = "trap '' INT TERM HUP; read -r said || printf '%s\\n' \"$1\" >&2"
_SHELL = "/bin/sh"


@contextmanager
def witnessed(model: Path) -> Iterator[None]:
    """Have an end of this process told, with a hint, while this is entered.

    Where there is no shell, or no room for another process, there is no witness.
    """
    text = (
        f"error: {plain(str(model))}: the process has ended: its runtime crashed, or somebody "
        "killed it; to keep crashes out of it and be told the signal: "
        "--set common_context.isolate=true"
    )
    reads, writes = os.pipe()
    child = None
    try:
        with suppress(OSError):
            child = subprocess.Popen(
                [_SHELL, "-c", _SCRIPT, "engine", text],
                stdin=reads,  # not by its number: /bin/sh may know numbers of one digit only
                stdout=subprocess.DEVNULL,
            )
        os.close(reads)
        yield
    finally:
        if child is not None:
            with suppress(OSError):  # somebody has ended it
                os.write(writes, b"done\n")
            child.wait()
        os.close(writes)
