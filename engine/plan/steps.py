"""The run of a partitioned model: one context of each segment, and the values between them.

A first run for a set of input shapes lets every segment allocate what it writes. Where the same
shapes come again, a workspace is prepared for them (see `workspace`), and a run is little more
than one call a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import numpy as np

from engine.backends.predict_options import running
from engine.errors import (
    BackendError,
    Cancelled,
    CommunicatorError,
    DeadlineExceeded,
    EngineError,
    ModelError,
    one_line,
)
from engine.host.interrupts import raised_by_handler
from engine.plan.contexts import close
from engine.plan.dataflow import Dataflow
from engine.plan.plan import Opener
from engine.plan.workspace import (
    BoundRun,
    Seen,
    Step,
    Workspace,
    direct_buffers,
    overwritten,
    owned,
)
from engine.tensor.description import canonical
from engine.types import (
    Capability,
    Device,
    DeviceBuffer,
    ExecutionContext,
    Value,
    Values,
)

Shapes: TypeAlias = tuple[Any, ...]

MOST_WORKSPACES = 4
"""Sets of input shapes for which a context keeps buffers; the one prepared first goes first."""
MOST_SEEN = 16

_FINAL = (BackendError, Cancelled, CommunicatorError, DeadlineExceeded)
"""Errors that have nothing to do with the buffers that segments were given."""


class SegmentedContext:
    """One context of each segment, and the way of the values through them."""

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        self._contexts: list[ExecutionContext] = []
        self._seen: dict[Shapes | None, list[Seen]] = {}
        self._workspaces: dict[Shapes | None, Workspace] = {}
        self._bound: BoundRun | None = None
        self._running: Step | None = None
        self._cancelled = False
        self._recorded: list[Seen] | None = None
        neighbours: dict[tuple[str, Device], ExecutionContext] = {}
        with ExitStack() as opened:
            for segment in flow.segments:
                where = (segment.backend.name, segment.device)
                shares = not segment.backend.lacks(Capability.SHARE_WORKSPACE, segment.device)
                context = Opener(segment.backend, segment.executable).open_context(
                    neighbours.get(where) if shares else None
                )
                # Closed in the opposite order, so that what others stand beside goes last.
                opened.callback(close, context)
                neighbours.setdefault(where, context)
                self._contexts.append(context)
            self._closing = opened.pop_all()

    # ---------------------------------------------------------------------------------- running

    def run(self, inputs: Values, outputs: Values | None, deadline_s: float | None) -> Values:
        """See engine_predict."""
        bound = self._bound
        workspace: Workspace | None = None
        if bound is None or not bound.holds(inputs, outputs):
            shapes = self._shapes(inputs)
            workspace = self._workspaces.get(shapes) or self._prepare(shapes)
            if workspace is None or not _are_arrays(outputs or ()):
                results, seen = self._run_first(inputs, outputs, deadline_s)
                if shapes is not None:
                    if len(self._seen) >= MOST_SEEN:
                        self._seen.clear()
                    self._seen[shapes] = seen
                return results
            if outputs is None:
                bound = None
            else:
                bound = self._bound = workspace.bind(inputs, outputs, bound)
        try:
            if bound is not None:
                self._walk(bound.steps, bound.values, deadline_s)
            else:
                assert workspace is not None, "bound, or prepared above"
                self._walk(workspace.steps, workspace.fill(inputs), deadline_s)
        except BaseException as error:
            self._forget()  # lists may be half changed
            if isinstance(error, _FINAL) or not isinstance(error, Exception):
                raise
            failed = self._running
            is_final = failed is None or self._flow.segments[failed.index].is_shared
            if is_final or raised_by_handler(error):
                raise
        else:
            if bound is not None:
                return bound.deliver()
            assert workspace is not None
            try:
                return workspace.results(inputs)
            finally:
                workspace.clear()
        prepared = workspace if bound is None else bound.workspace
        assert prepared is not None
        values = prepared.values if bound is None else bound.values
        return self._go_on(inputs, outputs, deadline_s, values, prepared.seen)

    def _go_on(
        self,
        inputs: Values,
        outputs: Values | None,
        deadline_s: float | None,
        values: Sequence[Value],
        seen: Sequence[Seen],
    ) -> Values:
        """Go on from the segment that failed, with segments that allocate what they write.

        It may have refused one of our buffers, because its results change their shape with the
        data. If it is so, the same goes well now, and no buffers are prepared for it any more.
        Segments that have run are not run again: other ranks may have taken part in it.
        values: those of the run that failed. seen: what the buffers were prepared for.
        """
        failed = self._running
        assert failed is not None, "a run fails in a step"
        results, now = self._run_first(inputs, outputs, deadline_s, failed.index, values)
        for index, segment in enumerate(self._flow.segments):
            if any(seen[n] is not None and now[n] != seen[n] for n in segment.writes):
                self._flow.allocate_from(index)
        return results

    def _forget(self) -> None:
        self._bound = None
        self._workspaces.clear()

    def _walk(self, steps: Sequence[Step], values: list[Value], deadline_s: float | None) -> None:
        """Run the segments one after another; the hot path."""
        options = running.get(id(self)) if running else None
        for step in steps:
            self._running = step  # noted before the flag is read, and `cancel` the other way round
            if self._cancelled:
                raise Cancelled("predict was cancelled by its owner")
            taken = step.taken
            if taken is None:
                taken = self._gather(step, values)
            if options is None or step.predict_with is None:
                results = step.predict(step.context, taken, step.given, deadline_s)
            else:
                results = step.predict_with(step.context, taken, step.given, deadline_s, options)
            if results is not step.given:
                self._settle(step, values, results)
        self._running = None

    def _gather(self, step: Step, values: Sequence[Value]) -> list[Value]:
        """Return the inputs of a step whose values are not the same in every run."""
        taken = [values[number] for number in step.reads]
        if step.devices is not None:
            for index, value in enumerate(taken):
                if isinstance(value, DeviceBuffer) and value.device not in step.devices:
                    taken[index] = self._flow.transfer.to_host(value)
        if step.may_keep:
            kept = step.kept
            if kept is not None and all(map(_is, kept, taken)):
                return kept
            step.kept = taken
        return taken

    def _settle(self, step: Step, values: list[Value], results: Values) -> None:
        """Take what a step has given back, where that is not just its own buffers."""
        if len(results) != len(step.writes):
            raise TypeError(f"engine_predict gave {len(results)} values for {len(step.writes)}")
        given = step.given
        for index, (number, result) in enumerate(zip(step.writes, results)):
            buffer = given[index] if given is not None else None
            if buffer is None or isinstance(buffer, Device):
                if type(result) is np.ndarray:
                    result = canonical(result)
                elif type(result) is list:
                    result = [canonical(a) if type(a) is np.ndarray else a for a in result]
                elif type(result) is DeviceBuffer:
                    result = self._flow.transfer.packed(result)
                values[number] = result
            elif result is not buffer:
                spec = self._flow.segments[step.index].executable.outputs[index]
                self._flow.transfer.fill(buffer, result, spec)
            if self._recorded is not None:
                self._recorded[number] = _seen(result)
        for number in step.ends:
            values[number] = None

    def _run_first(
        self,
        inputs: Values,
        outputs: Values | None,
        deadline_s: float | None,
        begin: int = 0,
        made: Sequence[Value] = (),
    ) -> tuple[Values, list[Seen]]:
        """Run with nothing prepared; returns the results and the shapes of all values.

        begin: the segment to begin with. made: the values that those before it have made.
        """
        flow = self._flow
        values: list[Value] = [*inputs, *[None] * (flow.width - len(inputs))]
        for segment in flow.segments[:begin]:
            for number in segment.writes:
                values[number] = made[number]
        given = direct_buffers(flow, inputs, outputs or ())
        steps = []
        for index, segment in enumerate(flow.segments[begin:], begin):
            step = Step(index, flow, self._contexts[index])
            buffers = [given.get(number) for number in segment.writes]
            step.given = buffers if any(buffer is not None for buffer in buffers) else None
            step.ends = segment.ends
            steps.append(step)
            for number, buffer in zip(segment.writes, buffers, strict=True):
                values[number] = buffer
        self._recorded = [_seen(value) for value in values]
        try:
            self._walk(steps, values, deadline_s)
            seen = self._recorded
        except Exception as error:
            if isinstance(error, EngineError) or raised_by_handler(error):
                raise
            raise self._translated(error, self._running) from error
        finally:
            self._recorded = None
        results = []
        for number in overwritten(flow, inputs, outputs or ()):
            values[number] = owned(values[number], flow.transfer)
        for index, number in enumerate(flow.results):
            value = values[number]
            entry = outputs[index] if outputs is not None else None
            results.append(self._delivered(value, entry, index, number < len(inputs)))
        if outputs is not None and all(map(_is, results, outputs)):
            return outputs, seen
        return results, seen

    def _delivered(self, value: Value, entry: Any, index: int, is_input: bool) -> Value:
        """Return a result in the place that the caller has named for it.

        is_input: it is an input as well, so that it must be copied: the caller owns what it gets.
        """
        transfer = self._flow.transfer
        if entry is None:
            return owned(value, transfer) if is_input else transfer.to_host(value)
        if isinstance(entry, Device):
            is_there = isinstance(value, DeviceBuffer) and value.device == entry
            if is_there and not is_input:
                return value
            return transfer.to_device(value, entry, self._flow.outputs[index].name)
        if value is not entry:
            transfer.fill(entry, value, self._flow.outputs[index])
        filled: Value = entry
        return filled

    def _translated(self, error: Exception, step: Step | None) -> Exception:
        """Return what the core expects for an exception in a step."""
        if isinstance(error, EngineError) or step is None:
            return error
        name = self._flow.segments[step.index].backend.name
        return ModelError(f"backend {name!r} raised {one_line(error)}", at_fault=name)

    # -------------------------------------------------------------------------------- preparing

    def _shapes(self, inputs: Values) -> Shapes | None:
        """Return what a workspace is prepared for; None where there are more than tensors."""
        try:
            shapes: Shapes = tuple([value.shape for value in inputs])  # type: ignore[union-attr]
        except AttributeError:
            return None
        if self._flow.transfer.devices:
            devices = [getattr(value, "device", "cpu") for value in inputs]
            return (*shapes, *map(str, devices))
        return shapes

    def _prepare(self, shapes: Shapes | None) -> Workspace | None:
        """Return a workspace for shapes that come for the second time; None for the first."""
        seen = self._seen.get(shapes)
        if seen is None or shapes is None:
            return None
        if len(self._workspaces) >= MOST_WORKSPACES:
            del self._workspaces[next(iter(self._workspaces))]
        workspace = Workspace(self._flow, self._contexts, seen)
        self._workspaces[shapes] = workspace
        return workspace

    # ---------------------------------------------------------------------------------- its life

    def cancel(self) -> None:
        """Stop the predict that runs: the segment that is at it, and all that come after."""
        self._cancelled = True
        running = self._running
        stop: Callable[[], None] | None = getattr(running and running.context, "cancel", None)
        if stop is not None:
            stop()

    def reset(self) -> None:
        """Let go of the caller's arrays; what is prepared for shapes stays."""
        self._bound = None
        self._running = None  # after a failure the step that failed, with its lists
        for context in self._contexts:
            reset = getattr(context, "reset", None)
            if reset is not None:
                reset()

    def close(self) -> None:
        """Close every context and free all buffers; twice does nothing."""
        self._forget()
        self._seen.clear()
        self._closing.close()


def _is(one: object, other: object) -> bool:
    return one is other


def _are_arrays(outputs: Values) -> bool:
    return all(buffer is None or isinstance(buffer, np.ndarray) for buffer in outputs)


def _seen(value: Value) -> Seen:
    """Return the shape and dtype of a tensor on the host; None for what no buffer can hold."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject and value.size:
        return value.shape, value.dtype
    return None
