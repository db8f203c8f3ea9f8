"""Streams: the order of work on different ones, waiting, and copies queued or complete."""

from __future__ import annotations

import math
import threading
import time
from typing import Any, Protocol

import numpy as np

from engine.errors import BackendUnavailable, CommunicatorError
from engine.types import DeviceBuffer, Value
from engine_ascend_ge import runtime
from engine_ascend_ge.acl_call import (
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    RECORD_COMPLETE,
    STREAM_ABORT,
    SYNC_TIMEOUT,
    WAIT_COMPLETE,
    done,
    got,
)
from engine_ascend_ge.memory import is_page_locked

ALIGNMENT = 64  # bytes; what CANN asks of addresses in models and asynchronous copies
_TURN_S = 0.1  # between two looks at a group whose collectives are queued
LEAVE_S = 2.0  # for what a group that has failed has queued to end


class Watched(Protocol):
    """An owner of work on a stream that nobody has waited for.

    Above all a group of ranks, whose collectives may never end by themselves.
    """

    def check(self) -> None:
        """Raise what is known to have gone wrong."""

    def failed(self, code: int) -> None:
        """Hear what the wait for a stream ended with; raise what that means, if it is known."""

    def passed(self, stream: int) -> None:
        """Hear that all that was queued on a stream has ended."""

    def left(self, stream: int) -> None:
        """Hear that it has not ended, and that nobody waits for it any more."""


_watched: dict[int, set[Watched]] = {}  # by stream


def watch(stream: int, group: Watched) -> None:
    """Have whoever waits for a stream look after a group meanwhile."""
    _watched.setdefault(stream, set()).add(group)


def unwatch(stream: int, group: Watched) -> None:
    """Take that back."""
    groups = _watched.get(stream, set())
    groups.discard(group)
    if not groups:
        _watched.pop(stream, None)


def wait(acl: Any, stream: int, deadline_s: float | None = None) -> int:
    """Wait in the calling thread for what is queued; return CANN's code, also for the deadline.

    Raises CommunicatorError where a collective on the stream cannot end any more.
    """
    groups = _watched.get(stream)
    if not groups:
        if deadline_s is None:
            return int(acl.rt.synchronize_stream(stream))
        return int(acl.rt.synchronize_stream_with_timeout(stream, _milliseconds(deadline_s)))
    while True:
        turn_s = time.monotonic() + _TURN_S
        end_s = turn_s if deadline_s is None else min(turn_s, deadline_s)
        code = int(acl.rt.synchronize_stream_with_timeout(stream, _milliseconds(end_s)))
        if code != 0:
            for group in list(groups):
                if code in (SYNC_TIMEOUT, STREAM_ABORT):
                    group.check()
                else:
                    group.failed(code)
            if code == SYNC_TIMEOUT and (deadline_s is None or time.monotonic() < deadline_s):
                continue
        else:
            for group in list(groups):
                group.passed(stream)
                unwatch(stream, group)
        return code


def finish(acl: Any, stream: int) -> bool:
    """Wait for what is queued before the stream is destroyed; return whether it has ended.

    Work that a failed group has queued may never end, where it cannot be discarded.
    """
    try:
        wait(acl, stream)
    except CommunicatorError:
        end_s = time.monotonic() + LEAVE_S
        code = acl.rt.synchronize_stream_with_timeout(stream, _milliseconds(end_s))
        for group in list(_watched.get(stream, ())):
            if code == SYNC_TIMEOUT:
                group.left(stream)
            else:
                group.passed(stream)
            unwatch(stream, group)
        return bool(code != SYNC_TIMEOUT)
    return True


def _milliseconds(end_s: float) -> int:
    return max(1, math.ceil((end_s - time.monotonic()) * 1000))


