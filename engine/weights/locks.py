"""A lock between processes, and between threads, that ends with whoever holds it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.weights.location import CacheUnusable

_POLL_S = 0.02

# Descriptors of locks that are held or waited for.
_open_here: set[int] = set()


def _close_in_child() -> None:
    """Let go of the parent's locks: a child that outlives it would hold them on."""
    for descriptor in _open_here:
        os.close(descriptor)
    _open_here.clear()


os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def locked(
    path: Path,
    *,
    shared: bool = False,
    wait: bool = True,
    check: Callable[[], object] | None = None,
) -> Iterator[bool]:
    """Hold the lock of that name; gives False where `wait` is False and another has it.

    path: an empty file, which is made. shared: beside others that hold it shared. check: called
    while waiting; may raise. The lock ends with its process, however that ends (flock(2)).
    In a read-only folder a shared one is taken of the file that is there.
    Raises CacheUnusable where the file cannot be made, or its file system has no locks.
    """
    import fcntl  # POSIX

    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    descriptor = _open(path, shared=shared)
    try:
        while True:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    yield False
                    return
                if check is not None:
                    check()
                time.sleep(_POLL_S)
                continue
            except OSError as error:
                text = f"{str(path)!r} cannot be locked: {error.strerror}"
                raise CacheUnusable(text) from error
            if _is(path, descriptor):
                break
            _close(descriptor)  # it was removed while we waited: others hold a new one
            descriptor = _open(path, shared=shared)
        try:
            yield True
        finally:
            if descriptor in _open_here:  # not in a child that was forked in the block
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        _close(descriptor)


def taken(path: Path) -> int | None:
    """Take the lock of that name for a child process; None where another has it.

    Returns a descriptor for the caller to hand on and to close: the child holds the lock for as
    long as it runs, whatever becomes of this process. Raises CacheUnusable, as `locked`.
    """
    import fcntl  # POSIX

    descriptor = _open(path, shared=False)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is(path, descriptor):
            return descriptor
    except BlockingIOError:
        pass
    except OSError as error:
        _close(descriptor)
        raise CacheUnusable(f"{str(path)!r} cannot be locked: {error.strerror}") from error
    _close(descriptor)
    return None


def let_go(descriptor: int) -> None:
    """Close what `taken` gave; the lock stays with who has inherited it."""
    _close(descriptor)


def _open(path: Path, *, shared: bool) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        is_read_only = error.errno in (errno.EROFS, errno.EACCES)
        if not (shared and is_read_only and path.exists()):
            raise CacheUnusable(f"{str(path)!r} cannot be made: {error.strerror}") from error
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # enough for a shared lock
        except OSError as denied:
            raise CacheUnusable(f"{str(path)!r} cannot be read: {denied.strerror}") from denied
    _open_here.add(descriptor)
    return descriptor


def _close(descriptor: int) -> None:
    if descriptor in _open_here:
        _open_here.discard(descriptor)
        os.close(descriptor)


def _is(path: Path, descriptor: int) -> bool:
    """Return whether the file of that name is still the one that is open."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
