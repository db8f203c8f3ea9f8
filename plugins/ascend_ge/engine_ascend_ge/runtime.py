"""The process's one start and one end of ACL.

ACL is initialised once in a process and finalised at its end, after everything that was made with
it is gone. A process that is forked after the start has handles that mean nothing: it must not
touch them, and starting again there is refused by name.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import threading
import weakref
from typing import Any, Protocol

from engine.errors import BackendUnavailable, EngineError, ModelStateError
from engine_ascend_ge.acl_call import ALREADY_INITIALIZED, CALLS, done, error, got


class Closable(Protocol):
    """What is closed before ACL is finalised."""

    def close(self) -> None:
        """Free everything on the device; twice does nothing."""


class _Process:
    """What this process has started; one instance."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.acl: Any = None  # the module, once ACL is started
        self.pid = 0  # of the process that started it
        self.is_owner = False  # whether we initialised ACL, and so finalise it
        self.devices: set[int] = set()
        self.open: weakref.WeakSet[Closable] = weakref.WeakSet()


_process = _Process()


def start() -> Any:
    """Import and initialise pyACL, once; return the module `acl`.

    Raises BackendUnavailable saying what is missing, ModelStateError in a forked process.
    """
    with _process.lock:
        if _process.acl is not None:
            if _process.pid != os.getpid():
                raise ModelStateError(
                    "backend 'ascend_ge' was started before this process was forked, and ACL's "
                    "handles do not survive a fork; start processes with the method 'spawn'"
                )
            return _process.acl
        acl = _import()
        code = acl.init()
        if code not in (0, ALREADY_INITIALIZED):
            raise error(code, "initialise ACL", otherwise=BackendUnavailable)
        _process.is_owner = code == 0
        _process.pid = os.getpid()
        _process.acl = acl
    atexit.register(stop)
    return acl


def is_started() -> bool:
    """Whether this very process may touch ACL's handles: started, and not forked since."""
    return _process.acl is not None and _process.pid == os.getpid()


def use_device(device_id: int) -> Any:
    """Start ACL, open a device and return the module `acl`.

    A device stays open until the process ends: resetting it would take the memory of every other
    library in the process that uses it, torch_npu for one.
    """
    acl = start()
    with _process.lock:
        if device_id not in _process.devices:
            count = got(acl.rt.get_device_count(), "count devices", otherwise=BackendUnavailable)
            if device_id >= count:
                there = ", ".join(f"ascend:{each}" for each in range(count)) or "none"
                raise BackendUnavailable(
                    f"device ascend:{device_id} is not there; found: {there}; "
                    "run: npu-smi info, and look at ASCEND_RT_VISIBLE_DEVICES",
                    "ascend_ge",
                )
            done(
                acl.rt.set_device(device_id),
                f"open device ascend:{device_id}",
                otherwise=BackendUnavailable,
            )
            _process.devices.add(device_id)
    return acl


def keep(thing: Closable) -> None:
    """Have `thing` closed before ACL is finalised, unless it is gone by then."""
    _process.open.add(thing)


def stop() -> None:
    """Close what is open, give the devices back and finalise ACL; runs when Python ends.

    Does nothing in a forked process, and never raises: at exit nobody could act on it.
    """
    if not is_started():
        return
    acl = _process.acl
    for thing in list(_process.open):
        with contextlib.suppress(EngineError):
            thing.close()
    with _process.lock:
        if _process.is_owner:
            for device_id in sorted(_process.devices):
                acl.rt.reset_device(device_id)
            acl.finalize()
        _process.devices.clear()
        _process.acl = None
    atexit.unregister(stop)


def _import() -> Any:
    try:
        acl = importlib.import_module("acl")
    except (ImportError, OSError) as failure:
        raise BackendUnavailable(
            f"module 'acl' cannot be imported: {failure}; run: engine plugins",
            "ascend_ge",
        ) from failure
    missing = [
        f"acl.{group}.{name}" if group else f"acl.{name}"
        for group, names in CALLS.items()
        for name in names
        if not hasattr(getattr(acl, group, None) if group else acl, name)
    ]
    if missing:
        where = getattr(acl, "__file__", None) or "of unknown origin"
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise BackendUnavailable(
            f"module 'acl' ({where}) lacks {', '.join(missing[:3])}{more}: it is too old, or not "
            "CANN's pyACL but another package of that name; run: engine plugins",
            "ascend_ge",
        )
    return acl
