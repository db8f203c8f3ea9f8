"""Models of one node or a few, with the batch at each axis, and what running them shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
B = "B"
"""Stands for the batch in a shape."""
F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


class Case(NamedTuple):
    """A model. inputs: dtype and shape by name; high: values of integer inputs are below it."""

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, tuple[int, tuple[Any, ...]]]
    high: int = 3

    def axes(self) -> dict[str, int | None]:
        """Return the batch axis of each input."""
        return {
            name: shape.index(B) if B in shape else None for name, (_, shape) in self.inputs.items()
        }

    def values(self, batch: int, chance: np.random.Generator, kind: int) -> dict[str, Array]:
        """Return inputs: ordinary ones, large ones, windows of values, and extremes."""
        made = {}
        for name, (dtype, shape) in self.inputs.items():
            sizes = [batch if size == B else size for size in shape]
            if dtype == F:
                array = chance.standard_normal(sizes).astype(np.float32)
                if kind == 1:
                    array = chance.uniform(5, 100, sizes).astype(np.float32)
                elif kind == 2:
                    rows = chance.choice([-1e4, 1e4, 0, 3e38, 1], sizes)
                    array = rows.astype(np.float32)
                made[name] = array
            elif dtype == BOOL:
                made[name] = chance.integers(0, 2, sizes).astype(bool)
            else:
                high = self.high if kind else 2
                made[name] = chance.integers(0, high, sizes).astype(
                    helper.tensor_dtype_to_np_dtype(dtype)
                )
        return made


def case(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    weights: Mapping[str, Any] | None = None,
    *,
    opset: int = 22,
    outputs: Sequence[str] = ("y",),
    high: int = 3,
    functions: Sequence[onnx.FunctionProto] = (),
) -> Case:
    """Make a case. inputs: a shape, or a dtype and a shape."""
    typed = {
        key: spec if isinstance(spec[0] if spec else 0, int) and _is_typed(spec) else (F, spec)
        for key, spec in inputs.items()
    }
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(key, dtype, shape) for key, (dtype, shape) in typed.items()],
        [onnx.ValueInfoProto(name=key) for key in outputs],
        [numpy_helper.from_array(np.asarray(array), key) for key, array in (weights or {}).items()],
    )
    domains = {one.domain for one in nodes} | {"", "com.microsoft", "ai.onnx.ml", "local"}
    versions = {"": opset, "com.microsoft": 1, "ai.onnx.ml": 3, "local": 1}
    opsets = [helper.make_opsetid(domain, versions[domain]) for domain in sorted(domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)
    inferred = onnx.shape_inference.infer_shapes(model)
    for value, found in zip(model.graph.output, inferred.graph.output):
        value.CopyFrom(found)
        if not value.type.tensor_type.elem_type:
            value.type.tensor_type.elem_type = F
        value.type.tensor_type.ClearField("shape")
    return Case(name, model, typed, high)


def one(
    text: str,
    inputs: Mapping[str, Any],
    weights: Mapping[str, Any] | None = None,
    *,
    outputs: Sequence[str] = ("y",),
    opset: int = 22,
    high: int = 3,
    **attributes: Any,
) -> Case:
    """Make a case of one operator: its name and inputs, "-" for one that is left out."""
    op_type, *names = text.split(" ")
    own = node(op_type, [name.strip("-") for name in names], outputs, **attributes)
    name = f"{text} {attributes} of {inputs} and {weights}"
    return case(name, [own], inputs, weights, opset=opset, outputs=outputs, high=high)


def _is_typed(spec: Any) -> bool:
    return len(spec) == 2 and isinstance(spec[1], tuple)


def placed(shape: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    """Yield a shape with the batch in place of each of its sizes."""
    for axis in range(len(shape)):
        yield (*shape[:axis], B, *shape[axis + 1 :])


def opened(model: onnx.ModelProto) -> Callable[[Mapping[str, Array]], list[Any]]:
    """Open a model with onnxruntime where that is, else with onnx's evaluator."""
    try:
        import onnxruntime
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(model)
        return lambda feeds: list(evaluator.run(None, dict(feeds)))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda feeds: list(session.run(None, dict(feeds)))
