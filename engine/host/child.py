"""Python processes started to do one thing: what crashes or hangs there costs no more than that.

    with tempfile.TemporaryFile() as errors:
        child = start(["-m", "my.module"], errors)
        end = ending(child.wait())

A child imports from where its parent does, never from the working folder. It leads a session of
its own, so that `kill` reaches what it has started too, and a terminal's Ctrl-C only the parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO


def environment(without: Sequence[str] = (), **more: str) -> dict[str, str]:
    """This process's environment for a child: its import path, less `without`, with `more`."""
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **more}


def command(*arguments: str) -> list[str]:
    """The command of a child: this Python, with its arguments ("-m", "my.module")."""
    return [sys.executable, "-P", *arguments]


def start(
    arguments: Sequence[str],
    errors: IO[bytes],
    *,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a child; the caller waits for it.

    arguments: Python's own. errors: a file that takes its stderr; not a pipe, which nobody would
        empty and which what it leaves running could hold open for ever. Nothing goes into its
        stdin, and its stdout is lost. env: from `environment`, None for that as it is.
    """
    return subprocess.Popen(
        command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env=environment() if env is None else env,
        cwd=cwd,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a child that runs and what it has started, and wait until it has ended."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def ending(status: int) -> str:
    """Describe the end of a process by its exit status, where that was not success."""
    if status >= 0:
        return f"ended with status {status}" if status else ""
    try:
        return f"crashed with {signal.Signals(-status).name}"
    except ValueError:
        return f"crashed with signal {-status}"


def last_words(errors: IO[bytes]) -> str:
    """The last line of what a child wrote to its stderr, "" for nothing."""
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - 4096))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
