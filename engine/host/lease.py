"""A read lease on a file: who wants to write to it or truncate it waits until it is given back."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import fcntl
    import signal

    _SET_LEASE, _SET_SIGNAL = fcntl.F_SETLEASE, fcntl.F_SETSIG
    # The kernel says by a signal that somebody waits; this one is ignored unless a program asks.
    _SIGNAL = signal.SIGURG
except (ImportError, AttributeError):  # Linux has leases
    _SET_LEASE = 0


@contextmanager
def leased(path: str | os.PathLike[str]) -> Iterator[bool]:
    """Keep writers from a regular file for a while; give whether it is so.

    To be held while a mapping of the file is read: a page that is truncated meanwhile is a SIGBUS,
    which ends the process. An open() for writing or a truncate() waits in the kernel, 45 seconds at
    most (/proc/sys/fs/lease-break-time); renaming and removing do not. A lease is to be had for
    files of one's own (or with CAP_LEASE) that nobody has open for writing, where the file system
    has leases.
    """
    try:
        is_file = bool(_SET_LEASE) and stat.S_ISREG(os.stat(path).st_mode)  # not: a pipe blocks
        file = open(path, "rb", buffering=0) if is_file else None  # noqa: SIM115
    except (OSError, ValueError):  # whoever reads it says so
        file = None
    if file is None:
        yield False
        return
    with file:
        try:
            fcntl.fcntl(file, _SET_SIGNAL, _SIGNAL)
            fcntl.fcntl(file, _SET_LEASE, fcntl.F_RDLCK)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:  # a child that was forked meanwhile has the descriptor too
            fcntl.fcntl(file, _SET_LEASE, fcntl.F_UNLCK)
