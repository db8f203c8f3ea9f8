"""Arrays that are bound in a session once, for the runs that follow.

Those of a caller who gives output buffers (`Bound`), or the context's own (`Staged`).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from engine_cpu.runtime import ort

if TYPE_CHECKING:
    from engine_cpu.layout import Array, Layout


class Bound:
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
        # ONNX Runtime has their addresses: numpy does not resize in place what is referred to so.
        self._fixed: dict[str, weakref.ref[Array]] = {}

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
            name = self._layout.input_names[index]
            self._io_binding.bind_ortvalue_input(name, value)
            self._fixed[name] = weakref.ref(array)
            self._held_inputs[index], self._shapes[index] = array, array.shape
        for index, buffer in enumerate(outputs):
            if buffer is not self._held_outputs[index]:
                value = ort.OrtValue.ortvalue_from_numpy(buffer)
                self._held_outputs[index] = None
                name = self._layout.output_names[index]
                self._io_binding.bind_ortvalue_output(name, value)
                self._fixed[name] = weakref.ref(buffer)
                self._held_outputs[index] = buffer


class Staged:
    """Buffers of one set of shapes, bound once; inputs are copied in and results out.

    shapes: of the inputs.
    """

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
        self.shapes = [array.shape for array in inputs]
        bound = Bound(session, layout)
        bound.hold(self._inputs, self._outputs)
        self._bound = bound
        self._run = bound.run
        self._binding = bound.binding
        self._only_output = self._outputs[0] if len(self._outputs) == 1 else None

    def run(self, inputs: Sequence[Array]) -> list[Array] | None:
        """Return the results in new memory; None where the shapes are not the buffers'."""
        # Assigning through [...] costs half of np.copyto, a comprehension twice its element.
        for buffer, shape, array in zip(self._inputs, self.shapes, inputs):
            if array.shape != shape:
                return None
            buffer[...] = array
        self._run(self._binding, self._options)
        if self._only_output is not None:
            return [self._only_output.copy()]
        return [buffer.copy() for buffer in self._outputs]


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
