"""Times of operators, by ACL's subscription to those of a loaded model.

CANN writes records into a pipe while the model runs; a thread reads them, because a full pipe
would hold up the run. Each predict has a subscription of its own, so that what comes is its own.
Their times are in nanoseconds of the device's clock: the last operator's end is taken for the
moment at which the host saw the run end.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from engine.errors import ModelError
from engine.types import GraphInfo, KernelTime
from engine_ascend_ge.acl_call import done, got, made

CALLS: Final = (
    "create_subscribe_config",
    "destroy_subscribe_config",
    "model_subscribe",
    "model_unsubscribe",
    "get_op_num",
    "get_op_type_v2",
    "get_op_name_v2",
    "get_op_start",
    "get_op_end",
    "get_op_duration",
)
_TIMED, _NO_METRICS = 1, 0xFF
_LIMIT_S = 120.0
"""Time for CANN to deliver the last records, after which they are not waited for."""


def is_there(acl: Any) -> str:
    """Return why operators cannot be timed here; "" where they can."""
    prof = getattr(acl, "prof", None)
    missing = [name for name in CALLS if not hasattr(prof, name)]
    return f"pyACL has no acl.prof.{missing[0]}: CANN is too old" if missing else ""


class Stopwatch:
    """Times of all predicts of one executable. For any number of contexts and threads."""

    def __init__(self, acl: Any, graph: GraphInfo | None, name: str) -> None:
        self._acl = acl
        self._name = name
        self._nodes = _nodes_by_name(graph) if graph is not None else {}
        self._lock = threading.Lock()
        self._begun = 0
        self._untold = 0  # predicts of which CANN told nothing
        self._times: list[KernelTime] = []

    def times(self) -> Sequence[KernelTime]:
        """Return what was measured by now. Raises ModelError where CANN told nothing."""
        with self._lock:
            if self._untold:
                raise ModelError(
                    f"{self._name}: CANN told the times of no operator in {self._untold} of "
                    f"{self._begun} predicts; end other profiles of the device (msprof)",
                    self._name,
                )
            return tuple(self._times)

    @contextlib.contextmanager
    def measured(self, model: int) -> Iterator[None]:
        """Measure the run of a loaded model inside the block, which ends when the run has.

        The device's ACL context is the calling thread's current one.
        """
        with self._lock:
            number, self._begun = self._begun, self._begun + 1
        pipe = _Pipe()
        try:
            with self._subscribed(model, pipe):
                yield
                end_s = time.monotonic()
            data = pipe.take()
        finally:
            pipe.close()
        times = self._read(data, number, end_s)
        with self._lock:
            self._times += times
            self._untold += not times

    @contextlib.contextmanager
    def _subscribed(self, model: int, pipe: _Pipe) -> Iterator[None]:
        prof, name = self._acl.prof, self._name
        doing = "subscribe to the times of operators"
        config = made(
            prof.create_subscribe_config(_TIMED, _NO_METRICS, pipe.write_end),
            doing,
            name,
            ModelError,
        )
        try:
            done(prof.model_subscribe(model, config), doing, name)
            pipe.give_up_write_end()  # CANN closes it, once all is sent
            try:
                yield
            finally:
                code = prof.model_unsubscribe(model)
            done(code, "end the subscription to the times of operators", name)
        finally:
            prof.destroy_subscribe_config(config)

    def _read(self, data: bytes, number: int, end_s: float) -> list[KernelTime]:
        if not data:
            return []
        prof, name = self._acl.prof, self._name
        doing = "read the times of operators"
        records = np.frombuffer(data, np.uint8)
        where = int(records.ctypes.data), records.nbytes
        count = got(prof.get_op_num(*where), doing, name)
        last = max((prof.get_op_end(*where, index) for index in range(count)), default=0)
        times = []
        for index in range(count):
            title = got(prof.get_op_name_v2(*where, index), doing, name)
            times.append(
                KernelTime(
                    predict=number,
                    nodes=self._nodes.get(title, ()),
                    name=title,
                    op_type=got(prof.get_op_type_v2(*where, index), doing, name),
                    start_s=end_s - (last - prof.get_op_start(*where, index)) / 1e9,
                    duration_s=prof.get_op_duration(*where, index) / 1e9,
                )
            )
        return times


def _nodes_by_name(graph: GraphInfo) -> Mapping[str, tuple[int, ...]]:
    """Return a graph's nodes by the name that GE's ONNX parser gives their operators.

    A node without a name is called by its type and its number among those. An operator that GE
    has made of several has a name of its own, by which nobody can tell them.
    """
    found: dict[str, tuple[int, ...]] = {}
    unnamed = 0
    for node in graph.nodes:
        name = node.name
        if not name:
            name, unnamed = f"{node.op_type}_{unnamed}", unnamed + 1
        found[name] = () if name in found else (node.index,)
    return found


class _Pipe:
    """A pipe that is read by a thread, so that nobody who writes into it has to wait."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self._has_write_end = True
        self._data = bytearray()
        self._stop, self._stopper = os.pipe()
        self._thread = threading.Thread(target=self._collect, name="engine-ascend-times")
        self._thread.daemon = True
        self._thread.start()

    def _collect(self) -> None:
        while True:
            ready, _, _ = select.select([self._read_end, self._stop], [], [])
            if self._read_end not in ready:
                return
            data = os.read(self._read_end, 1 << 16)
            if not data:
                return
            self._data += data

    def give_up_write_end(self) -> None:
        """Leave closing it to whoever writes."""
        self._has_write_end = False

    def take(self) -> bytes:
        """Return what came, once whoever writes has closed the pipe; b"" if that does not come."""
        self._thread.join(_LIMIT_S)
        return b"" if self._thread.is_alive() else bytes(self._data)

    def close(self) -> None:
        """End the thread; what comes into the pipe from now on is lost."""
        os.write(self._stopper, b"\0")
        self._thread.join()
        if self._has_write_end:
            os.close(self.write_end)
        for descriptor in (self._read_end, self._stop, self._stopper):
            os.close(descriptor)
