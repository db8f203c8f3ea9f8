"""A model in float64, for an evaluator that computes each node in the types that it is given."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from engine.formats.onnx.graphs import subgraphs

_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
_TYPES = {"to", "dtype"}
"""Attributes that name the type of what a node makes."""


def widen(proto: ModelProto) -> None:
    """Make float64 of all floats that a model has as constants or makes by a type's name."""
    for tensor in proto.graph.initializer:
        _widen_tensor(tensor)
    _widen_nodes(proto.graph)


def _widen_nodes(graph: GraphProto) -> None:
    for node in graph.node:
        _widen_node(node)
        for body in subgraphs(node):
            for tensor in body.initializer:
                _widen_tensor(tensor)
            _widen_nodes(body)


def _widen_node(node: NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            _widen_tensor(attribute.t)
        elif attribute.name in _TYPES and attribute.i in _FLOATS:
            attribute.i = TensorProto.DOUBLE


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _FLOATS:
        with suppress(ValueError):  # damaged: whoever runs it says so
            wide = np.asarray(numpy_helper.to_array(tensor)).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
