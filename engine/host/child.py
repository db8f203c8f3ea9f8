"""Python processes started to do one thing: how they are started, what they see, how they ended.

A child imports from where its parent does, never from the working folder, and does not get the
keys of encrypted models. Where its parent was told to leave out the environment or the user's own
packages (`python -I`, -E, -s, -S), it does so too. It leads a session of its own, so that all that
it has started ends with it, and a terminal's Ctrl-C reaches only the parent.
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

KEY_VARIABLE = "ENGINE_DEC_KEY"
"""Environment variable with the key of encrypted models; no child inherits it."""


def environment(without: Sequence[str] = (), **more: str) -> dict[str, str]:
    """Return this process's environment for a child: its import path, less `without`, with `more`.

    The key of encrypted models is never in it.
    """
    left_out = {KEY_VARIABLE, *without}
    if sys.flags.ignore_environment:  # an -E of its own would leave out its import path
        left_out.update(name for name in os.environ if name.startswith("PYTHON"))
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    # Imports pass over what is no text; a separator in an entry would make two other folders of it.
    told = [path for path in sys.path if isinstance(path, str) and path and os.pathsep not in path]
    return {**kept, "PYTHONPATH": os.pathsep.join(told), **more}


def command(*arguments: str) -> list[str]:
    """Return the command of a child: this Python, with its arguments ("-m", "my.module")."""
    flags = {"-s": sys.flags.no_user_site, "-S": sys.flags.no_site}
    return [sys.executable, "-P", *(flag for flag, is_on in flags.items() if is_on), *arguments]


def start(
    arguments: Sequence[str],
    errors: IO[bytes],
    *,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
    given: bytes = b"",
) -> subprocess.Popen[bytes]:
    """Start a child; the caller waits for it.

    arguments: Python's own. errors: a file that takes its stderr; not a pipe, which nobody would
        empty and which what it leaves running could hold open for ever. Its stdout is lost. env:
        from `environment`, None for that as it is. given: goes into its stdin; what a pipe does not
        hold waits for the child to read it.
    """
    started = subprocess.Popen(
        command(*arguments),
        stdin=subprocess.PIPE if given else subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env=environment() if env is None else env,
        cwd=cwd,
        pass_fds=pass_fds,
        start_new_session=True,
    )
    if started.stdin is not None:
        with suppress(BrokenPipeError), started.stdin:  # it has ended
            started.stdin.write(given)
    return started


def has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Return True once a child has ended, without reaping it: its number is not reused yet."""
    if child.returncode is not None:
        return True
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        return os.waitid(os.P_PID, child.pid, options) is not None
    except ChildProcessError:  # somebody else has reaped it
        return True


def is_stopped(child: subprocess.Popen[bytes]) -> bool:
    """Return whether a signal has stopped a child, which a debugger's stop is not.

    False where there is no /proc, and for one that has ended.
    """
    try:
        status = Path(f"/proc/{child.pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] == "T"


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a child, if it runs, and what it has started, and wait until it has ended."""
    if child.returncode is None:
        with suppress(ProcessLookupError, PermissionError):  # macOS: nobody left but a zombie
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that somebody has sent, or the kernel where memory ran out: no crash of the process."""


def ending(status: int) -> str:
    """Describe the end of a process by its exit status, where that was not success."""
    if status >= 0:
        return f"ended with status {status}" if status else ""
    try:
        how = "was killed" if -status in FROM_OUTSIDE else "crashed"
        return f"{how} with {signal.Signals(-status).name}"
    except ValueError:
        return f"crashed with signal {-status}"


def last_words(errors: str) -> str:
    """Return the last line of what a child wrote to its stderr, "" for nothing."""
    lines = errors.strip().splitlines()
    return lines[-1].strip() if lines else ""
