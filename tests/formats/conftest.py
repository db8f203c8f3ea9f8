"""The onnx package's own reading of a model, as the same values: a second implementation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import onnx
import pytest
from onnx import TensorProto, TypeProto

from engine.types import Attribute, DType, GraphInfo, NodeInfo, ParameterInfo, TensorSpec, ValueKind


def _name_of(number: int) -> str:
    name = TensorProto.DataType.Name(number)
    if name == "STRING":
        return "string"
    return onnx.helper.tensor_dtype_to_np_dtype(number).name


def _bits(number: int) -> int:
    return {"4": 4, "2": 2, "6": 6}.get(
        next(
            (w for w in ("4E2", "6E", "INT4", "INT2") if w in TensorProto.DataType.Name(number)), ""
        ).removeprefix("INT")[:1],
        onnx.helper.tensor_dtype_to_np_dtype(number).itemsize * 8,
    )


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind, current = None, value.type
    while True:
        which = current.WhichOneof("value")
        kind = kind or ValueKind(which.removesuffix("_type"))
        if which == "tensor_type":
            break
        body = getattr(current, which)
        current = body.value_type if which == "map_type" else body.elem_type
    tensor: TypeProto.Tensor = current.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(
            (dim.dim_value if dim.dim_value != -1 else None)
            if dim.HasField("dim_value")
            else dim.dim_param
            if not _UNKNOWN.fullmatch(dim.dim_param)
            else None
            for dim in tensor.shape.dim
        )
    return TensorSpec(value.name, DType(_name_of(tensor.elem_type)), shape, kind)


# Words of exporters, and of onnx's own inference, for a size that they do not know.
_UNKNOWN = re.compile(r"|[?*]|-1|none|null|unk|unknown|unk__.*", re.IGNORECASE)


def _parameter(tensor: TensorProto, dims: list[int]) -> ParameterInfo:
    nbytes = (
        sum(map(len, tensor.string_data))
        if tensor.data_type == TensorProto.STRING
        else (math.prod(dims) * _bits(tensor.data_type) + 7) // 8
    )
    external = {entry.key: entry.value for entry in tensor.external_data}
    inside = tensor.data_location == TensorProto.DEFAULT
    return ParameterInfo(
        tensor.name,
        DType(_name_of(tensor.data_type)),
        tuple(dims),
        nbytes,
        "" if inside else external["location"],
    )


_SMALL_BYTES = 4096
_PLAIN = ("FLOAT", "INT", "STRING", "FLOATS", "INTS", "STRINGS")


def _values(node: onnx.NodeProto) -> dict[str, Attribute]:
    """The attributes' values; None for what is no number or string, and for what is large."""

    def text(value: object) -> object:
        return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value

    values: dict[str, Any] = {}
    for attribute in node.attribute:
        values[attribute.name] = None
        kind = onnx.AttributeProto.AttributeType.Name(attribute.type)
        if kind in _PLAIN and attribute.ByteSize() <= _SMALL_BYTES:
            value = onnx.helper.get_attribute_value(attribute)
            is_list = kind.endswith("S")
            values[attribute.name] = tuple(map(text, value)) if is_list else text(value)
    return values


def _read(model: onnx.ModelProto) -> GraphInfo:
    graph = model.graph
    parameters = [
        *(_parameter(tensor, list(tensor.dims)) for tensor in graph.initializer),
        *(_parameter(sparse.values, list(sparse.dims)) for sparse in graph.sparse_initializer),
    ]
    constants = {parameter.name for parameter in parameters}
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    return GraphInfo(
        name=graph.name,
        inputs=tuple(_spec(value) for value in graph.input if value.name not in constants),
        outputs=tuple(_output(value, graph, parameters) for value in graph.output),
        nodes=tuple(
            NodeInfo(i, n.name, n.op_type, n.domain, tuple(n.input), tuple(n.output), _values(n))
            for i, n in enumerate(graph.node)
        ),
        parameters=tuple(parameters),
        # Before version 3 of the representation there was one operator set.
        opsets=opsets or ({"": 1} if model.ir_version < 3 else {}),
        ir_version=model.ir_version,
        producer=" ".join(p for p in (model.producer_name, model.producer_version) if p),
        metadata={entry.key: entry.value for entry in model.metadata_props},
    )


def _output(
    value: onnx.ValueInfoProto, graph: onnx.GraphProto, parameters: list[ParameterInfo]
) -> TensorSpec:
    """An output may leave its type to what else has its name."""
    if value.HasField("type"):
        return _spec(value)
    for parameter in parameters:
        if parameter.name == value.name:
            return TensorSpec(value.name, parameter.dtype, parameter.shape)
    others = [*graph.input, *graph.value_info]
    return _spec(next(o for o in others if o.name == value.name and o.HasField("type")))


@pytest.fixture(scope="session")
def read_with_onnx() -> Callable[[onnx.ModelProto], GraphInfo]:
    return _read
