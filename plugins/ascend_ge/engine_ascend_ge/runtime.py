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
from collections.abc import Iterator
from typing import Any, Protocol

from engine.errors import BackendUnavailable, EngineError, ModelStateError
from engine_ascend_ge.acl_call import ALREADY_INITIALIZED, CALLS, done, error, got


class Closable(Protocol):
    """A holder of ACL's handles, closed before ACL is finalised."""

    def close(self) -> None:
        """Free everything on the device; twice does nothing."""


class _Process:
    """State of ACL in this process; one instance."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.acl: Any = None  # the module, once ACL is started
        self.pid = 0  # of the process that started it
        self.is_owner = False  # whether we initialised ACL, and so finalise it
        self.contexts: dict[int, int] = {}  # each open device's default ACL context
        self.models: weakref.WeakSet[Closable] = weakref.WeakSet()
        self.memory: weakref.WeakSet[Closable] = weakref.WeakSet()
        self.abandoned: list[object] = []


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
    """Return whether this process may touch ACL's handles: started, and not forked since."""
    return _process.acl is not None and _process.pid == os.getpid()


def use_device(device_id: int) -> tuple[Any, int]:
    """Open a device and make its ACL context the calling thread's current one.

    It is the device's default context, which every library in the process uses that makes none of
    its own (torch_npu for one): streams and events of one context do not work in another. A
    device stays open until the process ends: resetting it would take those libraries' memory.
    Returns the module `acl` and the context.
    """
    acl = start()
    context = _process.contexts.get(device_id)
    if context is None:
        with _process.lock:
            context = _process.contexts.get(device_id) or _open(acl, device_id)
            _process.contexts[device_id] = context
    done(acl.rt.set_context(context), "use the context", otherwise=BackendUnavailable)
    return acl, context


def _open(acl: Any, device_id: int) -> int:
    """Return the default ACL context of a device, opened."""
    count = got(acl.rt.get_device_count(), "count devices", otherwise=BackendUnavailable)
    if device_id >= count:
        there = ", ".join(f"ascend:{number}" for number in range(count)) or "none"
        raise BackendUnavailable(
            f"device ascend:{device_id} is not there; found: {there}; "
            "run: npu-smi info, and look at ASCEND_RT_VISIBLE_DEVICES",
            "ascend_ge",
        )
    doing = f"open device ascend:{device_id}"
    done(acl.rt.set_device(device_id), doing, otherwise=BackendUnavailable)
    try:
        context: int = got(acl.rt.get_context(), doing, otherwise=BackendUnavailable)
    except EngineError:
        acl.rt.reset_device(device_id)
        raise
    return context


@contextlib.contextmanager
def borrowed(acl: Any, context: int) -> Iterator[None]:
    """Make `context` the calling thread's current one inside the block only.

    For what may run at any moment in anybody's thread, as finalizers do.
    """
    before, code = acl.rt.get_context()  # fails where the thread has none
    done(acl.rt.set_context(context), "use the context", otherwise=BackendUnavailable)
    try:
        yield
    finally:
        if code == 0 and before != context:
            acl.rt.set_context(before)


def keep(thing: Closable, is_memory: bool = False) -> None:
    """Have `thing` closed before ACL is finalised, unless it is gone by then.

    is_memory: models may use it, so it is closed after them.
    """
    (_process.memory if is_memory else _process.models).add(thing)


def abandon(*things: object) -> None:
    """Keep objects of work that could not be ended: the device may use them until the process ends.

    ACL is not finalised then, and nothing is freed any more when Python ends.
    """
    _process.abandoned.extend(things)


def stop() -> None:
    """Close what is open, give the devices back and finalise ACL; runs when Python ends.

    Does nothing in a forked process, and never raises: at exit nobody could act on it.
    """
    if not is_started():
        return
    acl = _process.acl
    for thing in (*_process.models, *_process.memory):
        if _process.abandoned:  # maybe by one that was closed here
            break
        with contextlib.suppress(EngineError):
            thing.close()
    with _process.lock:
        if _process.is_owner and not _process.abandoned:
            for device_id in sorted(_process.contexts):
                acl.rt.reset_device(device_id)
            acl.finalize()
        _process.contexts.clear()
        _process.acl = None
        _process.abandoned.clear()
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
