"""Models for plans, made of operators that a null backend can be told to refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

FLOATS = TensorProto.FLOAT
REFUSES_TANH = {"null_context": {"unsupported_ops": "Tanh"}}


def node(op: str, reads: str, writes: str, **attributes: Any) -> NodeProto:
    """A node that is called after what it writes first; "-" is an optional input left out."""
    inputs = ["" if name == "-" else name for name in reads.split()]
    outputs = writes.split()
    return helper.make_node(op, inputs, outputs, name=f"make_{outputs[0]}", **attributes)


def value(name: str, shape: Sequence[Any] | None = ("n",), dtype: int = FLOATS) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def save(
    folder: Path,
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto] | None = None,
    outputs: Sequence[ValueInfoProto] | None = None,
    constants: Mapping[str, Any] | None = None,
    name: str = "model",
    **more: Any,
) -> Path:
    """Write a model; without a wish it has an input x and an output y, float32[n]."""
    graph = helper.make_graph(
        list(nodes),
        name,
        [value("x")] if inputs is None else list(inputs),
        [value("y")] if outputs is None else list(outputs),
        [numpy_helper.from_array(np.asarray(v), key) for key, v in (constants or {}).items()],
        value_info=more.pop("value_info", []),
    )
    opsets = [helper.make_opsetid(domain, v) for domain, v in more.pop("opsets", {"": 17}).items()]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets, **more)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


def long_chain(folder: Path) -> Path:
    """200 nodes: y = x after 10 times 9 or 10 times + 0.001, tanh, and again; "Tanh" 10 times."""
    names = ["x", *(f"v{i}" for i in range(1, 200)), "y"]
    nodes = [
        node("Tanh", names[i], names[i + 1])
        if i % 20 == 10
        else node("Add", f"{names[i]} step", names[i + 1])
        for i in range(200)
    ]
    return save(folder, nodes, constants={"step": np.float32(0.001)})
