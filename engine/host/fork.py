"""Built models in a forked child: they are forgotten, and never freed there.

Runtimes do not survive a fork: their threads are gone, and a destructor that joins them hangs.
"""

from __future__ import annotations

import os
import weakref
from ctypes import py_object, pythonapi
from typing import Protocol


class Abandonable(Protocol):
    """Something that a fork leaves unusable in the child."""

    def _abandon(self) -> None:
        """Called in the child, which has one thread: become unusable, free nothing."""


_alive: weakref.WeakSet[Abandonable] = weakref.WeakSet()
_watching = False


def watch(owner: Abandonable) -> None:
    """Call `owner._abandon()` in every child forked while it lives."""
    global _watching
    _alive.add(owner)
    if not _watching:
        _watching = True
        os.register_at_fork(after_in_child=_abandon_all)


def never_free(*values: object) -> None:
    """Keep these alive until the process ends, past the interpreter's own clean-up."""
    for value in values:
        pythonapi.Py_IncRef(py_object(value))


def _abandon_all() -> None:
    for owner in list(_alive):
        owner._abandon()
    _alive.clear()
