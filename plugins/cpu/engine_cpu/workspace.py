"""One arena for the activations of several sessions, where the user asks for it.

ONNX Runtime gives each session an arena of its own, which keeps what a run has freed for the next
one. Models that do not run at once then hold that memory as many times. Sessions that are made with
`workspace = process` take it from one arena: what one has freed, the next one uses. They may run at
once all the same: the arena is locked, and grows. A result lies in it too, and holds it.

ONNX Runtime has one such arena a process (its environment's), and sessions use it only where their
settings say so: nobody else's does. A new one takes its place at the next registration, and those
who use the old one keep it. So the arena lives as long as any of ours uses it: then an empty one is
registered instead, and the memory is the system's again.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from engine_cpu.runtime import ort

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_USE_IT = "session.use_env_allocators"

# An arena grows by what is asked for, not by powers of two: it is as large as the largest model's.
_AS_REQUESTED = 1

# Held while a session is made, too, which reads what a registration changes. Reentrant, since a
# finalizer may run anywhere.
_turn = threading.RLock()


class Arena:
    """The arena that sessions have in common; held by each executable that uses it."""


_current: weakref.ref[Arena] | None = None


def arena() -> Arena:
    """Return the arena for sessions that are made while it is held."""
    global _current
    with _turn:
        held = None if _current is None else _current()
        if held is None:
            _register()
            held = Arena()
            _current = weakref.ref(held)
            # At the end of the process there is nothing to give back, and maybe no runtime.
            weakref.finalize(held, _give_back, os.getpid()).atexit = False
        return held


def use(settings: ort.SessionOptions) -> None:
    """Have a session take its activations from the arena."""
    settings.add_session_config_entry(_USE_IT, "1")


def making() -> AbstractContextManager[object]:
    """Return a context manager around the making of a session that uses the arena."""
    return _turn


def _register() -> None:
    where = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    ort.create_and_register_allocator(where, ort.OrtArenaCfg(0, _AS_REQUESTED, -1, -1))


def _give_back(process: int) -> None:
    """Put an empty arena in the place of the one that nobody uses any more."""
    if process != os.getpid():
        return
    with _turn:
        if _current is None or _current() is None:  # else a new one is in use already
            _register()


def _forget() -> None:
    """In a forked child, which has one thread: nobody holds the lock."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_forget)
