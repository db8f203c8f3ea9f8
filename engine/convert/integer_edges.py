"""Inputs and outputs of a quantized model as the integers that are in it.

Such a model takes and gives floats: a QuantizeLinear follows an input, a DequantizeLinear makes an
output. Where their integers are asked for at the edge that node goes, and the caller has the scale.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from engine.convert.graphs import rename
from engine.formats.onnx.graphs import bodies
from engine.types import DType

_Tensors = Mapping[str, TensorProto]


def expose(
    copy: ModelProto, model: ModelProto, input_dtype: DType | None, output_dtype: DType | None
) -> list[str]:
    """Drop these nodes from a light copy of `model` where their integers are of the type asked for.

    Returns a note on each input and output that is changed so. What other nodes read too stays, and
    what has a scale for each channel.
    """
    graph = copy.graph
    weights = {initializer.name: initializer for initializer in model.graph.initializer}
    readers: dict[str, list[NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    makers = {name: node for node in graph.node for name in node.output}
    _, *inside = bodies(copy)
    read_inside = {name for body in inside for node in body.node for name in node.input}
    fixed = read_inside | {output.name for output in graph.output}
    names: dict[str, str] = {}
    dropped: set[str] = set()
    notes = []

    for value in graph.input:
        nodes = readers[value.name]
        made = {name for node in nodes for name in node.output}
        scale = _scale(nodes, "QuantizeLinear", input_dtype, weights)
        if input_dtype is not None and scale and not fixed & {value.name, *made}:
            names |= dict.fromkeys(made, value.name)
            dropped |= made
            value.type.tensor_type.elem_type = input_dtype.onnx
            notes.append(f"input {value.name!r} is {input_dtype}; the model's float is {scale}")
    for value in graph.output:
        nodes = [makers[value.name]] if value.name in makers else []
        scale = _scale(nodes, "DequantizeLinear", output_dtype, weights)
        is_read = value.name in read_inside or readers[value.name]
        if output_dtype is not None and scale and not is_read:
            made_of = nodes[0].input[0]
            if made_of in makers.keys() - names.keys() - fixed:
                names[made_of] = value.name
                dropped.add(value.name)
                value.type.tensor_type.elem_type = output_dtype.onnx
                notes.append(
                    f"output {value.name!r} is {output_dtype}; the model's float is {scale}"
                )
    if names:
        nodes = [node for node in graph.node if not dropped & {*node.output}]
        del graph.node[:]
        graph.node.extend(nodes)
        types = [info for info in graph.value_info if info.name not in names]
        del graph.value_info[:]
        graph.value_info.extend(types)
        rename(graph, names)
    return notes


def _scale(
    nodes: Sequence[NodeProto], operator: str, dtype: DType | None, weights: _Tensors
) -> str:
    """Return the scheme that turns the integers of these nodes into floats; "" if they differ."""
    kinds = {(node.op_type, *node.input[1:]) for node in nodes}
    if dtype is None or len(kinds) != 1:
        return ""
    [(op_type, *names)] = kinds
    scale, point = (weights.get(name) for name in [*names, "", ""][:2])
    if op_type != operator:
        return ""
    if scale is None or point is None or point.data_type != dtype.onnx or scale.dims:
        return ""
    factor, zero = (numpy_helper.to_array(name).item() for name in (scale, point))
    return f"{factor:.8g} * (number - {zero})"
