"""Memory that a context of a partitioned model prepares for one set of input shapes.

Buffers for the values that cross from one segment to another, and for each segment the lists that
it is called with. A segment on the host so sees the very same list objects in every run, which
lets its backend keep what it has bound (see engine_predict).

A caller's arrays are never kept after a run that was given no output buffers: they are copied into
the workspace where they are small, and read in place, by segments that bind nothing, where a copy
would cost more than binding saves. The caller gets a copy too, or new memory. Where the
caller does give buffers, these and the inputs take the places of our own, until others come.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from operator import is_
from typing import Any, TypeAlias

import numpy as np

from engine.plan.dataflow import CompiledSegment, Dataflow
from engine.plan.transfer import Transfer, takes_buffers
from engine.tensor.device_memory import may_overlap
from engine.types import Device, DeviceBuffer, ExecutionContext, Value, Values

Array: TypeAlias = "np.ndarray[Any, Any]"

Seen: TypeAlias = "tuple[tuple[int, ...], np.dtype[Any]] | None"
"""Shape and dtype of a value in an earlier run; None for what no buffer can hold."""

COPIED_BYTES = 64 * 1024
"""Up to this size, for each segment that reads it, copying a value costs less than binding it."""


class Step:
    """The call of one segment.

    index: of the segment. reads, writes: the numbers of its values. taken: the list to call it
    with; None where it is put together anew in each run. given: the buffers to fill, or None.
    may_keep, kept: whether such a list may be held until the next run, and the last one.
    ends: values to let go of when it has run. devices: where the values that it reads may be
    beside the host; None where all are on the host anyway.
    """

    __slots__ = (
        "context", "devices", "ends", "given", "index", "kept", "may_keep", "predict",
        "predict_with", "reads", "taken", "writes",
    )  # fmt: skip

    def __init__(self, index: int, flow: Dataflow, context: ExecutionContext) -> None:
        segment = flow.segments[index]
        self.index = index
        self.predict = segment.backend.predict
        self.predict_with = segment.backend.predict_with
        self.context = context
        self.reads = segment.reads
        self.writes = segment.writes
        self.taken: list[Value] | None = None
        self.given: list[Any] | None = None
        self.kept: list[Value] | None = None
        self.may_keep = False
        self.ends: tuple[int, ...] = ()
        self.devices: frozenset[Device] | None = None
        if flow.transfer.devices:
            own = takes_buffers(segment.backend, segment.device)
            self.devices = frozenset({segment.device} if own else ())


class Workspace:
    """Buffers and lists for one set of input shapes.

    steps: of a run without the caller's buffers. values: of that run, as far as it has come.
    seen: of each value, what it was before.
    """

    def __init__(
        self,
        flow: Dataflow,
        contexts: Sequence[ExecutionContext],
        seen: Sequence[Seen],
    ) -> None:
        self._flow = flow
        self._contexts = contexts
        self.seen = seen
        self._users = len(flow.inputs) - flow.held
        self._readers = Counter(number for segment in flow.segments for number in segment.reads)
        self._extra: dict[int, Array] = {}  # only needed where the caller gives buffers
        outside = {number for number in range(self._users) if not self._is_copied(number)}
        self._own = self._allocate(outside)
        self._staged = [
            (buffer, number) for number, buffer in self._own.items() if number < self._users
        ]
        self.values: list[Value] = [None] * flow.width
        for number, buffer in self._own.items():
            self.values[number] = buffer
        self._passed = [number for number in range(len(flow.inputs)) if number not in self._own]
        self._open = [number for number in range(flow.width) if number not in self._own]
        self.steps = [
            self._step(index, self.values, outside) for index in range(len(flow.segments))
        ]

    # ------------------------------------------------------------- without the caller's buffers

    def fill(self, inputs: Values) -> list[Value]:
        """Take the inputs of a run; returns the values that the steps start from."""
        for buffer, number in self._staged:
            buffer[...] = inputs[number]
        values = self.values
        for number in self._passed:
            values[number] = inputs[number]
        return values

    def results(self, inputs: Values) -> list[Value]:
        """Return the outputs in memory of the caller's own."""
        results: list[Value] = []
        for number in self._flow.results:
            buffer = self._own.get(number)
            if number < len(inputs):
                results.append(owned(inputs[number], self._flow.transfer))
            elif buffer is not None:
                results.append(buffer.copy())
            else:
                results.append(self._flow.transfer.to_host(self.values[number]))
        return results

    def clear(self) -> None:
        """Let go of all values that are not the workspace's own."""
        for number in self._open:
            self.values[number] = None

    # ---------------------------------------------------------------- with the caller's buffers

    def bind(self, inputs: Values, outputs: Values, last: BoundRun | None) -> BoundRun:
        """Put the caller's arrays in the places of our own.

        last: the run before. Its lists are used again where all in them is the same.
        """
        flow = self._flow
        values = [*inputs, *self.values[len(inputs) :]]
        for segment, is_steady in zip(flow.segments, flow.steady, strict=True):
            for number in segment.writes:
                if values[number] is None and is_steady and number not in segment.resident:
                    values[number] = self._extra_buffer(number)
        direct = direct_buffers(flow, inputs, outputs)
        for number, buffer in direct.items():
            values[number] = buffer
        steps = []
        for index in range(len(flow.segments)):
            step = self._step(index, values, set())
            before = [self.steps[index]]
            if last is not None and last.workspace is self:  # else shapes may differ
                before.append(last.steps[index])
            step.taken = _same(step.taken, [other.taken for other in before])
            step.given = _same(step.given, [other.given for other in before])
            steps.append(step)
        return BoundRun(self, flow, steps, values, inputs, outputs)

    def _extra_buffer(self, number: int) -> Array | None:
        seen = self.seen[number]
        if seen is not None and number not in self._extra:
            self._extra[number] = np.empty(*seen)
        return self._extra.get(number)

    # -------------------------------------------------------------------------------- preparing

    def _is_copied(self, number: int) -> bool:
        """Return whether to copy a value between the caller's memory and our own."""
        seen = self.seen[number]
        if seen is None:
            return False
        nbytes = int(np.prod(seen[0], dtype=np.int64)) * seen[1].itemsize
        return nbytes <= COPIED_BYTES * max(1, self._readers[number])

    def _allocate(self, outside: set[int]) -> dict[int, Array]:
        """Return a buffer for each value that has one in a run without the caller's.

        outside: the values that are the caller's memory; those of the results that are too large
            to be copied are added. Segments that touch such a value allocate what they write.
        Buffers of values that nobody reads any more serve for later ones of the same shape.
        """
        flow = self._flow
        own: dict[int, Array] = {}
        idle: dict[Any, list[Array]] = defaultdict(list)

        def take(number: int) -> None:
            seen = self.seen[number]
            assert seen is not None
            own[number] = idle[seen].pop() if idle[seen] else np.empty(*seen)

        for number in range(self._users):
            if number not in outside:
                take(number)
        for segment, is_steady in zip(flow.segments, flow.steady, strict=True):
            large = {
                number
                for number in segment.writes
                if number in flow.results and not self._is_copied(number)
            }
            outside |= large
            if is_steady and outside.isdisjoint((*segment.reads, *segment.writes)):
                for number in segment.writes:
                    if number not in segment.resident and self.seen[number] is not None:
                        take(number)
            for number in segment.ends:
                if number in own:
                    idle[self.seen[number]].append(own[number])
        return own

    def _step(self, index: int, values: Sequence[Value], outside: set[int]) -> Step:
        """Return the call of a segment with what is fixed of these values put in."""
        segment = self._flow.segments[index]
        step = Step(index, self._flow, self._contexts[index])
        taken = [values[number] for number in segment.reads]
        is_host = not any(isinstance(value, DeviceBuffer) for value in taken)
        if is_host and all(value is not None for value in taken):
            step.taken = taken
        given = [values[number] for number in segment.writes]
        if outside.isdisjoint(segment.reads) and any(buffer is not None for buffer in given):
            step.given = given
        step.may_keep = outside.isdisjoint(segment.reads)
        return step


