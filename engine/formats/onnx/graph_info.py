"""GraphInfo for a model that was just written, built without parsing it again.

Only for a plain one: all data in memory, no graphs or tensors in attributes, nothing that expands,
names that are defined once and before they are read. Any other is the reader's to judge.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Mapping
from math import prod

from engine.formats.onnx import limits, writer
from engine.formats.onnx.expansion import SHAPE_INPUT
from engine.formats.onnx.reading import is_symbol
from engine.formats.onnx.writer import IR_VERSION, External, Graph, Tensor, ValueInfo
from engine.types import Attribute, DType, GraphInfo, NodeInfo, ParameterInfo, TensorSpec

_LINEAR = ("QuantizeLinear", "DequantizeLinear")  # may say what inputs and outputs stand for
_NAME = limits.NAME_BYTES // 4  # characters; UTF-8 takes up to four bytes for one
_ELEMENTS = limits.PLAIN_BYTES // 16  # of an attribute; the reader takes ten bytes for a number


def graph_info_of_written(
    graph: Graph,
    opsets: Mapping[str, int],
    producer: str,
    metadata: Mapping[str, str],
    held: Container[str],
) -> GraphInfo | None:
    """Build what `read_model` returns for the bytes that `writer.model_bytes` makes of this.

    None where that takes `read_model` itself.

    held: the locations of external data that is in memory, as long as it has to be.
    """
    parameters = []
    nbytes = 0
    for tensor in graph.initializers:
        size = tensor.nbytes
        if not isinstance(tensor.data, External):
            nbytes += size
        elif tensor.data.location not in held:
            return None
        if not _is_sized(tensor, size):
            return None
        parameters.append(ParameterInfo(tensor.name, tensor.dtype, tensor.shape, size))
    values = [*graph.inputs, *graph.outputs]
    titles = (graph.name, producer, *metadata, *metadata.values())
    if nbytes > limits.MODEL_BYTES // 2 or not all(map(_is_plain, values)):
        return None
    names = {info.name for info in graph.inputs} | {tensor.name for tensor in graph.initializers}
    outputs = {info.name for info in graph.outputs}
    if (
        "" in names
        or len(names) != len(graph.inputs) + len(graph.initializers)
        or len(outputs) != len(graph.outputs)
        or not outputs
        or any(len(name) > _NAME for name in (*names, *titles))
    ):
        return None
    edges = {info.name for info in values}
    nodes = []
    for index, node in enumerate(graph.nodes):
        if node.op_type in SHAPE_INPUT:
            return None
        if node.op_type in _LINEAR and not edges.isdisjoint((*node.inputs, *node.outputs)):
            return None
        attributes = {}
        for name, value in node.attributes.items():
            attributes[name] = _read_back(value)
            if attributes[name] is None:
                return None
        for name in node.inputs:
            if name not in names and name:
                return None
        for name in node.outputs:
            if name in names or len(name) > _NAME:
                return None
            if name:
                names.add(name)
        nodes.append(
            NodeInfo(
                index,
                node.name,
                node.op_type,
                node.domain,
                tuple(node.inputs),
                tuple(node.outputs),
                attributes,
            )
        )
    if not outputs <= names or any(len(node.name) > _NAME for node in nodes):
        return None
    return GraphInfo(
        name=graph.name,
        inputs=tuple(TensorSpec(info.name, info.dtype, info.shape) for info in graph.inputs),
        outputs=tuple(TensorSpec(info.name, info.dtype, info.shape) for info in graph.outputs),
        nodes=tuple(nodes),
        parameters=tuple(parameters),
        opsets=dict(opsets),
        ir_version=IR_VERSION,
        producer=producer,
        metadata=dict(metadata),
    )


def _read_back(value: writer.Attribute) -> Attribute:
    """Return an attribute's value as the reader gives it; None where the reader has to judge."""
    if isinstance(value, int):  # bool too
        return int(value)
    if isinstance(value, float):
        return _as_float32(value)
    if isinstance(value, Tensor | Graph) or len(value) > _ELEMENTS:
        return None
    if isinstance(value, str):
        return value
    if value and isinstance(value[0], str):
        texts = tuple(map(str, value))
        return texts if sum(map(len, texts)) <= _ELEMENTS else None
    if value and isinstance(value[0], float):
        return tuple(_as_float32(float(item)) for item in value)
    return tuple(map(int, value))


def _as_float32(value: float) -> float:
    [rounded] = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)


def _is_sized(tensor: Tensor, nbytes: int) -> bool:
    """Return whether a tensor has just the data that its type and shape need."""
    shape = tensor.shape
    if tensor.dtype is DType.STRING or len(shape) > limits.RANK or 0 in shape:
        return False
    return (prod(shape) * tensor.dtype.bits + 7) // 8 == nbytes


def _is_plain(value: ValueInfo) -> bool:
    """Return whether the type of an input or output needs no second look."""
    if value.shape is None:
        return True
    sizes = [dim for dim in value.shape if isinstance(dim, int)]
    names = [dim for dim in value.shape if isinstance(dim, str)]
    return len(value.shape) <= limits.RANK and all(map(is_symbol, names)) and prod(sizes) < 1 << 32
