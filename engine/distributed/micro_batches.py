"""A pipeline stage that runs its batch in parts, so that the stages work at the same time.

A stage receives, computes and sends on one part after another; what it sends waits in the memory of
the ranks, and the next stage is at that while this one has the next part. The results, which all
ranks get, are exchanged once, when all parts are through: were they awaited part by part, one stage
would work at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from engine.errors import Cancelled, ModelError
from engine.formats.micro_batches import MicroBatches
from engine.plan.contexts import close
from engine.plan.dataflow import CompiledSegment
from engine.plan.plan import Opener
from engine.plan.segments import SegmentedExecutable
from engine.plan.steps import SegmentedContext
from engine.plan.transfer import Transfer
from engine.types import Device, DeviceBuffer, ExecutionContext, TensorSpec, Value, Values

Array: TypeAlias = "np.ndarray[Any, Any]"


class MicroBatched(SegmentedExecutable):
    """A stage's segments. afterwards: those that run once, on what all parts have made.

    each: those that run for each part; what they give is numbered as in the whole, by `made`.
    """

    def __init__(self, whole: SegmentedExecutable, batches: MicroBatches) -> None:
        super().__init__(
            whole.segments,
            _open(whole.inputs, batches.inputs),
            _open(whole.outputs, [spec.name for spec in whole.outputs]),
            whole.results,
            whole.width,
            rest=whole.rest,
        )
        first = next(
            (i for i, segment in enumerate(self.segments) if segment.is_afterwards),
            len(self.segments),
        )
        self.afterwards = self.segments[first:]
        if not all(segment.is_afterwards for segment in self.afterwards):
            raise ModelError("nodes run after the exchange of a pipeline's results; slice it again")
        self.rows = batches.rows
        self.batched = frozenset(
            number for number, spec in enumerate(self.inputs) if spec.name in batches.inputs
        )
        specs = _specs(self.segments[:first])
        read = {number for segment in self.afterwards for number in segment.reads}
        self.made = tuple(sorted(number for number in {*read, *self.results} if number in specs))
        self.each = SegmentedExecutable(
            self.segments[:first],
            self.inputs,
            tuple(specs[number] for number in self.made),
            self.made,
            self.width,
        )

    def open_context(self) -> MicroBatchedContext:  # type: ignore[override]
        """Open a context of every segment."""
        return MicroBatchedContext(self)


class MicroBatchedContext:
    """One predict at a time: part after part, then the exchange of the results."""

    def __init__(self, executable: MicroBatched) -> None:
        self._executable = executable
        self._is_cancelled = False
        self._running: ExecutionContext | SegmentedContext | None = None
        with ExitStack() as opened:
            self._each = executable.each.open_context()
            opened.callback(close, self._each)
            self._afterwards: list[tuple[CompiledSegment, ExecutionContext]] = []
            for segment in executable.afterwards:
                context = Opener(segment.backend, segment.executable).open_context(None)
                opened.callback(close, context)
                self._afterwards.append((segment, context))
            self._closing = opened.pop_all()

    def run(self, inputs: Values, outputs: Values | None, deadline_s: float | None) -> Values:
        """See engine_predict."""
        executable = self._executable
        to_host = executable.transfer.to_host
        given = [to_host(value) if isinstance(value, DeviceBuffer) else value for value in inputs]
        sizes = {given[number].shape[0] for number in executable.batched}  # type: ignore[union-attr]
        total = max(sizes, default=executable.rows)
        parts: list[Values] = []
        for begin in range(0, max(total, 1), executable.rows):
            part = [
                _rows(value, begin, executable.rows) if number in executable.batched else value
                for number, value in enumerate(given)
            ]
            parts.append(self._run(self._each, part, deadline_s))
        values: dict[int, Value] = dict(enumerate(given))
        for place, number in enumerate(executable.made):
            values[number] = _joined([part[place] for part in parts], total)
        for segment, context in self._afterwards:
            self._begin(context)
            read = [values[number] for number in segment.reads]
            made = segment.backend.predict(context, read, None, deadline_s)
            values.update(zip(segment.writes, made, strict=True))
        self._running = None
        results = [values[number] for number in executable.results]
        return _delivered(results, outputs, executable.outputs, executable.transfer)

    def _run(self, context: SegmentedContext, part: Values, deadline_s: float | None) -> Values:
        self._begin(context)
        return context.run(part, None, deadline_s)

    def _begin(self, context: ExecutionContext | SegmentedContext) -> None:
        self._running = context  # noted before the flag is read, and `cancel` the other way round
        if self._is_cancelled:
            raise Cancelled("predict was cancelled by its owner")

    def cancel(self) -> None:
        """Stop the predict that runs."""
        self._is_cancelled = True
        stop = getattr(self._running, "cancel", None)
        if stop is not None:
            stop()

    def reset(self) -> None:
        """Let go of the caller's arrays."""
        self._running = None
        self._each.reset()

    def close(self) -> None:
        """Close every context; twice does nothing."""
        self._closing.close()


def _open(specs: Sequence[TensorSpec], names: Sequence[str]) -> tuple[TensorSpec, ...]:
    """Return specs of tensors whose axis 0 has any size, where they are named."""
    return tuple(
        replace(spec, shape=(None, *spec.shape[1:]), bounds=())
        if spec.name in names and spec.shape and isinstance(spec.shape[0], int)
        else spec
        for spec in specs
    )


def _specs(segments: Sequence[CompiledSegment]) -> Mapping[int, TensorSpec]:
    return {
        number: spec
        for segment in segments
        for number, spec in zip(segment.writes, segment.executable.outputs, strict=True)
    }


def _rows(value: Any, begin: int, count: int) -> Array:
    """Return so many rows of an array; what there is less of is zero."""
    part: Array = value[begin : begin + count]
    if len(part) == count:
        return part
    whole = np.zeros((count, *part.shape[1:]), part.dtype)
    whole[: len(part)] = part
    return whole


def _joined(parts: Sequence[Any], total: int) -> Array:
    """Return the rows of all parts but those that were added to fill the last one."""
    if len(parts) == 1:
        whole: Array = parts[0]
    else:
        whole = np.concatenate(parts)
    return whole if len(whole) == total else np.ascontiguousarray(whole[:total])


def _delivered(
    results: list[Value],
    outputs: Values | None,
    specs: Sequence[TensorSpec],
    transfer: Transfer,
) -> Values:
    """Return results in the places that the caller has named for them."""
    if outputs is None:
        return results
    for index, (entry, spec) in enumerate(zip(outputs, specs, strict=True)):
        if isinstance(entry, Device):
            results[index] = transfer.to_device(results[index], entry, spec.name)
        elif entry is not None:
            transfer.fill(entry, results[index], spec)
            results[index] = entry
    return results
