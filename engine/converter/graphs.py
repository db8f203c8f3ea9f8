"""Graph utilities of the passes: weights apart from the nodes, casts, and free names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from engine.formats.onnx.graphs import bodies, constants, is_small, subgraphs
from engine.types import DType, TensorSpec

_INLINE_BYTES = 1024


def add_weights(copy: ModelProto, model: ModelProto) -> ModelProto:
    """Copy the main graph's weights of `model` into a light copy of it; returns that."""
    for tensor in model.graph.initializer:
        copy.graph.initializer.add().CopyFrom(tensor)
    return copy


def typed(copy: ModelProto, model: ModelProto) -> ModelProto:
    """Return a light copy for shape inference: small weights whole, of the others their types."""
    result = ModelProto()
    result.CopyFrom(copy)
    inputs = {value.name for value in copy.graph.input}
    for tensor in model.graph.initializer:
        if is_small(tensor):
            result.graph.initializer.add().CopyFrom(tensor)
        elif tensor.name not in inputs:
            result.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return result


def write_weights(model: ModelProto, file: Path) -> list[TensorProto]:
    """Write the main graph's large weights to `file`; returns all weights as they refer to it.

    A model of any size can be run with these, and several can share the file.
    """
    tensors = []
    with file.open("wb") as opened:
        for tensor in model.graph.initializer:
            if tensor.ByteSize() < _INLINE_BYTES or tensor.data_type == TensorProto.STRING:
                tensors.append(tensor)
                continue
            data = raw_data(tensor)
            outside = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            refer(outside, file, opened.tell(), len(data))
            opened.write(data)
            tensors.append(outside)
    return tensors


def raw_data(tensor: TensorProto) -> bytes:
    """Return a tensor's bytes, also where they are in a field of its type: some exporters do so."""
    return tensor.raw_data or numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data


def refer(tensor: TensorProto, file: Path, offset: int, length: int) -> None:
    """Let a tensor without bytes say where in a file beside the model they are."""
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", file.name), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def add_opset(model: ModelProto) -> None:
    """Import ONNX's own operators into a model that has had none of them."""
    if not any(opset.domain in ("", "ai.onnx") for opset in model.opset_import):
        model.opset_import.add(domain="", version=17)


def cast(source: str, result: str, element: int, opsets: Iterable[OperatorSetIdProto]) -> NodeProto:
    """Build a Cast of `source` to `element`, for a model or function of these opsets."""
    version = next((opset.version for opset in opsets if opset.domain in ("", "ai.onnx")), 17)
    to = element if version >= 6 else TensorProto.DataType.Name(element)
    return helper.make_node("Cast", [source], [result], name=result, to=to)


class Names:
    """Names in use in a model: of values and of nodes, in every graph of it."""

    def __init__(self, model: ModelProto) -> None:
        self._taken: set[str] = set(constants(model.graph))
        for body in bodies(model):
            if isinstance(body, GraphProto):
                self._taken |= constants(body)
                self._taken.update(value.name for value in (*body.input, *body.output))
            else:
                self._taken |= {*body.input, *body.output}
            for node in body.node:
                self._taken |= {node.name, *node.input, *node.output}

    def free(self, wanted: str) -> str:
        """Return `wanted`, with a number where that is taken, and mark it as taken."""
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}_{number}", number + 1
        self._taken.add(name)
        return name


def spec_of(value: ValueInfoProto) -> TensorSpec:
    """Return what an input or output that is a tensor declares."""
    tensor = value.type.tensor_type
    dims = [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or None
        for dim in tensor.shape.dim
    ]
    shape = tuple(dims) if tensor.HasField("shape") else None
    return TensorSpec(value.name, DType.from_onnx(tensor.elem_type), shape)


def refill(field: Any, values: Iterable[Any]) -> None:
    """Put other messages in place of all that a repeated field has."""
    kept = [*values]
    del field[:]
    field.extend(kept)


def drop_metadata(model: ModelProto, keys: Collection[str]) -> None:
    """Take entries out of a model's metadata."""
    refill(model.metadata_props, [entry for entry in model.metadata_props if entry.key not in keys])


def rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Rename values where nodes make or read them; a subgraph's own are others."""
    for node in graph.node:
        for values in (node.input, node.output):
            for index, name in enumerate(values):
                if name in names:
                    values[index] = names[name]
        for inner in subgraphs(node):
            own = constants(inner) | {value.name for value in inner.input}
            own.update(name for node in inner.node for name in node.output)
            outer = {name: names[name] for name in names.keys() - own}
            rename(inner, outer)
            for value in inner.output:
                value.name = outer.get(value.name, value.name)


def title(node: NodeProto) -> str:
    """Return a node's title in messages: its operator and its name, or an output of it."""
    return f"{node.op_type} {node.name or next(iter(node.output), '')!r}"
