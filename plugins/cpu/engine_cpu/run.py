"""The execution context: how arrays reach the session and results come back.

Three ways, the fastest that fits (bench/overhead.py):

* staged: small tensors of known shapes are copied into buffers that are bound once, and results
  copied out. A prebound run costs half of `InferenceSession.run`, a small copy next to nothing.
* fed: everything else goes through `run`, which copies neither inputs nor outputs.
* bound: where the caller gives output buffers, these and the inputs are bound as they are, and
  stay bound while the same arrays come again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import is_
from typing import Any

import numpy as np
import onnxruntime as ort

from engine.errors import Cancelled, DeadlineExceeded, EngineError, InputError, ModelError
from engine.types import DType, TensorSpec, ValueKind, Values
from engine_cpu import shutdown
from engine_cpu.deadline import Deadline

Array = np.ndarray[Any, Any]

# The types that ONNX Runtime's Python interface takes and gives arrays of. Values of others, and
# what is no tensor, are for values.py.
PLAIN = frozenset(
    {DType.BOOL, DType.STRING, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64}
    | {DType.INT8, DType.INT16, DType.INT32, DType.INT64}
    | {DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64}
)

# ONNX Runtime's words where a result has another shape than the buffer bound for it.
_BUFFER_REFUSED = re.compile("output OrtValue provided|OrtValue shape verification failed")

# Below this many bytes of inputs and outputs together, copying costs less than `run` adds.
STAGED_BYTES = 16 * 1024


class Layout:
    """What the contexts of one session have in common: names, and what can be bound."""

    def __init__(self, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.input_names = [spec.name for spec in inputs]
        self.output_names = [spec.name for spec in outputs]
        self.is_plain = all(
            spec.dtype in PLAIN and spec.kind is ValueKind.TENSOR for spec in (*inputs, *outputs)
        )
        self.is_static = all(
            isinstance(dim, int) for spec in inputs for dim in spec.shape or (None,)
        )
        self.echoes = frozenset(self.input_names) & frozenset(self.output_names)
        # Strings have no memory to bind; and ONNX Runtime 1.31 leaves a bound output untouched,
        # without an error, where the graph's output is the graph's input itself.
        self.is_bindable = (
            self.is_plain
            and not self.echoes
            and all(spec.dtype is not DType.STRING for spec in (*inputs, *outputs))
        )

    def output_shapes(self, inputs: Sequence[Array]) -> list[tuple[int, ...]] | None:
        """Return the outputs' shapes; None where the declared dims do not tell them all."""
        sizes = {
            dim: size
            for array, spec in zip(inputs, self.inputs, strict=True)
            for size, dim in zip(array.shape, spec.shape or (), strict=False)
            if isinstance(dim, str)
        }
        shapes = []
        for spec in self.outputs:
            if spec.shape is None:
                return None
            dims = [sizes.get(dim) if isinstance(dim, str) else dim for dim in spec.shape]
            if None in dims:
                return None
            shapes.append(tuple(dim for dim in dims if dim is not None))
        return shapes


