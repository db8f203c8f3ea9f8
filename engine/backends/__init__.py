"""`engine.backends()` returns the record of each backend: its state, devices, and what would help.

    >>> engine.backends()  # doctest: +SKIP
    cpu        ready          cpu:0 (AMD EPYC)
    gpu_trt    no device      no NVIDIA driver; install the NVIDIA driver so that nvidia-smi ...
    ascend_ge  not installed  ...; run: pip install "inference-engine[ascend-ge]"
    >>> [found.name for found in engine.backends() if found.state == "ready"]  # doctest: +SKIP
    ['cpu', 'reference']

See `backends` below. This module is callable because a function of its name in `engine` would be
replaced by it as soon as something imports it. Entry points become opened backends here:

records.py       the six states, and the record of an entry of a door
backend.py       one opened backend: its hooks as plain functions, what it can do
manifest.py      its manifest: checked, options of one kind, as JSON and back
entry_points.py  entry points of installed distributions
doors.py         the groups of entry points, and one resolver for all: names -> objects
names.py         this project's own backends; discovery.py: names -> backends
advice.py        what to say about one that is not; install.py: the command that installs it
targets.py       an element of `context.target` -> the backend that serves it;
                 device_types.py: where it is no backend's name
wings.py         the core's own entry points

The wing isolation/ has a backend whose models run in workers, the probes of backends in processes
of their own, and the list of all of them that `backends` returns.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from engine.backends.backend import Backend
from engine.backends.discovery import GROUP, forget, installed, known, open_backend, record
from engine.backends.doors import warn_once
from engine.backends.names import OFFICIAL, Target
from engine.backends.records import BackendRecord, BackendState, PluginRecord
from engine.backends.targets import find_target, is_target

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "GROUP",
    "OFFICIAL",
    "Backend",
    "BackendRecord",
    "BackendState",
    "PluginRecord",
    "Target",
    "backends",
    "find_target",
    "forget",
    "installed",
    "is_target",
    "known",
    "open_backend",
    "record",
    "warn_once",
]


def backends(time_limit_s: float | None = None) -> tuple[BackendRecord, ...]:
    """Return the record of each backend, those that are installed first, by name.

    Each is looked at in a process of its own, so that one that crashes takes nothing with it.
    time_limit_s: how long such a process may take; None for 30 s.
    """
    from engine.backends.wings import load  # rare

    listed: Callable[..., tuple[BackendRecord, ...]] = load("backends")
    return listed() if time_limit_s is None else listed(time_limit_s)


class _Callable(ModuleType):
    def __call__(self, time_limit_s: float | None = None) -> tuple[BackendRecord, ...]:
        return backends(time_limit_s)


sys.modules[__name__].__class__ = _Callable
