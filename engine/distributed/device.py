"""A plan's groups of ranks on the memory of one device, by the device's backend.

They stand beside those on the host, by which ranks tell each other what goes wrong: what a backend
queues on a device cannot see that another rank has failed, or why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, TypeAlias

import numpy as np

from engine.backends import Backend
from engine.distributed.compose import Collectives, complete
from engine.distributed.nodes import Call, CollectiveNode, require_divisible
from engine.formats.collectives import WITH_SHAPE
from engine.types import (
    Capability,
    Communicator,
    CommunicatorOptions,
    Device,
    DeviceBuffer,
    DType,
    NodeInfo,
    Value,
    Values,
)

Array: TypeAlias = "np.ndarray[Any, Any]"


def has_collectives(backend: Backend, device: Device) -> bool:
    """Return whether a backend runs collectives on the memory of `device`."""
    wanted = (Capability.COLLECTIVES, Capability.DEVICE_BUFFERS)
    return not any(backend.lacks(capability, device) for capability in wanted)


class DeviceGroups:
    """The groups of one plan on one device. Used by one thread at a time, but for `abort`.

    communicators: those that are joined, by name. stream: where the collectives of the predict that
    runs are queued; None as long as there is none, and always for a backend that is waited for in
    each collective.
    """

    def __init__(self, backend: Backend, device: Device) -> None:
        self.backend = backend
        self.device = device
        self.communicators: dict[str, Communicator] = {}
        self._queues = not backend.lacks(Capability.QUEUED_COLLECTIVES, device)
        self._may_queue = False
        self._in_use: list[Any] = []  # what is queued reads or writes it
        self.stream: int | None = None
        self._order = backend.bind("engine_order")
        self._join = backend.bind("engine_communicator")
        self._allocate = backend.bind("engine_buffer")
        self.copy = backend.bind("engine_copy")
        bind = backend.bind
        self._do = complete(
            bind("engine_allreduce"),
            bind("engine_allgather"),
            bind("engine_send"),
            bind("engine_receive"),
            allocate=self.allocate,
            copy=self.copy,
            broadcast=self._own("engine_broadcast"),
            reduce_scatter=self._own("engine_reduce_scatter"),
            alltoall=self._own("engine_alltoall"),
        )

    def _own(self, hook: str) -> Callable[..., Any] | None:
        return self.backend.bind(hook) if self.backend.has(hook) else None

    def join(self, name: str, options: CommunicatorOptions) -> None:
        """Join a group; options: those by which it was joined on the host, with keys of its own."""
        self.communicators[name] = self._join(replace(options, device=self.device))

    def call(self, group: str, host: Call) -> DeviceCall:
        """Return what a node of a group needs to run. host: the same for the host's memory."""
        return DeviceCall(self.communicators[group], self._do, host.deadline_s, self, host)

    def begin(self, may_queue: bool) -> None:
        """Begin a predict, with nothing queued.

        may_queue: its collectives need not be waited for one by one.
        """
        self._may_queue = may_queue
        self.stream = None
        self._in_use.clear()

    def choose_stream(self, values: Values) -> None:
        """Queue from now on where the first value with a stream comes from, if there is such.

        One stream for all collectives of a predict: those of two groups on two streams could run
        in another order on another rank, and each rank would wait for the other.
        """
        if self._queues and self._may_queue and self.stream is None:
            streams = (value.stream for value in values if isinstance(value, DeviceBuffer))
            self.stream = next((stream for stream in streams if stream is not None), None)

    def on_stream(self, buffer: DeviceBuffer) -> DeviceBuffer:
        """Return a buffer that is written on `stream` next, after what its own has queued."""
        if self.stream is None or buffer.stream == self.stream:
            return buffer
        if buffer.stream is not None:
            self._order(self.device, buffer.stream, self.stream)
        return replace(buffer, stream=self.stream)

    def order_after(self, value: DeviceBuffer, buffer: DeviceBuffer) -> None:
        """Have whoever uses a buffer as its own stream says come after what writes `value`."""
        if value.stream is not None and value.stream != buffer.stream:
            self._order(self.device, value.stream, buffer.stream)

    def keep(self, *values: Any) -> None:
        """Keep memory that what is queued uses, until that is done."""
        if self.stream is not None:
            self._in_use += values

    def finish(self, results: Values, outputs: Values | None) -> Values:
        """Wait for all that a predict has queued, once, and raise what a collective ended with.

        The backend lets go of the stream where a collective cannot end, by its deadline at last.
        Returns the results: what the stream has brought is complete now, and names none.
        """
        if self.stream is None:
            return results
        self._order(self.device, self.stream, None)
        self.check()
        self._in_use.clear()
        given = outputs if outputs is not None else [None] * len(results)
        settled = [
            replace(value, stream=None)
            if isinstance(value, DeviceBuffer)
            and value.stream == self.stream
            and value is not entry
            else value
            for value, entry in zip(results, given, strict=True)
        ]
        return results if all(map(is_, settled, results)) else settled

    def check(self) -> None:
        """Raise CommunicatorError where a queued collective has failed."""
        for comm in list(self.communicators.values()):
            comm.check()

    def allocate(self, dtype: DType, shape: tuple[int, ...]) -> DeviceBuffer:
        """Return new memory on the device."""
        buffer: DeviceBuffer = self._allocate(self.device, dtype, shape, False)
        return buffer

    def to_device(self, array: Array) -> DeviceBuffer:
        """Return a new buffer with an array's contents."""
        buffer = self.allocate(DType.from_numpy(array.dtype), array.shape)
        self.copy(array, buffer, None)
        return buffer

    def to_host(self, buffer: DeviceBuffer) -> Array:
        """Return a new array with a buffer's contents."""
        array: Array = np.empty(buffer.shape, buffer.dtype.numpy)
        self.copy(buffer, array, None)
        return array

    def abort(self) -> None:
        """Make what runs and what comes fail; any thread."""
        for comm in list(self.communicators.values()):
            comm.abort()

    def close(self) -> None:
        """Leave all groups; twice does nothing."""
        while self.communicators:
            self.communicators.popitem()[1].close()
        self._in_use.clear()


