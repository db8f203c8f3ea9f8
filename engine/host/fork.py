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


class Preparable(Protocol):
    """Something that must know of a fork before it happens."""

    def before_fork(self) -> None:
        """Called in the parent, by the thread that forks; not to raise."""


# No WeakSets: their own callback is Python, and what a signal handler raises in such is lost.
_alive: set[weakref.ref[Abandonable]] = set()
_prepared: set[weakref.ref[Preparable]] = set()
_watching = False


def watch(owner: Abandonable) -> None:
    """Call `owner._abandon()` in every child forked while it lives."""
    _alive.add(weakref.ref(owner, _alive.discard))
    _watch()


def prepare(owner: Preparable) -> None:
    """Call `owner.before_fork()` before every fork while it lives."""
    _prepared.add(weakref.ref(owner, _prepared.discard))
    _watch()


def never_free(*values: object) -> None:
    """Keep these alive until the process ends, past the interpreter's own clean-up."""
    for value in values:
        pythonapi.Py_IncRef(py_object(value))


def _watch() -> None:
    global _watching
    if not _watching:
        _watching = True
        os.register_at_fork(before=_prepare_all, after_in_child=_abandon_all)


def _prepare_all() -> None:
    for reference in list(_prepared):
        owner = reference()
        if owner is not None:
            owner.before_fork()


def _abandon_all() -> None:
    for reference in list(_alive):
        owner = reference()
        if owner is not None:
            owner._abandon()
    _alive.clear()
