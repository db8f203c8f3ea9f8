"""Shapes of what Scan's bodies give, where a variable weight may steer them.

A runtime takes memory for the results of all steps by the shape that the body declares, or that
follows from constants. A weight that varies is no constant: the rank then has to be said, and
sizes that hold for its first value alone must not be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from engine.host.interrupts import pass_interrupt
from engine.wings import wing

_MOST = 64  # elements of a weight that says axes or sizes


def with_open_scans(data: bytes, weights: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """Return a model whose Scan bodies declare the rank of what they give, and no sizes.

    weights: the variable ones, by name, with their first values; the rank follows from these.
    The model comes back as it was where no Scan can be steered, or the onnx package is missing.
    """
    steering = {
        name: value
        for name, value in weights.items()
        if value.dtype.kind in "iub" and value.size <= _MOST
    }
    if not steering or b"Scan" not in data:
        return data
    try:
        import onnx
        from onnx import numpy_helper

        infer_shapes = wing("infer_shapes")
    except ImportError:
        return data
    model = onnx.load_model_from_string(data)
    if not any(True for _ in _scans(model.graph)):
        return data
    known = onnx.ModelProto()
    known.CopyFrom(model)
    for body in _scans(known.graph):  # inference looks for constants in the body alone
        own = {tensor.name for tensor in body.initializer}
        read = {name for node in body.node for name in node.input} - own
        body.initializer.extend(
            numpy_helper.from_array(value, name)
            for name, value in {**_small(known.graph), **steering}.items()
            if name in read
        )
    try:
        known = infer_shapes(known)
    except Exception as error:  # its exceptions share no base; the runtime is to judge the model
        pass_interrupt(error)
        return data
    for body, inferred in zip(_scans(model.graph), _scans(known.graph), strict=True):
        for output, other in zip(body.output, inferred.output, strict=True):
            if other.type.tensor_type.HasField("shape"):
                shape = output.type.tensor_type.shape
                shape.Clear()
                for _ in other.type.tensor_type.shape.dim:
                    shape.dim.add()
    return bytes(model.SerializeToString())


def _scans(graph: Any) -> Iterator[Any]:
    """Yield the bodies of every Scan, in subgraphs too."""
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if node.op_type == "Scan" and attribute.name == "body":
                    yield inner
                yield from _scans(inner)


def _small(graph: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the graph's constants that may say axes or sizes."""
    from onnx import TensorProto, numpy_helper

    return {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.data_type in (TensorProto.INT32, TensorProto.INT64)
        and tensor.data_location != TensorProto.EXTERNAL
        and int(np.prod(tensor.dims)) <= _MOST
    }
