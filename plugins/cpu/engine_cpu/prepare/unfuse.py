"""Keep ONNX Runtime from fusing single nodes into kernels on integers that are wrong for them.

It fuses what stands between DequantizeLinear and QuantizeLinear. A Sum of one value, which it does
not take away, breaks the pattern at the cost of a copy of the activation. It does not compute
DequantizeLinear of constants in advance either, so that weights are dequantized by plain
arithmetic, which it does compute: ONNX's own definition, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from engine_cpu.prepare.kind import free_names, refill, subgraphs
from engine_cpu.quantized import DEQUANTIZE, MOVES, QUANTIZE, VALUES
from engine_cpu.tensors import Array

_INTEGERS = frozenset({
    TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32,
    TensorProto.INT4, TensorProto.UINT4,
})  # fmt: skip
_Constants = Mapping[str, TensorProto]


def unfuse_inner(model: ModelProto, names: frozenset[str]) -> None:
    """Rewrite the nodes that make values of these names, in subgraphs and functions, in place."""
    free = free_names(model, "engine_cpu.float")
    outer = _constants(model.graph)
    for node in model.graph.node:
        _unfuse_subgraphs(node, outer, names, free)
    for function in model.functions:
        for node in function.node:
            _unfuse_subgraphs(node, {}, names, free)
        nodes = list(unfused(function.node, {}, names, free))
        refill(function.node, nodes)


def unfuse_main(model: ModelProto, nodes: list[NodeProto], names: frozenset[str]) -> None:
    """Rewrite such nodes of the main graph, in the list that is to be its nodes."""
    nodes[:] = unfused(nodes, _constants(model.graph), names, free_names(model, "engine_cpu.float"))


def unfused(
    nodes: Iterable[NodeProto], constants: _Constants, names: frozenset[str], free: Iterator[str]
) -> Iterator[NodeProto]:
    """Yield the nodes of one body, with others before those that are not to be fused."""
    body = _Body(list(nodes), constants, free)
    for node in body.nodes:
        if node.op_type in VALUES and not names.isdisjoint(node.output):
            yield from body.apart(node)
        else:
            yield node


class _Body:
    """The nodes of one graph or function. constants: by name, those around it too."""

    def __init__(self, nodes: list[NodeProto], constants: _Constants, free: Iterator[str]) -> None:
        self.nodes = nodes
        self._producers = {name: node for node in nodes for name in node.output}
        self._constants = constants
        self._free = free

    def apart(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield a node that nothing is fused with, after those that make its inputs."""
        copy = deepcopy(node)
        for index in VALUES[node.op_type]:
            if index < len(node.input) and (path := self._path(node.input[index])):
                floats = self._in_floats(path)
                if floats is None:
                    floats = [helper.make_node("Sum", [node.input[index]], [next(self._free)])]
                yield from floats
                copy.input[index] = floats[-1].output[0]
        yield copy

    def _path(self, name: str) -> list[NodeProto]:
        """Return the nodes from DequantizeLinear to a value; none where there is no such node."""
        path: list[NodeProto] = []
        for _ in self.nodes:
            node = self._producers.get(name)
            if node is None or (node.op_type != DEQUANTIZE and node.op_type not in MOVES):
                break
            path.insert(0, node)
            if node.op_type == DEQUANTIZE:
                return path
            name = node.input[0]
        return []

    def _in_floats(self, path: list[NodeProto]) -> list[NodeProto] | None:
        """Return nodes that compute the same of constants; None where it is not of constants."""
        made = self._dequantized(path[0])
        if made is None:
            return None
        for node in path[1:]:
            copy = deepcopy(node)
            copy.name, copy.input[0], copy.output[0] = "", made[-1].output[0], next(self._free)
            made.append(copy)
        return made

    def _dequantized(self, node: NodeProto) -> list[NodeProto] | None:
        """Return DequantizeLinear of a constant as arithmetic."""
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        values, scale = self._shaped(node.input[0]), self._constant(node.input[1])
        zeros = node.input[2] if len(node.input) > 2 else ""
        if values is None or scale is None or (zeros and self._constant(zeros) is None):
            return None
        dims, kind = values
        axis, block = int(attributes.get("axis", 1)), int(attributes.get("block_size", 0))
        if kind not in _INTEGERS or not (len(scale.dims) < 2 or block):
            return None
        nodes: list[NodeProto] = []

        def add(operator: str, *inputs: str, **given: Any) -> str:
            nodes.append(helper.make_node(operator, inputs, [next(self._free)], **given))
            return str(nodes[-1].output[0])

        def spread(name: str) -> str:
            """Give a scale or zero point the rank of the values."""
            if block:
                index = np.arange(dims[axis]) // block
                return add("Gather", name, add("Constant", value=_tensor(index)), axis=axis)
            if not scale.dims or len(dims) < 2 or list(scale.dims) == [1]:
                return name
            shape = np.ones(len(dims), np.int64)
            shape[axis] = -1
            return add("Reshape", name, add("Constant", value=_tensor(shape)))

        whole = add("Cast", node.input[0], to=TensorProto.INT32)
        if zeros:
            whole = add("Sub", whole, spread(add("Cast", zeros, to=TensorProto.INT32)))
        factor = spread(add("Cast", node.input[1], to=TensorProto.FLOAT))
        result = add("Mul", add("Cast", whole, to=TensorProto.FLOAT), factor)
        wanted = attributes.get("output_dtype") or scale.data_type
        if wanted != TensorProto.FLOAT:
            add("Cast", result, to=wanted)
        return nodes

    def _constant(self, name: str) -> TensorProto | None:
        node = self._producers.get(name)
        if node is None:
            return self._constants.get(name)
        return _value(node)

    def _shaped(self, name: str) -> tuple[list[int], int] | None:
        """Return the sizes and the type of a constant, or of one that is quantized."""
        tensor = self._constant(name)
        if tensor is not None:
            return list(tensor.dims), tensor.data_type
        node = self._producers.get(name)
        if node is None or node.op_type != QUANTIZE or len(node.input) < 3:
            return None
        scale = self._constant(node.input[1])
        whole, zero = self._constant(node.input[0]), self._constant(node.input[2])
        if whole is None or zero is None or scale is None:
            return None
        return list(whole.dims), zero.data_type


def _unfuse_subgraphs(
    node: NodeProto, outer: _Constants, names: frozenset[str], free: Iterator[str]
) -> None:
    for graph in subgraphs(node):
        constants = {**outer, **_constants(graph)}
        for inner in graph.node:
            _unfuse_subgraphs(inner, constants, names, free)
        nodes = list(unfused(graph.node, constants, names, free))
        refill(graph.node, nodes)


def _constants(graph: GraphProto) -> dict[str, TensorProto]:
    """Return what no caller changes: initializers that are no inputs, and Constants' tensors."""
    given = {value.name for value in graph.input}
    found = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in given}
    for node in graph.node:
        tensor = _value(node)
        if tensor is not None:
            found[node.output[0]] = tensor
    return found


def _value(node: NodeProto) -> TensorProto | None:
    """Return the tensor that a Constant gives."""
    if node.op_type != "Constant":
        return None
    for item in node.attribute:
        if item.name == "value":
            tensor: TensorProto = item.t
            return tensor
        if item.name in ("value_float", "value_floats"):
            given = np.asarray(helper.get_attribute_value(item), np.float32)
            return numpy_helper.from_array(given)
    return None


def _tensor(array: Array) -> TensorProto:
    return numpy_helper.from_array(array.astype(np.int64))