@dataclass(frozen=True, slots=True)
class DeviceCall:
    """A node's surroundings in a run on the device; see `nodes.Call`."""

    comm: Communicator
    do: Collectives
    deadline_s: float | None
    groups: DeviceGroups
    host: Call

    @property
    def stream(self) -> int | None:
        """Return where it is queued; None: it is done on return."""
        return self.groups.stream

    def receive(self, given: object, dtype: Any, shape: tuple[int, ...]) -> DeviceBuffer:
        """Return the buffer that was given for a result if it fits, else a new one."""
        dtype = dtype if isinstance(dtype, DType) else DType.from_numpy(np.dtype(dtype))
        if isinstance(given, DeviceBuffer) and (given.dtype, given.shape) == (dtype, shape):
            return self.groups.on_stream(given)
        return self.groups.on_stream(self.groups.allocate(dtype, shape))

    def copied(self, value: DeviceBuffer, given: object) -> DeviceBuffer:
        """Return a copy of a value, in the buffer that was given if it fits."""
        result = self.receive(given, value.dtype, value.shape)
        self.groups.copy(value, result, self.stream)
        return result


def runs_there(node: CollectiveNode) -> bool:
    """Return whether a node needs nothing of the host: its parts lie one after another."""
    info = node.info
    if info.op_type in ("AllReduce", "ReduceScatter", "Broadcast", "Send", "Receive"):
        return True
    return info.op_type == "AllGather" and _axis(info) == 0


_WORDS = {
    "AllReduce": "all-reduce",
    "ReduceScatter": "reduce-scatter",
    "Broadcast": "broadcast",
    "AllGather": "all-gather",
}


def met_for(node: CollectiveNode, taken: Values) -> str:
    """Return how to call what all ranks of a group come to; "" for what goes between two.

    Raises InputError for a tensor with which no rank can go on.
    """
    word = _WORDS.get(node.info.op_type)
    if word is None:
        return ""
    if node.info.attributes.get(WITH_SHAPE):  # the ranks are told by the one that has it
        return f"{word} of a shape and {node.output.dtype} of it"
    [value] = taken
    assert isinstance(value, np.ndarray | DeviceBuffer), "nodes of collectives take tensors"
    if node.info.op_type == "ReduceScatter":
        require_divisible(value.shape, 0, len(node.members))
    dtype = value.dtype if isinstance(value, DeviceBuffer) else value.dtype.name
    op = node.info.attributes.get("reduction", "sum")
    reduced = f" ({op})" if "educe" in node.info.op_type else ""
    return f"{word}{reduced} of {dtype}{list(value.shape)}"


def _axis(node: NodeInfo) -> int:
    axis = node.attributes.get("axis", 0)
    return axis if isinstance(axis, int) else -1


class DeviceRun:
    """Results of one context that stay on the device, and delivery of all of them.

    resident: the outputs that stay there, in memory of the context's own.
    """

    def __init__(self, groups: DeviceGroups, resident: frozenset[str]) -> None:
        self._groups = groups
        self._resident = resident
        self._kept: dict[str, DeviceBuffer] = {}

    def given(self, name: str, entry: object) -> object:
        """Return where a node is to put a result: the caller's buffer, or that of the last run."""
        if isinstance(entry, DeviceBuffer):
            return entry
        return self._kept.get(name) if entry is None and name in self._resident else None

    def delivered(self, name: str, value: Any, entry: Any) -> Value:
        """Return a result where it was wanted."""
        groups = self._groups
        is_there = isinstance(value, DeviceBuffer)
        if isinstance(entry, np.ndarray | DeviceBuffer):
            if isinstance(entry, np.ndarray) and not is_there:  # of a node that runs on the host
                np.copyto(entry, value)
            elif is_there and isinstance(entry, DeviceBuffer) and value.pointer == entry.pointer:
                groups.order_after(value, entry)
            elif value is not entry:
                groups.copy(value, entry, None)
            result: Value = entry
            return result
        if isinstance(entry, Device) or name in self._resident:
            buffer = value if is_there else groups.to_device(value)
            if entry is None:
                self._kept[name] = buffer
            return buffer
        return groups.to_host(value) if is_there else value


def arrays_of(groups: DeviceGroups, values: Values) -> list[Any]:
    """Return values as arrays on the host."""
    return [groups.to_host(v) if isinstance(v, DeviceBuffer) else v for v in values]


def buffers_of(groups: DeviceGroups, values: Values) -> list[Any]:
    """Return values as buffers on the device."""
    return [groups.to_device(v) if isinstance(v, np.ndarray) else v for v in values]