class CpuContext:
    """Runs a session for one thread at a time.

    Every run gets the context's RunOptions: to pass prepared ones costs less than None, for which
    ONNX Runtime makes new ones each time. So any run can be cancelled.
    """

    def __init__(self, session: ort.InferenceSession, layout: Layout) -> None:
        self._session = session
        self._layout = layout
        self._staged: _Staged | None = None
        self._bound: _Bound | None = None
        self._may_stage = layout.is_bindable
        self._last_shapes: list[tuple[int, ...]] | None = None
        self._options = ort.RunOptions()
        self._cancelled = False
        self._deadline: Deadline | None = None  # of the run under way

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
            self._bound = None  # it may be half changed
            if not isinstance(error, Exception):
                raise
            if self._cancelled:
                raise Cancelled("predict was cancelled while the model ran") from error
            raise _translated(error) from error  # ONNX Runtime's have no common base

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
            results = self._session.run(layout.output_names, feeds, self._options)
        else:
            with self._timed(deadline_s) as options:
                results = self._session.run(layout.output_names, feeds, options)
        if self._may_stage:
            self._consider_staging(inputs, results)
        elif layout.echoes:  # ONNX Runtime 1.23 gives the caller's own memory back
            names = layout.output_names
            results = [r.copy() if n in layout.echoes else r for n, r in zip(names, results)]
        return results

    def _stopping(self, deadline_s: float | None) -> AbstractContextManager[ort.RunOptions]:
        """Return the RunOptions for one run, as a context manager around it."""
        return nullcontext(self._options) if deadline_s is None else self._timed(deadline_s)

    @contextmanager
    def _timed(self, deadline_s: float) -> Iterator[ort.RunOptions]:
        """Stop the run inside at its deadline, with the error that says so.

        It has RunOptions of its own: the deadline may set their flag just after the run has ended.
        """
        deadline = Deadline(deadline_s)
        self._deadline = deadline
        if self._cancelled:  # looked at after cancel() can find the deadline: one of both sees it
            deadline.options.terminate = True
        try:
            with deadline:
                if deadline.passed:
                    raise DeadlineExceeded("the deadline had passed before the model could run")
                yield deadline.options
        except EngineError:
            raise
        except Exception as error:
            if deadline.stopped:
                raise DeadlineExceeded("the model was stopped at its deadline") from error
            raise
        finally:
            self._deadline = None

    def _consider_staging(self, inputs: Sequence[Array], results: Sequence[Array]) -> None:
        """Bind buffers for these shapes if they are small and came twice in a row."""
        shapes = [array.shape for array in inputs]
        if shapes != self._last_shapes:
            self._last_shapes = shapes
            return
        nbytes = sum(array.nbytes for array in (*inputs, *results))
        if nbytes > STAGED_BYTES or any(array.size == 0 for array in (*inputs, *results)):
            return
        if self._layout.output_shapes(inputs) != [result.shape for result in results]:
            self._may_stage = False  # the model does not keep to the shapes that it declares
            return
        self._staged = _Staged(self._session, self._layout, inputs, results, self._options)

    def _unstage(self, error: Exception) -> None:
        """Go back to feeding after a staged run failed: that raises the same if the run is why."""
        self._staged = self._last_shapes = None
        if _BUFFER_REFUSED.search(str(error)):
            self._may_stage = False  # the model does not keep to the shapes that it declares

    def _bind(self, inputs: list[Array], outputs: list[Array | None]) -> _Bound | None:
        """Bind these arrays; None where they cannot be bound and results must be copied."""
        buffers = [buffer for buffer in outputs if buffer is not None]
        if not self._layout.is_bindable or len(buffers) != len(outputs):
            return None
        if self._bound is None:
            self._bound = _Bound(self._session, self._layout)
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


class _Staged:
    """Buffers of one set of shapes, bound once; inputs are copied in and results out."""

    def __init__(
        self,
        session: ort.InferenceSession,
        layout: Layout,
        inputs: Sequence[Array],
        results: Sequence[Array],
        options: ort.RunOptions,
    ) -> None:
        self._options = options
        self._inputs = [np.empty_like(array, order="C") for array in inputs]
        self._outputs = [np.empty_like(array, order="C") for array in results]
        self._shapes = [array.shape for array in inputs]
        # The core has checked shapes that the model fixes.
        self._may_vary = not layout.is_static
        bound = _Bound(session, layout)
        bound.hold(self._inputs, self._outputs)
        self._bound = bound
        self._run = bound.run
        self._binding = bound.binding
        self._only_output = self._outputs[0] if len(self._outputs) == 1 else None

    def run(self, inputs: Sequence[Array]) -> list[Array] | None:
        """Return the results in new memory; None where the shapes are not the buffers'."""
        if self._may_vary and [array.shape for array in inputs] != self._shapes:
            return None
        # Assigning through [...] costs half of np.copyto, a comprehension twice its element.
        for buffer, array in zip(self._inputs, inputs):
            buffer[...] = array
        self._run(self._binding, self._options)
        if self._only_output is not None:
            return [self._only_output.copy()]
        return [buffer.copy() for buffer in self._outputs]


