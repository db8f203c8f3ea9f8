"""Models for tests of conversion, and the check that what converts a model leaves it alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper


def value(
    name: str, shape: Sequence[int | str] | None, element: int = TensorProto.FLOAT
) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def build(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    weights: Mapping[str, Any] | None = None,
    ir_version: int = 8,
    opset: int = 17,
) -> ModelProto:
    """A model; `changed` and the fixture `run` check it."""
    tensors = [
        numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()
    ]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, ir_version=ir_version, opset_imports=opsets)


def dims(values: Iterable[ValueInfoProto]) -> dict[str, list[int | str]]:
    """The sizes of each value's axes."""
    return {
        each.name: [dim.dim_param or dim.dim_value for dim in each.type.tensor_type.shape.dim]
        for each in values
    }


def changed(
    change: Callable[..., tuple[ModelProto, list[str]]], model: ModelProto, *wishes: Any
) -> tuple[ModelProto, list[str]]:
    """Return the model that `change` makes of a model: both are valid, the first unchanged."""
    onnx.checker.check_model(model)
    before = model.SerializeToString(deterministic=True)
    result, notes = change(model, *wishes)
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(result, full_check=True)
    return result, notes
