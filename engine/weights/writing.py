"""Entries of the compile cache that are written after the build, by a process of their own.

To write an entry takes several times a plain build, and the first predict is not to wait for it. A
process and no thread: it has a low priority, its memory goes when it ends, and it goes on where
this one ends. Then the model is opened anew from the entry, as a live update is: without that it
would keep weights of its own, which processes do not share (bench/memory.py).

A lock, which the writer inherits as its stderr, lasts as long as it runs. So there is one for each
model, whoever has started it, and a process whose writer was killed can tell.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import pickle
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from engine.backends import warn_once
from engine.host import child
from engine.host.cpus import background
from engine.host.interrupts import pass_interrupt
from engine.host.memory import trim
from engine.host.paths import absolute
from engine.weights.afterwards import EXIT_WAIT_S, Afterwards
from engine.weights.compile_cache import Unwritten
from engine.weights.identity import identify, key_of
from engine.weights.locks import let_go, taken
from engine.weights.store import TURN

if TYPE_CHECKING:
    from pathlib import Path

    from engine.formats.opened import OpenedSource
    from engine.types import CompileOptions

_AGAIN_S = 0.02
# glibc's, on 64 bits: no heap of a thread is larger, and no such piece is mapped by itself.
_HEAP_BYTES, _PIECE_BYTES = 64 << 20, 120 << 10


class Request(NamedTuple):
    """Order for a writer. folder: the cache's. path: the model's."""

    folder: Path
    path: Path
    backend: str
    options: CompileOptions


@dataclass(slots=True)
class _Writing:
    """An entry being written. writer: None where another process has started it."""

    unwritten: Unwritten
    reopen: Callable[[], None]
    writer: subprocess.Popen[bytes] | None

    @property
    def lock(self) -> Path:
        return self.unwritten.store.lock(self.unwritten.sketched)


class _Ending(Exception):
    """The process ends."""


def write_afterwards(unwritten: Unwritten, reopen: Callable[[], None]) -> None:
    """Have an entry written, and then call `reopen`, in a thread; that may raise.

    A fault of the cache is a warning.
    """
    writing = _Writing(unwritten._replace(source=_anywhere(unwritten.source)), reopen, None)
    try:
        _start(writing)
        try:
            _afterwards.add(writing)
        except RuntimeError as error:  # there are too many threads; the next build tries again
            pass_interrupt(error)
            _afterwards.pieces.append(writing)
    except Exception as error:  # of pickle too; the model is built all the same
        pass_interrupt(error)
        warn_once(
            f"the compile cache is not written: {error}; with ENGINE_CACHE=wait a build writes it "
            "itself"
        )


def _anywhere(source: OpenedSource) -> OpenedSource:
    """Return a model whose files are found also from another working folder."""
    return replace(
        source,
        path=source.path and absolute(source.path),
        folder=source.folder and absolute(source.folder),
        versions={absolute(path): version for path, version in source.versions.items()},
    )


def wait(timeout_s: float | None = None) -> bool:
    """Wait until all that this process has to write is written; return whether it is."""
    return _afterwards.wait(timeout_s)


def _start(writing: _Writing) -> None:
    """Start a writer, unless one is at work on the entry."""
    work = writing.unwritten
    descriptor = taken(writing.lock)
    if descriptor is None:
        return
    try:
        os.truncate(descriptor, 0)
        path = work.source.path
        assert path is not None, "it is read from its file"
        sent = replace(work.options, progress=None, cancel=None)
        request = Request(work.store.folder.parent, path, work.backend.name, sent)
        with open(descriptor, "wb", buffering=0, closefd=False) as errors:
            writing.writer = child.start(
                ["-m", "engine.weights.writer", str(work.store.lock(TURN))],
                errors,
                given=pickle.dumps(request),
            )
            background.add(writing.writer.pid)
    finally:
        let_go(descriptor)


def _finish(writing: _Writing) -> None:
    try:
        _see_to(writing)
    except _Ending:
        pass
    except BaseException as error:  # of an extension too; the model goes on as it is
        name = writing.unwritten.source.name
        logging.getLogger("engine").info("%s: is not opened from its entry: %s", name, error)


def _see_to(writing: _Writing) -> None:
    work = writing.unwritten
    name = work.source.name
    words = _ended(writing)
    while writing.writer is None and not (_is_written(work) or _is_formless(work)):
        # The other process's was killed, or the lock was held by one that waits for it.
        _start(writing)
        words = _ended(writing)
        time.sleep(_AGAIN_S)
    if _is_written(work):
        # Beside another writer a backend would take the machine for a busy one.
        with work.store.locked(TURN, shared=True, check=_check), _afterwards.turn:
            _check()
            writing.reopen()
            _trim_thread()  # its weights were in memory of this process
    elif writing.writer is not None and (writing.writer.returncode or words):
        ending = child.ending(writing.writer.returncode)
        ending = ending and f"the process that writes it {ending}"
        reason = ": ".join(filter(None, (ending, words)))
        logging.getLogger("engine").warning(
            "%s: its entry in the compile cache was not written: %s", name, reason
        )


def _ended(writing: _Writing) -> str:
    """Wait for the end of the writer, whoever has started it; return the last that it said."""
    if writing.writer is not None:
        writing.writer.wait()
        background.discard(writing.writer.pid)
        _check()
    else:
        with writing.unwritten.store.locked(writing.lock.name, shared=True, check=_check):
            pass
    try:
        return child.last_words(writing.lock.read_text(errors="replace"))
    except OSError:  # the cache was removed
        return ""


def _is_written(work: Unwritten) -> bool:
    identity = identify(work.store.digests, key_of(work.backend, work.options), work.source)
    return work.store.version(identity) is not None


def _is_formless(work: Unwritten) -> bool:
    return work.store.is_formless(work.sketched)


def _check() -> None:
    if _afterwards.is_ending:
        raise _Ending


@atexit.register
def _end() -> None:
    """Let no thread work in a runtime while the interpreter ends; writers go on."""
    if os.getpid() == 1:  # all processes of its container end with it
        wait(EXIT_WAIT_S)
    _afterwards.end()


def _leave(writing: _Writing) -> None:
    if writing.writer is not None and writing.writer.returncode is None:
        writing.writer.returncode = 0  # it is meant to run on, or the parent's: no warning


_afterwards = Afterwards("engine-cache", _finish, _leave)


def _trim_thread() -> None:
    """Do as `trim`, also for the end of the calling thread's own heap, which that leaves alone.

    The memory at its end is taken in pieces: the last keeps the others from being its end.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        return
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    pieces = [libc.malloc(_PIECE_BYTES) for _ in range(_HEAP_BYTES // _PIECE_BYTES)]
    for piece in pieces[:-1]:
        libc.free(piece)
    trim()
    libc.free(pieces[-1])
