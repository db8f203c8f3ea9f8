"""Entry points -> one opened backend, in one of six states.

records.py     the six states, and the record of a backend
backend.py     one opened backend: its hooks as plain functions, what it can do
manifest.py    its manifest: checked, options of one kind, as JSON and back
discovery.py   names -> backends: what is installed, and what became of it
targets.py     an element of `context.target` -> the backend that serves it
probe.py       the same in a process of its own, for plugins that may crash; not imported here
"""

from engine.backends.backend import Backend
from engine.backends.discovery import (
    GROUP,
    OFFICIAL,
    forget,
    installed,
    known,
    nearest_target,
    open_backend,
    record,
    warn_once,
)
from engine.backends.records import BackendRecord, BackendState
from engine.backends.targets import Target, find_target, is_target

__all__ = [
    "GROUP",
    "OFFICIAL",
    "Backend",
    "BackendRecord",
    "BackendState",
    "Target",
    "find_target",
    "forget",
    "installed",
    "is_target",
    "known",
    "nearest_target",
    "open_backend",
    "record",
    "warn_once",
]
