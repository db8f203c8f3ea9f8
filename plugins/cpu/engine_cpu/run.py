"""The execution context: how arrays reach the session and results come back.

Three ways, the fastest that fits (bench/overhead.py):

* fed: through `run`, which copies neither inputs nor outputs; the first predict, and large tensors.
* staged: small tensors of known shapes are copied into buffers that are bound once, and results
  copied out. A prebound run costs half of `InferenceSession.run`, a small copy next to nothing.
* bound: where the caller gives output buffers, these and the inputs are bound as they are, and
  stay bound while the same arrays come again (bound.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import Cancelled, InputError
from engine.host.imports import ready
from engine.host.interrupts import raised_by_handler
from engine.types import TensorSpec, Values
from engine_cpu import shutdown
from engine_cpu.layout import Array, Layout
from engine_cpu.runtime import ort

if TYPE_CHECKING:
    from engine_cpu.bound import Bound, Staged
    from engine_cpu.deadline import Deadline

# Below this many bytes of inputs and outputs together, copying costs less than `run` adds.
STAGED_BYTES = 16 * 1024


class CpuContext:
    """Runs a session for one thread at a time.

    Every run gets the context's RunOptions: to pass prepared ones costs less than None, for which
    ONNX Runtime makes new ones each time. So any run can be cancelled.
    """

    def __init__(self, session: ort.InferenceSession, layout: Layout) -> None:
        self._session = session
        self._call = _run_call(session)
        self._layout = layout
        self._staged: Staged | None = None
        self._bound: Bound | None = None
        self._may_stage = layout.is_bindable
        self._last_shapes: list[tuple[int, ...]] | None = None
        self._options = ort.RunOptions()
        self._cancelled = False
        self._name = ""  # of the request that runs, where it has one
        self._deadline: Deadline | None = None  # of the latest run that has one

    def run(self, inputs: Any, outputs: Any, deadline_s: float | None) -> Values:
        """See engine_predict."""
        given: list[Array] = outputs
        if shutdown.ending:
            shutdown.park_thread()
        try:
            # `is` alone tells that all is bound as the last call left it: the way of segments.
            bound = self._bound
            if (
                bound is not None
                and bound.outputs is outputs
                and bound.inputs is inputs
                and deadline_s is None
            ):
                bound.run(bound.binding, self._options)
                return given
            if outputs is None:
                staged = self._staged
                if staged is not None and deadline_s is None:
                    try:
                        results = staged.run(inputs)
                    except Exception as error:
                        if raised_by_handler(error):
                            raise
                        self._unstage(error)
                        results = None
                    if results is not None:
                        return results
                return self._feed(inputs, deadline_s)
            if bound is None or bound.inputs is not inputs or bound.outputs is not outputs:
                bound = self._bind(inputs, outputs)
                if bound is None:
                    return self._feed_into(inputs, outputs, deadline_s)
            with self._stopping(deadline_s) as options:
                bound.run(bound.binding, options)
            return given
        except BaseException as error:
            if shutdown.ending:
                shutdown.park_thread()
            self._bound = None  # it may be half changed
            if not isinstance(error, Exception) or raised_by_handler(error):
                raise
            if self._cancelled:
                raise Cancelled("predict was cancelled while the model ran") from error
            ready("engine_cpu.errors")
            from engine_cpu.errors import translated  # rare

            raise translated(error) from error  # ONNX Runtime's have no common base

    def run_named(self, name: str, inputs: Any, outputs: Any, deadline_s: float | None) -> Values:
        """Run, and have ONNX Runtime write this name in the lines that it logs meanwhile."""
        self._options.logid = self._name = ascii(name)[1:-1]  # one line, whatever it is
        try:
            return self.run(inputs, outputs, deadline_s)
        finally:
            self._options.logid = self._name = ""

    def cancel(self) -> None:
        """See ExecutionContext; ONNX Runtime looks at the flag between nodes."""
        self._cancelled = True
        self._options.terminate = True
        deadline = self._deadline
        if deadline is not None:
            deadline.options.terminate = True

    def close(self) -> None:
        """Let go of every array; the session goes with its last context."""
        self._staged = self._bound = None

    def reset(self) -> None:
        """Let go of the callers' arrays."""
        self._bound = None

    def _feed(self, inputs: Sequence[Array], deadline_s: float | None) -> list[Array]:
        """Run without copies: ONNX Runtime reads the inputs in place and allocates the outputs."""
        layout = self._layout
        feeds = dict(zip(layout.input_names, inputs, strict=True))
        results: list[Array]
        if deadline_s is None:
            results = self._call(layout.output_names, feeds, self._options)
        else:
            with self._stopping(deadline_s) as options:
                results = self._call(layout.output_names, feeds, options)
        if self._may_stage:
            self._consider_staging(inputs, results)
        elif layout.echoes:  # ONNX Runtime 1.23 gives the caller's own memory back
            names = layout.output_names
            results = [r.copy() if n in layout.echoes else r for n, r in zip(names, results)]
        return results

    def _stopping(self, deadline_s: float | None) -> AbstractContextManager[ort.RunOptions]:
        """Return the RunOptions for one run, as a context manager around it."""
        if deadline_s is None:
            return nullcontext(self._options)
        ready("engine_cpu.deadline")
        from engine_cpu.deadline import Deadline  # most processes set none

        self._deadline = deadline = Deadline(deadline_s)
        deadline.options.logid = self._name
        if self._cancelled:  # looked at after cancel() can find the deadline: one of both sees it
            deadline.options.terminate = True
        return deadline

    def _consider_staging(self, inputs: Sequence[Array], results: Sequence[Array]) -> None:
        """Bind buffers for these shapes if they are small and came twice in a row."""
        shapes = [array.shape for array in inputs]
        if shapes != self._last_shapes:
            self._last_shapes = shapes
            return
        if self._staged is not None and self._staged.shapes == shapes:
            return  # this run had a deadline, or buffers for its outputs
        nbytes = sum(array.nbytes for array in (*inputs, *results))
        if nbytes > STAGED_BYTES or any(array.size == 0 for array in (*inputs, *results)):
            return
        if self._layout.output_shapes(inputs) != [result.shape for result in results]:
            self._may_stage = False  # the model does not keep to the shapes that it declares
            return
        ready("engine_cpu.bound")
        from engine_cpu.bound import Staged  # once a context: it may never come to this

        self._staged = Staged(self._session, self._layout, inputs, results, self._options)

    def _unstage(self, error: Exception) -> None:
        """Go back to feeding after a staged run failed: that raises the same if the run is why."""
        ready("engine_cpu.errors")
        from engine_cpu.errors import is_buffer_refused  # rare

        self._staged = self._last_shapes = None
        if is_buffer_refused(str(error)):
            self._may_stage = False  # the model does not keep to the shapes that it declares

    def _bind(self, inputs: list[Array], outputs: list[Array | None]) -> Bound | None:
        """Bind these arrays; None where they cannot be bound and results must be copied."""
        buffers = [buffer for buffer in outputs if buffer is not None]
        if len(buffers) != len(outputs) or not self._layout.may_bind(buffers):
            return None
        if self._bound is None:
            ready("engine_cpu.bound")
            from engine_cpu.bound import Bound  # once a context, or after an error

            self._bound = Bound(self._session, self._layout)
        self._bound.inputs = None  # until all of it is bound
        if not self._bound.holds(inputs, buffers):
            if _overlap(inputs, buffers):
                self._bound = None
                return None
            self._bound.hold(inputs, buffers)
        self._bound.inputs, self._bound.outputs = inputs, outputs
        return self._bound

    def _feed_into(
        self, inputs: list[Array], outputs: list[Array | None], deadline_s: float | None
    ) -> list[Array]:
        """Run without binding and copy each result into the buffer given for it."""
        results = self._feed(inputs, deadline_s)
        specs = self._layout.outputs
        return [
            result if buffer is None else _copied(spec, result, buffer)
            for spec, result, buffer in zip(specs, results, outputs, strict=True)
        ]


def _run_call(session: ort.InferenceSession) -> Any:
    """Return the function that runs arrays, lists and dicts by name; see `_bound_call`.

    The session's own looks at names and values once more, which the core has checked.
    """
    return getattr(getattr(session, "_sess", None), "run", session.run)


def _overlap(inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Return True where writing an output could change an input."""
    return any(np.may_share_memory(a, b) for a in inputs for b in outputs)


def _copied(spec: TensorSpec, result: Array, buffer: Array) -> Array:
    if result.shape != buffer.shape:
        raise InputError(
            f"output {spec.name!r}: the result is {result.dtype.name}{list(result.shape)}, but "
            f"the buffer given for it {buffer.dtype.name}{list(buffer.shape)}",
            spec.name,
        )
    buffer[...] = result
    return buffer
