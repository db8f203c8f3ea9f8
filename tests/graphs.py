"""Small models of nodes, or from text: `net (float[n] x) => (float[n] y) { y = Mul(x, two) }`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import (
    FunctionProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

Shapes = Mapping[str, Sequence[Any] | None]


def parsed(text: str, *, opset: int = 17, ir_version: int = 8, **weights: Any) -> ModelProto:
    """Return the model of a graph in text. weights: constants that it reads, by name.

    Operators of other domains have theirs in front, as `com.microsoft.Gelu(x)`.
    """
    domains = {"ai.onnx.ml": 3, "com.microsoft": 1}
    found = [name for name in domains if f"{name}." in text]
    opsets = ", ".join(f'"{name}": {domains.get(name, opset)}' for name in ("", *found))
    model = onnx.parser.parse_model(f"<ir_version: {ir_version}, opset_import: [{opsets}]> {text}")
    for name, value in weights.items():
        model.graph.initializer.append(_tensor(value, name))
    return model


def _tensor(value: Any, name: str) -> TensorProto:
    if isinstance(value, TensorProto):
        return value
    return numpy_helper.from_array(np.asarray(value), name)


def of_nodes(
    nodes: Sequence[NodeProto],
    inputs: Shapes,
    outputs: Shapes,
    constants: Mapping[str, Any] | None = None,
    *,
    dtypes: Mapping[str, int] | None = None,
    functions: Sequence[FunctionProto] = (),
    opset: int = 17,
    ir_version: int = 8,
) -> ModelProto:
    """Return the model of some nodes. inputs, outputs: shapes by name, None for any.

    dtypes: element types of inputs and outputs that are not float32.
    """

    def values(shapes: Shapes) -> list[ValueInfoProto]:
        kinds = {name: (dtypes or {}).get(name, TensorProto.FLOAT) for name in shapes}
        return [helper.make_tensor_value_info(n, kinds[n], shape) for n, shape in shapes.items()]

    weights = [_tensor(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs), weights)
    domains = sorted({node.domain for node in nodes} - {""})
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(
        graph, ir_version=ir_version, opset_imports=opsets, functions=functions
    )


def written(path: Path, text: str, **given: Any) -> Path:
    """Write such a model and return its path."""
    onnx.save(parsed(text, **given), path)
    return path