class BoundRun:
    """A run into the caller's buffers, prepared for the lists in which they came."""

    def __init__(
        self,
        workspace: Workspace,
        flow: Dataflow,
        steps: Sequence[Step],
        values: list[Value],
        inputs: Values,
        outputs: Values,
    ) -> None:
        self.workspace = workspace
        self._flow = flow
        self.steps = steps
        self.values = values
        self._inputs = inputs
        self._outputs = outputs
        self._arrays = tuple(inputs)
        self._shapes = [getattr(value, "shape", None) for value in inputs]
        self._overwritten = overwritten(flow, inputs, outputs)

    def holds(self, inputs: Values, outputs: Values | None) -> bool:
        """Return whether this is the run for these lists: the very same mean the same arrays.

        State and variable weights come in a list that is new in every predict.
        """
        if outputs is not self._outputs or len(inputs) != len(self._arrays):
            return False
        return inputs is self._inputs or (
            all(map(is_, inputs, self._arrays))
            and [getattr(value, "shape", None) for value in inputs] == self._shapes
        )

    def deliver(self) -> Values:
        """Return the outputs in the caller's buffers; where none is given, in new memory."""
        flow = self._flow
        results: list[Value] = []
        saved = {n: owned(self.values[n], flow.transfer) for n in self._overwritten}
        for number, entry, spec in zip(flow.results, self._outputs, flow.outputs, strict=True):
            value = saved.get(number, self.values[number])
            if entry is None:
                # A copy of our buffer; a list or dict is new in every run, and the caller's.
                is_array = isinstance(value, np.ndarray | DeviceBuffer)
                results.append(owned(value, flow.transfer) if is_array else value)
                continue
            if value is not entry:
                flow.transfer.fill(entry, value, spec)
            results.append(entry)
        return self._outputs if all(map(is_, results, self._outputs)) else results


