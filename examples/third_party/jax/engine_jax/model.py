"""A model as this backend reads it: its steps, its weights, and what it cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import onnx

from engine.errors import ModelError, one_line
from engine.model_bytes import infer_shapes
from engine.types import DType, ModelSource, NodeGroups
from engine_jax.graph import Body
from engine_jax.runtime import DTYPES

KNOWN_BYTES = 1 << 12
"""A weight up to this size is a part of the program: it may say a shape or an axis."""


LEAST_NODES = 24
"""A smaller part of a model takes less time than the way to XLA and back."""


class JaxModel:
    """A LoadedModel: steps, the weights that are arguments of the program, and the small ones."""

    def __init__(self, source: ModelSource) -> None:
        assert source.graph is not None
        self.source, self.path = source, str(source.path or "")
        self.inputs, self.outputs = source.graph.inputs, source.graph.outputs
        try:
            proto = _read(source)
        except Exception as error:  # protobuf, the checker and shape inference share no base
            message = f"{source.name}: not a valid ONNX model: {one_line(error)}"
            raise ModelError(message, self.path) from error
        self.types = _types(proto.graph)
        opsets = {each.domain: each.version for each in proto.opset_import}
        self.body = Body(proto.graph, opsets, {})
        weights = {
            tensor.name: onnx.numpy_helper.to_array(tensor)
            for tensor in proto.graph.initializer
            if self.types[tensor.name] in DTYPES
        }
        self.small = {name: each for name, each in weights.items() if each.nbytes <= KNOWN_BYTES}
        self.weights = {name: weights[name] for name in weights.keys() - self.small.keys()}
        self.body.place({*self.small}, self.types)
        steps = enumerate(self.body.steps)
        self.unsupported = {at: step.reason for at, step in steps if step.reason}
        self.groups = NodeGroups(least_nodes=LEAST_NODES)

    def refuse(self) -> None:
        """Raise ModelError for what can only run with another backend's help."""
        for spec in (*self.inputs, *self.outputs):
            if spec.kind != "tensor" or spec.dtype not in DTYPES:
                raise ModelError(f"{self.source.name}: {spec.name!r} is {spec}", self.path)
        for at, reason in self.unsupported.items():
            label = self.body.steps[at].label
            raise ModelError(f"{self.source.name}: {label} cannot run: {reason}", self.path)

    def trace(self, inputs: Sequence[Any], weights: Sequence[Any], check: Any) -> list[Any]:
        """Compute the outputs as JAX's functions of the inputs and weights."""
        values = dict(zip((spec.name for spec in self.inputs), inputs))
        values |= self.small | dict(zip(self.weights, weights))
        self.body.run(values, check)
        for name, value in values.items():
            dtype = self.types.get(name)
            if dtype is not None and value.dtype != dtype.numpy:
                raise ModelError(f"{name!r}: computed {value.dtype}, expected {dtype}")
        return [jnp.asarray(values[spec.name]) for spec in self.outputs]

    def close(self) -> None:
        """Nothing to free but memory."""


def _read(source: ModelSource) -> Any:
    """Return the model with its weights and the types of its values."""
    if source.data is None:
        assert source.path is not None
        proto = onnx.load(source.path)
    else:
        proto = onnx.load_model_from_string(source.data)
        if source.folder is not None:
            onnx.load_external_data_for_model(proto, str(source.folder))
    return infer_shapes(proto, check_type=True)


def _types(graph: Any) -> dict[str, DType | None]:
    """Return the element types that the file says, or that follow; None for other values."""
    found: dict[str, DType | None] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind, number = value.type.WhichOneof("value"), value.type.tensor_type.elem_type
        if kind != "tensor_type" or number:
            found[value.name] = DType.from_onnx(number) if kind == "tensor_type" else None
    found |= {tensor.name: DType.from_onnx(tensor.data_type) for tensor in graph.initializer}
    return found | dict.fromkeys((each.values.name for each in graph.sparse_initializer), None)
