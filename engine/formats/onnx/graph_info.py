"""What the reader would say of a model that was written here, told without reading it again.

Only of a plain one: all data in memory, no graphs or tensors in attributes, nothing that unfolds,
names that are defined once and before they are read. Of any other the reader has to judge.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import prod

from engine.formats.onnx import limits
from engine.formats.onnx.expansion import SHAPE_INPUT
from engine.formats.onnx.writer import IR_VERSION, External, Graph, Tensor, ValueInfo
from engine.types import DType, GraphInfo, NodeInfo, ParameterInfo, TensorSpec

_NAME = limits.NAME_BYTES // 4  # characters; UTF-8 takes up to four bytes for one


def graph_info_of_written(
    graph: Graph,
    opsets: Mapping[str, int],
    producer: str,
    metadata: Mapping[str, str],
    held: Container[str],
) -> GraphInfo | None:
    """What `read_model` returns for what `onnx_write.model_bytes` makes of this; None: ask it.

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
    names = {each.name for each in graph.inputs} | {each.name for each in graph.initializers}
    outputs = {each.name for each in graph.outputs}
    if (
        "" in names
        or len(names) != len(graph.inputs) + len(graph.initializers)
        or len(outputs) != len(graph.outputs)
        or not outputs
        or any(len(each) > _NAME for each in (*names, *titles))
    ):
        return None
    nodes = []
    for index, node in enumerate(graph.nodes):
        if node.op_type in SHAPE_INPUT or any(
            isinstance(each, Tensor | Graph) for each in node.attributes.values()
        ):
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
                index, node.name, node.op_type, node.domain, tuple(node.inputs), tuple(node.outputs)
            )
        )
    if not outputs <= names or any(len(each.name) > _NAME for each in nodes):
        return None
    return GraphInfo(
        name=graph.name,
        inputs=tuple(TensorSpec(each.name, each.dtype, each.shape) for each in graph.inputs),
        outputs=tuple(TensorSpec(each.name, each.dtype, each.shape) for each in graph.outputs),
        nodes=tuple(nodes),
        parameters=tuple(parameters),
        opsets=dict(opsets),
        ir_version=IR_VERSION,
        producer=producer,
        metadata=dict(metadata),
    )


def _is_sized(tensor: Tensor, nbytes: int) -> bool:
    """Whether a tensor has just the data that its type and shape need."""
    shape = tensor.shape
    if tensor.dtype is DType.STRING or len(shape) > limits.RANK or 0 in shape:
        return False
    return (prod(shape) * tensor.dtype.bits + 7) // 8 == nbytes


def _is_plain(value: ValueInfo) -> bool:
    """Whether the type of an input or output is one that needs no second look."""
    if value.shape is None:
        return True
    sizes = [dim for dim in value.shape if isinstance(dim, int)]
    return len(value.shape) <= limits.RANK and "" not in value.shape and prod(sizes) < 1 << 32
