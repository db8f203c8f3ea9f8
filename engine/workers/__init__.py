"""Workers: processes that each build the same model for a device of their own and run it.

`multi_device` has MultiDeviceRunner, which serves by them; `__main__` is a worker's process.
`protocol` says what a runner asks of one. `factory` finds the kinds there are by name.
"""

from __future__ import annotations

from importlib import import_module

from engine.workers.protocol import Assignment, Lost, Ready, Start, Worker

__all__ = ["Assignment", "Lost", "Ready", "Start", "Worker", "factory"]

_KINDS = {"process": "engine.workers.process:ProcessWorker", "ray": "engine.workers.ray:start"}


def factory(kind: str) -> Start:
    """Return what starts workers of a kind: "process" on this machine, "ray" where Ray puts them.

    Raises ValueError for others, and what the kind raises where it is not installed.
    """
    if kind not in _KINDS:
        raise ValueError(f"workers must be one of {[*_KINDS]}, but got {kind!r}")
    module, _, name = _KINDS[kind].partition(":")
    start: Start = getattr(import_module(module), name)
    return start
