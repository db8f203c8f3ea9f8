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
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import Cancelled, InputError
from engine.host.imports import ready
from engine.host.interrupts import raised_by_handler
from engine.types import TensorSpec
from engine_cpu import shutdown
from engine_cpu.layout import Array, Layout
from engine_cpu.runtime import ort

if TYPE_CHECKING:
    from engine_cpu.bound import Bound, Staged
    from engine_cpu.deadline import Deadline

# Below this many bytes of inputs and outputs together, copying costs less than `run` adds.
STAGED_BYTES = 16 * 1024

# So many runs follow one whose tensors were too large before shapes are looked at again: to look
# at each takes 2 % of a run of 0.3 ms.
_UNLOOKED_RUNS = 64


class CpuContext:
    """Runs a session for one thread at a time.

    Every run gets the context's RunOptions: to pass prepared ones costs less than None, for which
    ONNX Runtime makes new ones each time. So any run can be cancelled.
    """

    def __init__(self, session: ort.InferenceSession, layout: Layout) -> None:
        self._session = session
        self._call = _run_call(session)
        self._layout = layout
        self._input_names, self._output_names = layout.input_names, layout.output_names
        self._staged: Staged | None = None
        self._bound: Bound | None = None
        self._is_settled = not (layout.is_bindable or layout.echoes)  # no run needs `_finish`
        self._last_shapes: list[tuple[int, ...]] | None = None
        self._unlooked = 0  # runs until the next look at the shapes
        self._options = ort.RunOptions()
        self._cancelled = False
        self._name = ""  # of the request that runs, where it has one
        self._deadline: Deadline | None = None  # of the latest run that has one

    def run(self, inputs: Any, outputs: Any, deadline_s: float | None) -> Any:
        """See engine_predict."""
        if shutdown.ending:
            shutdown.park_thread()
        try:
            if outputs is None and deadline_s is None:
                staged = self._staged
                if staged is not None:
                    try:
                        results = staged.run(inputs)
                    except Exception as error:
                        if raised_by_handler(error):
                            raise
                        self._unstage(error)
                        results = None
                    if results is not None:
                        return results
                # As `_feed`, without its call: between long runs each costs a microsecond.
                feeds = dict(zip(self._input_names, inputs))
                results = self._call(self._output_names, feeds, self._options)
                if self._unlooked:
                    self._unlooked -= 1
                elif not self._is_settled:
                    return self._finish(inputs, results)
                return results
            # `is` alone tells that all is bound as the last call left it: the way of segments.
            bound = self._bound
            if deadline_s is not None:
                with self._stopping(deadline_s) as options:
                    return self._run(inputs, outputs, options)
            if bound is None or bound.inputs is not inputs or bound.outputs is not outputs:
                return self._run(inputs, outputs, self._options)
            bound.run(bound.binding, self._options)
            return outputs
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

    def run_named(self, name: str, inputs: Any, outputs: Any, deadline_s: float | None) -> Any:
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

    def _run(self, inputs: list[Array], outputs: Any, options: ort.RunOptions) -> list[Array]:
        if outputs is None:
            return self._feed(inputs, options)
        given: list[Array] = outputs
        bound = self._bind(inputs, outputs)
        if bound is None:
            return self._feed_into(inputs, outputs, options)
        bound.run(bound.binding, options)
        return given

    def _feed(self, inputs: Sequence[Array], options: ort.RunOptions) -> list[Array]:
        """Run without copies: ONNX Runtime reads the inputs in place and allocates the outputs."""
        results: list[Array]
        results = self._call(self._output_names, dict(zip(self._input_names, inputs)), options)
        return results if self._is_settled else self._finish(inputs, results)

    def _finish(self, inputs: Sequence[Array], results: list[Array]) -> list[Array]:
        """Return a run's results in memory of their own; stage the next runs if that pays."""
        echoes = self._layout.echoes
        if echoes:  # ONNX Runtime 1.23 gives the caller's own memory back
            return [r.copy() if n in echoes else r for n, r in zip(self._output_names, results)]
        self._consider_staging(inputs, results)
        return results

    def _stopping(self, deadline_s: float) -> Deadline:
        """Return the RunOptions for one run, as a context manager around it."""
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
            self._unlooked = _UNLOOKED_RUNS
            return
        if self._layout.output_shapes(inputs) != [result.shape for result in results]:
            self._is_settled = True  # the model does not keep to the shapes that it declares
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
            self._is_settled = True  # the model does not keep to the shapes that it declares

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
        self, inputs: list[Array], outputs: list[Array | None], options: ort.RunOptions
    ) -> list[Array]:
        """Run without binding and copy each result into the buffer given for it."""
        results = self._feed(inputs, options)
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