def direct_buffers(flow: Dataflow, inputs: Values, outputs: Values) -> Mapping[int, Any]:
    """Return the entries of `outputs` that segments may fill themselves, by the value's number.

    A buffer that overlaps an input is filled last: a later segment may read that input. One on
    another device than the segment's is copied there when it is done.
    """
    wanted = {
        number: entry
        for number, entry in zip(flow.results, outputs)
        if entry is not None and number >= len(flow.inputs)
    }
    if not wanted:
        return {}
    makers = {number: segment for segment in flow.segments for number in segment.writes}
    tensors = [tensor for value in inputs for tensor in _tensors(value)]
    return {
        number: entry
        for number, entry in wanted.items()
        if _fills(makers[number], entry)
        and not any(may_overlap(entry, tensor) for tensor in tensors)
    }


def overwritten(flow: Dataflow, inputs: Values, outputs: Values) -> list[int]:
    """Return the numbers of the inputs that are outputs too and that filling outputs may change."""
    return [
        number
        for number in {*flow.results}
        if number < len(inputs)
        and any(may_overlap(entry, t) for entry in outputs for t in _tensors(inputs[number]))
    ]


def owned(value: Value, transfer: Transfer) -> Value:
    """Return a copy of a value on the host."""
    return transfer.to_host(value) if isinstance(value, DeviceBuffer) else deepcopy(value)


def _fills(segment: CompiledSegment, entry: Any) -> bool:
    """Return whether a segment can put an output where the caller wants it."""
    if isinstance(entry, np.ndarray):
        return True
    device = entry if isinstance(entry, Device) else entry.device
    return device == segment.device and takes_buffers(segment.backend, device)


def _tensors(value: Any) -> Iterator[Array | DeviceBuffer]:
    """Yield the tensors in a value: of a sequence or a map its elements."""
    if isinstance(value, np.ndarray | DeviceBuffer):
        yield value
    elif isinstance(value, list | dict):
        for element in value.values() if isinstance(value, dict) else value:
            yield from _tensors(element)


def _same(wanted: list[Any] | None, lists: Sequence[list[Any] | None]) -> list[Any] | None:
    """Return the one of `lists` that holds the very same objects, else `wanted`."""
    if wanted is not None:
        for other in lists:
            if other is not None and all(map(is_, wanted, other)):
                return other
    return wanted