class _Bound:
    """A binding and the arrays that are bound in it.

    inputs, outputs: the lists last given for them; the core passes the very same list objects
    again where nothing in them has changed, so that `is` is the whole check.
    """

    def __init__(self, session: ort.InferenceSession, layout: Layout) -> None:
        self.inputs: list[Array] | None = None
        self.outputs: list[Array | None] | None = None
        self._io_binding = session.io_binding()
        self.run, self.binding = _bound_call(session, self._io_binding)
        self._layout = layout
        self._held_inputs: list[Array | None] = [None] * len(layout.inputs)
        self._shapes: list[tuple[int, ...]] = [()] * len(layout.inputs)
        self._held_outputs: list[Array | None] = [None] * len(layout.outputs)

    def holds(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Return True where exactly these arrays, in their present shapes, are bound."""
        return all(map(is_, inputs, self._held_inputs)) and (
            all(map(is_, outputs, self._held_outputs))
            and [array.shape for array in inputs] == self._shapes
        )

    def hold(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Bind these arrays where others were; they stay alive for as long as they are bound."""
        for index, array in enumerate(inputs):
            if array is self._held_inputs[index] and array.shape == self._shapes[index]:
                continue
            value = ort.OrtValue.ortvalue_from_numpy(array)
            self._held_inputs[index] = None  # noted when done: an interrupt may come in between
            self._io_binding.bind_ortvalue_input(self._layout.input_names[index], value)
            self._held_inputs[index], self._shapes[index] = array, array.shape
        for index, buffer in enumerate(outputs):
            if buffer is not self._held_outputs[index]:
                value = ort.OrtValue.ortvalue_from_numpy(buffer)
                self._held_outputs[index] = None
                self._io_binding.bind_ortvalue_output(self._layout.output_names[index], value)
                self._held_outputs[index] = buffer


def _bound_call(session: ort.InferenceSession, binding: ort.IOBinding) -> tuple[Any, Any]:
    """Return the function that runs a binding, and the argument it takes for that binding.

    The session's own method adds 0.3 us of Python to each run (bench/overhead.py: an eighth of a
    tiny predict). The compiled objects behind it take the same call; where a version of ONNX
    Runtime hides them, the public method serves.
    """
    compiled = getattr(session, "_sess", None)
    inner = getattr(binding, "_iobinding", None)
    if compiled is not None and inner is not None and hasattr(compiled, "run_with_iobinding"):
        return compiled.run_with_iobinding, inner
    return session.run_with_iobinding, binding


def _translated(error: Exception) -> Exception:
    """Return the contract's exception for an exception of a run."""
    text = " ".join(str(error).split())
    if isinstance(error, EngineError):
        return error
    if isinstance(error, MemoryError):
        return ModelError("out of memory while running")
    if _BUFFER_REFUSED.search(text):
        return InputError(_unfit_buffer(text))
    return ModelError(f"onnxruntime: {text}")


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


def _unfit_buffer(text: str) -> str:
    """Word the error for a bound output of another shape than the result."""
    match = re.search(r"for output '(.*?)' .*?has shape (\{.*?\}) but .*? is (\{.*?\})", text)
    if match is None:  # older ones name no output
        shapes = re.search(r"Current shape:(\{.*?\}) Requested shape:(\{.*?\})", text)
        if shapes is not None:
            given, result = (shape.strip("{}").replace(",", ", ") for shape in shapes.groups())
            return f"the result has shape [{result}], but the buffer given for it [{given}]"
        return f"a given output buffer does not fit the result: {' '.join(text.split())}"
    given, result = (shape.strip("{}").replace(",", ", ") for shape in match.group(2, 3))
    return (
        f"output {match[1]!r}: the result has shape [{result}], but the buffer given for it "
        f"[{given}]"
    )
