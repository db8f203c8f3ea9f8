"""Common state of the contexts of one session: names, types, and which arrays can be bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.types import DType, TensorSpec, ValueKind

Array = np.ndarray[Any, Any]

# The types that ONNX Runtime's Python interface takes and gives arrays of. Values of others, and
# what is no tensor, are for values.py.
PLAIN = frozenset(
    {DType.BOOL, DType.STRING, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64}
    | {DType.INT8, DType.INT16, DType.INT32, DType.INT64}
    | {DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64}
)


class Layout:
    """Layout that the contexts of one session have in common: names, and what can be bound."""

    def __init__(self, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.input_names = [spec.name for spec in inputs]
        self.output_names = [spec.name for spec in outputs]
        self.is_plain = all(
            spec.dtype in PLAIN and spec.kind is ValueKind.TENSOR for spec in (*inputs, *outputs)
        )
        self.echoes = frozenset(self.input_names) & frozenset(self.output_names)
        # Strings have no memory to bind; and ONNX Runtime 1.31 leaves a bound output untouched,
        # without an error, where the graph's output is the graph's input itself.
        self.is_bindable = (
            self.is_plain
            and not self.echoes
            and all(spec.dtype is not DType.STRING for spec in (*inputs, *outputs))
        )

    def may_bind(self, buffers: Sequence[Array]) -> bool:
        """Return True unless one contradicts what its output declares: no such is ever bound."""
        return self.is_bindable and all(
            spec.shape is None
            or (
                len(spec.shape) == len(buffer.shape)
                and all(
                    dim == size or not isinstance(dim, int)
                    for dim, size in zip(spec.shape, buffer.shape, strict=True)
                )
            )
            for buffer, spec in zip(buffers, self.outputs, strict=True)
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
