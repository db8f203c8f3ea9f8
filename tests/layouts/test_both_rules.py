"""The proof for batches and the slicer's rules agree, operator by operator, on what is divided."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from batch_cases import Case
from batch_families import FAMILIES
from onnx import ModelProto, NodeProto, numpy_helper

from engine.formats.onnx.graphs import SMALL
from engine.layouts.batch import prove
from engine.layouts.rules import Op, Way, rule_of
from engine.layouts.rules.op import Shape
from engine.layouts.states import PARTIAL, WHOLE, Array, State, shard
from engine.types import DType

BATCH = 6
"""No other size in the cases is a multiple of it but where a test of shapes makes one."""


class Sized:
    """One model with the batch as a number, as the slicer's rules see it."""

    def __init__(self, case: Case) -> None:
        model = ModelProto()
        model.CopyFrom(case.model)
        for value in model.graph.input:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_value = BATCH
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        self._types = {v.name: v.type for v in (*inferred.input, *inferred.output)}
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self.opsets = {one.domain: one.version for one in model.opset_import}
        [self.node] = model.graph.node
        self.readers: dict[str, list[NodeProto]] = {name: [self.node] for name in self.node.input}

    def dtype(self, name: str) -> DType | None:
        if name in self.constants:
            return DType.from_onnx(self.constants[name].data_type)
        kind = self._types.get(name)
        return DType.from_onnx(kind.tensor_type.elem_type) if kind is not None else None

    def shape(self, name: str) -> Shape | None:
        if name in self.constants:
            return tuple(self.constants[name].dims)
        kind = self._types.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        return tuple(dim.dim_value or None for dim in kind.tensor_type.shape.dim)

    def value(self, name: str) -> Array | None:
        tensor = self.constants.get(name)
        if tensor is None or np.prod(tensor.dims) > SMALL:
            return None
        return np.array(numpy_helper.to_array(tensor))

    def is_numeric(self, name: str) -> bool:
        return True

    def is_random(self, node: NodeProto) -> bool:
        return False


def ways(sized: Sized) -> list[Way]:
    """Return how the slicer divides a node between two ranks without an exchange."""
    node = sized.node
    rule = rule_of(node.op_type, node.domain)
    assert rule is not None
    found = rule(Op(node, sized, 2, {}))
    return [way for way in found if PARTIAL not in (*way.inputs, *way.outputs)]


def single_nodes(family: str) -> list[Case]:
    return [
        case
        for case in FAMILIES[family]()
        if len(case.model.graph.node) == 1
        and not case.model.functions
        and rule_of(case.model.graph.node[0].op_type, case.model.graph.node[0].domain)
        and not any(shape.count("B") > 1 for _, shape in case.inputs.values())
    ]


# Each rule may be the stricter one; neither may say otherwise than the other.
ONLY_SLICED = {
    "Squeeze": "without axes, where a batch of one sample would lose its axis",
    "BatchNormalization": "the samples along another axis than the first",
    "MaxPool": "the samples in place of channels",
    "AveragePool": "the samples in place of channels",
    "GlobalAveragePool": "the samples in place of channels",
    "GlobalMaxPool": "the samples in place of channels",
    "Attention": "the samples in place of heads",
}
"""Operators for which the slicer has ways that the proof does without."""
ONLY_PROVEN = {
    "Slice": "all of the axis, in so many words",
    "GatherElements": "a whole table's own axis",
    "MatMul": "by a vector",
    "Einsum": "with an ellipsis, or without a result",
    "ReduceSum": "of no axes",
    "ReduceMax": "of no axes",
    "Reshape": "to a shape with an open axis",
    "Expand": "of a fixed shape",
    "Flatten": "of axes in blocks",
    "Attention": "samples, where the slicer divides heads",
    "MultiHeadAttention": "samples, where the slicer divides heads",
    "RotaryEmbedding": "samples, where the slicer divides heads",
}
"""Operators whose samples the slicer may have no way to divide."""


@pytest.mark.parametrize("family", FAMILIES)
def test_what_both_divide_they_divide_alike_and_only_named_operators_differ(family: str) -> None:
    differing = []
    for case in single_nodes(family):
        sized = Sized(case)
        axes, kind = case.axes(), sized.node.op_type
        given = tuple(
            WHOLE if axes.get(name) is None else shard(int(axes[name] or 0))
            for name in sized.node.input
        )
        proof = prove(case.model, axes)
        outputs = {value.name for value in case.model.graph.output}
        divided = [way for way in ways(sized) if way.inputs == given and way.change is None]
        results = {_results(sized, way, outputs) for way in divided}
        results = {states for states in results if not any(state.blocks for state in states)}
        if proof.reason:
            # A weight of as many entries as there are samples would be divided with them.
            is_by_size = any(BATCH in (sized.shape(name) or ()) for name in sized.constants)
            if results and not is_by_size and kind not in ONLY_SLICED:
                differing.append(f"{case.name}: {proof.reason}, but the slicer divides {results}")
            continue
        own = tuple(
            WHOLE if (axis := proof.outputs[name].axis) is None else shard(axis)
            for name in sized.node.output
            if name in outputs
        )
        if results and own not in results:
            differing.append(f"{case.name}: {own} is proven, but the slicer has {results}")
        if not results and kind not in ONLY_PROVEN and _is_plain(sized):
            differing.append(f"{case.name}: {own} is proven, but the slicer has no way")
    assert not differing


def _results(sized: Sized, way: Way, outputs: set[str]) -> tuple[State, ...]:
    pairs = zip(sized.node.output, way.outputs)
    return tuple(state for name, state in pairs if name in outputs)


def _is_plain(sized: Sized) -> bool:
    """Return whether onnx's inference knows all shapes, without which the slicer has no way."""
    names: list[Any] = [*sized.node.input, *sized.node.output]
    shapes = [sized.shape(name) for name in names if name]
    return all(shape is not None and all(isinstance(d, int) for d in shape) for shape in shapes)
