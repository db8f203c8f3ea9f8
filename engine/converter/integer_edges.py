"""Inputs and outputs of a quantized model as the integers that are in it.

Such a model takes and gives floats: a QuantizeLinear follows an input, a DequantizeLinear makes an
output. Where their integers are asked for at the edge that node goes, and the caller has the scale.
Where the model's are uint8 and int8 is asked for, or the reverse, the numbers are moved by 128.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from engine.converter.graphs import Names, refill, rename
from engine.formats.onnx.graphs import bodies
from engine.types import DType

_Tensors = Mapping[str, TensorProto]
_BYTES = {DType.INT8.onnx: np.int8, DType.UINT8.onnx: np.uint8}


def expose(
    copy: ModelProto, model: ModelProto, input_dtype: DType | None, output_dtype: DType | None
) -> list[str]:
    """Drop these nodes from a light copy of `model` where their integers are of the type asked for.

    Returns a note on each input and output that is changed so. An edge that other nodes read
    too, or that has a scale for each channel, stays.
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
    first, last = list[NodeProto](), list[NodeProto]()
    free = Names(model)

    for value in graph.input:
        nodes = readers[value.name]
        made = {name for node in nodes for name in node.output}
        scheme = _scheme(nodes, "QuantizeLinear", input_dtype, weights)
        if input_dtype is None or scheme is None or fixed & {value.name, *made}:
            continue
        if scheme.is_moved:
            # Others of the edge come to `value` by its name, so that it is the float that is new.
            name = free.free(f"{value.name}_float")
            for node in nodes:
                node.input[0] = name
            zero = _constant(scheme.zero, input_dtype, free)
            inputs = [value.name, nodes[0].input[1], zero.output[0]]
            first += [zero, helper.make_node("DequantizeLinear", inputs, [name])]
        else:
            names |= dict.fromkeys(made, value.name)
            dropped |= made
        value.type.tensor_type.elem_type = input_dtype.onnx
        notes.append(f"input {value.name!r} is {input_dtype}; the model's float is {scheme}")
    for value in graph.output:
        nodes = [makers[value.name]] if value.name in makers else []
        scheme = _scheme(nodes, "DequantizeLinear", output_dtype, weights)
        is_read = value.name in read_inside or readers[value.name]
        if output_dtype is None or scheme is None or is_read:
            continue
        made_of = nodes[0].input[0]
        if scheme.is_moved:
            name = free.free(f"{value.name}_float")
            nodes[0].output[0] = name
            zero = _constant(scheme.zero, output_dtype, free)
            inputs = [name, nodes[0].input[1], zero.output[0]]
            last += [zero, helper.make_node("QuantizeLinear", inputs, [value.name])]
        elif made_of in makers.keys() - names.keys() - fixed:
            names[made_of] = value.name
            dropped.add(value.name)
        else:
            continue
        value.type.tensor_type.elem_type = output_dtype.onnx
        notes.append(f"output {value.name!r} is {output_dtype}; the model's float is {scheme}")
    if notes:
        kept = [node for node in graph.node if not dropped & {*node.output}]
        refill(graph.node, [*first, *kept, *last])
        refill(graph.value_info, [info for info in graph.value_info if info.name not in names])
        rename(graph, names)
    return notes


class _Scheme(NamedTuple):
    """The way from integers to floats. is_moved: the integers asked for are not the model's."""

    scale: float
    zero: int
    is_moved: bool

    def __str__(self) -> str:
        return f"{self.scale:.8g} * (number - {self.zero})"


def _scheme(
    nodes: Sequence[NodeProto], operator: str, dtype: DType | None, weights: _Tensors
) -> _Scheme | None:
    """Return the scheme that turns integers of `dtype` into the floats of these nodes.

    None where the nodes differ, or their integers are no such.
    """
    kinds = {(node.op_type, *node.input[1:]) for node in nodes}
    if dtype is None or len(kinds) != 1:
        return None
    [(op_type, *names)] = kinds
    scale, point = (weights.get(name) for name in [*names, "", ""][:2])
    if op_type != operator or scale is None or point is None or scale.dims:
        return None
    is_moved = point.data_type != dtype.onnx
    if is_moved and not {point.data_type, dtype.onnx} <= _BYTES.keys():
        return None
    factor, zero = (numpy_helper.to_array(tensor).item() for tensor in (scale, point))
    if is_moved:
        zero += -128 if dtype is DType.INT8 else 128
    return _Scheme(factor, zero, is_moved)


def _constant(zero: int, dtype: DType, names: Names) -> NodeProto:
    value = numpy_helper.from_array(np.array(zero, _BYTES[dtype.onnx]))
    return helper.make_node("Constant", [], [names.free("zero_point")], value=value)