class _Events:
    """Events that a stream may still wait for: CANN wants them kept until it has come to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[int] = []
        self._acl: Any = None
        self._context = 0

    def order(self, acl: Any, context: int, earlier: int, later: int) -> None:
        """Make `later` wait for what is queued on `earlier` now."""
        with self._lock:
            if self._acl is None:
                self._acl, self._context = acl, context
                runtime.keep(self)
            self._open = [event for event in self._open if not self._is_over(event)]
            doing = f"make stream {later:#x} wait for stream {earlier:#x}"
            event = got(acl.rt.create_event(), doing, otherwise=BackendUnavailable)
            code = acl.rt.record_event(event, earlier)
            if code != 0:
                acl.rt.destroy_event(event)
            done(code, doing, otherwise=BackendUnavailable)
            self._open.append(event)
            done(acl.rt.stream_wait_event(later, event), doing, otherwise=BackendUnavailable)

    def close(self) -> None:
        """Destroy what is left, before ACL ends."""
        with self._lock:
            acl, self._acl = self._acl, None
            events, self._open = self._open, []
            if acl is not None:
                with runtime.borrowed(acl, self._context):
                    for event in events:
                        acl.rt.destroy_event(event)

    def _is_over(self, event: int) -> bool:
        """Destroy an event that has come and that nobody waits for; return whether it was one."""
        rt = self._acl.rt
        if rt.query_event_status(event) != (RECORD_COMPLETE, 0):
            return False
        if rt.query_event_wait_status(event) != (WAIT_COMPLETE, 0):
            return False
        rt.destroy_event(event)
        return True


_events: dict[int, _Events] = {}  # by ACL context


def order(device_id: int, earlier: int, later: int | None) -> None:
    """Make `later`, or with None the calling thread, wait for `earlier`; see engine_order."""
    acl, context = runtime.use_device(device_id)
    if later is None:
        synchronize(acl, earlier)
    elif later != earlier:
        _events.setdefault(context, _Events()).order(acl, context, earlier, later)


def synchronize(acl: Any, stream: int) -> None:
    """Wait in the calling thread for what is queued on a stream."""
    done(wait(acl, stream), f"wait for stream {stream:#x}", otherwise=BackendUnavailable)


def copy(source: Value, target: Value, stream: int | None) -> None:
    """Copy a tensor; engine_copy says how."""
    ends = [end for end in (source, target) if isinstance(end, DeviceBuffer)]
    if len({end.device for end in ends}) == 2:
        _copy_between_devices(source, target, stream)
        return
    acl, _ = runtime.use_device(ends[0].device.id)
    is_queued = stream is not None and _can_be_queued(source) and _can_be_queued(target)
    # A copy that cannot be queued is made now, after what it was to be queued behind.
    for earlier in {*(end.stream for end in ends), stream} - {None}:
        assert earlier is not None
        order(ends[0].device.id, earlier, stream if is_queued else None)
    nbytes = ends[0].nbytes
    if not nbytes:
        return
    kind = (
        DEVICE_TO_DEVICE
        if len(ends) == 2
        else HOST_TO_DEVICE
        if isinstance(target, DeviceBuffer)
        else DEVICE_TO_HOST
    )
    ends_and_kind = (_address(target), nbytes, _address(source), nbytes, kind)
    code = (
        acl.rt.memcpy_async(*ends_and_kind, stream) if is_queued else acl.rt.memcpy(*ends_and_kind)
    )
    done(code, f"copy {nbytes} bytes", otherwise=BackendUnavailable)


def _copy_between_devices(source: Value, target: Value, stream: int | None) -> None:
    """Copy by way of the host: which devices reach each other is the machine's business."""
    assert isinstance(source, DeviceBuffer)
    assert isinstance(target, DeviceBuffer)
    for end in (source, target):
        if end.stream is not None:
            order(end.device.id, end.stream, None)
    if stream is not None:
        # Of which of the two devices it is, nobody says: one refuses it.
        acl, _ = runtime.use_device(target.device.id)
        if acl.rt.synchronize_stream(stream) != 0:
            order(source.device.id, stream, None)
    between = np.empty(source.nbytes, np.uint8)
    for end, kind in ((source, DEVICE_TO_HOST), (target, HOST_TO_DEVICE)):
        acl, _ = runtime.use_device(end.device.id)
        host = between.ctypes.data
        here = (host, end.pointer) if kind == DEVICE_TO_HOST else (end.pointer, host)
        if end.nbytes:
            code = acl.rt.memcpy(here[0], end.nbytes, here[1], end.nbytes, kind)
            done(code, f"copy {end.nbytes} bytes by way of the host", otherwise=BackendUnavailable)


def _can_be_queued(end: Value) -> bool:
    """Return whether CANN copies to or from it asynchronously, and safely in every version."""
    if isinstance(end, np.ndarray) and not is_page_locked(end):
        return False
    return _address(end) % ALIGNMENT == 0


def _address(end: Value) -> int:
    if isinstance(end, DeviceBuffer):
        return end.pointer
    assert isinstance(end, np.ndarray)
    return int(end.ctypes.data)
