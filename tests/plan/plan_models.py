"""Models for plans, made of operators that a null backend can be told to refuse, and their runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

import engine
from engine.formats import open_source
from engine.plan import BuildOptions, Targets, build_plan
from engine.plan.plan import Plan

Config = dict[str, dict[str, str]]


def refusing(**operators: str) -> Config:
    """Return a configuration in which each backend named refuses these operators."""
    return {f"{name}_context": {"unsupported_ops": ops} for name, ops in operators.items()}


def save(
    folder: Path,
    nodes: str,
    values: str = "(float[n] x) => (float[n] y)",
    constants: Mapping[str, Any] | None = None,
    *,
    opsets: Mapping[str, int] | None = None,
    **more: Any,
) -> Path:
    """Write a model. Nodes, inputs and outputs are in ONNX's text form, nodes between semicolons.

    A node is called after what it makes first: make_y.
    """
    graph = parser.parse_graph(f"model {values} {{ {nodes.replace(';', chr(10))} }}")
    for node in graph.node:
        node.name = f"make_{node.output[0]}"
    for name, array in (constants or {}).items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    versions = [onnx.helper.make_opsetid(*each) for each in (opsets or {"": 17}).items()]
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=versions, **more)
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def chain(folder: Path, *ops: str) -> Path:
    """Write a model of one operator after the other: x, a, b ... y."""
    names = ["x", *"abcdef"[: len(ops) - 1], "y"]
    return save(
        folder, "; ".join(f"{made} = {op}({read})" for op, read, made in zip(ops, names, names[1:]))
    )


def long_chain(folder: Path) -> Path:
    """200 nodes: y = x after 10 times 9 or 10 times + 0.001, tanh, and again; "Tanh" 10 times."""
    names = ["x", *(f"v{i}" for i in range(1, 200)), "y"]
    calls = [f"Tanh({x})" if i % 20 == 10 else f"Add({x}, step)" for i, x in enumerate(names[:-1])]
    nodes = "; ".join(f"{name} = {call}" for name, call in zip(names[1:], calls, strict=True))
    return save(folder, nodes, constants={"step": np.float32(0.001)})


def external(path: Path) -> Path:
    """Move a model's weights into w.bin beside it."""
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def plan_of(path: Path, target: list[str], config: Any = None, **more: Any) -> Plan:
    """Compile a model for targets. more: what build_plan takes."""
    context = engine.Context()
    context.target = target
    names = tuple(more.get("variable_weights", ()))
    source = open_source(path, variable_weights=names)
    return build_plan(source, Targets(BuildOptions(context, config or {})), **more)


def predicting(plan: Plan) -> Callable[..., Any]:
    """Return the plan's predict(*inputs, outputs=...) in one context; `lease` is that context's."""
    lease = plan.pool.borrow()

    def predict(*inputs: Any, outputs: Any = None) -> Any:
        return plan.predict(lease.context, list(inputs), outputs, None)

    predict.lease = lease  # type: ignore[attr-defined]
    return predict
