"""Weights outside the engine: inputs of the network, so that other models and processes have them.

TensorRT copies what is inside an engine at each load, and cannot be told where it is already. What
is an input instead is read where it lies, and TensorRT cannot lay it out anew for its kernels. So
this is done only for a model that shares its weights, and for the large ones that matrix products
and look-ups read; the rest stays inside.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import BackendUnavailable
from engine.types import CompileOptions, ModelSource
from engine_gpu_trt.cuda import as_bytes
from engine_gpu_trt.slots import Array

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

LEAST_BYTES = 2**14
_READ_AS = {"MatMul": (0, 1), "Gemm": (0, 1), "Gather": (0,)}
"""Operators that read a weight as they read any tensor, and by which inputs."""
_TYPES = {"FLOAT", "FLOAT16", "BFLOAT16"}


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight on the host, mapped where it is in a file. digest: of its bytes."""

    digest: str
    array: Array


def is_wanted(options: CompileOptions) -> bool:
    """Return whether a model is to have weights outside: others are to have them, too."""
    return options.lend != "" or options.shared_weights is not None


def take_out(
    source: ModelSource, data: bytes, stay: tuple[str, ...]
) -> tuple[bytes, Mapping[str, Weight]]:
    """Return a model whose large weights are inputs, and these by name.

    data: the model, where it is not the source's. stay: weights that are to stay inside.
    """
    try:
        import onnx
        from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data
    except ImportError as error:
        raise BackendUnavailable(
            "sharing weights on the device needs the onnx package; run: pip install onnx", "gpu_trt"
        ) from error
    model = onnx.load_model_from_string(
        data or (source.data if source.data is not None else Path(source.path or "").read_bytes())
    )
    graph = model.graph
    folder = source.folder or (source.path.parent if source.path is not None else None)
    found: dict[str, Weight] = {}
    movable = _movable(model).difference(stay)
    for tensor in list(graph.initializer):
        if tensor.name not in movable:
            continue
        shape = list(tensor.dims)
        if onnx.TensorProto.DataType.Name(tensor.data_type) not in _TYPES:
            continue
        itemsize = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        if int(np.prod(shape)) * itemsize < LEAST_BYTES:
            continue
        if uses_external_data(tensor):
            load_external_data_for_tensor(tensor, str(folder or ""))
        found[tensor.name] = weight_of(onnx.numpy_helper.to_array(tensor))
        graph.initializer.remove(tensor)
        if all(value.name != tensor.name for value in graph.input):
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, shape)
            )
    return (bytes(model.SerializeToString()) if found else data), found


def weight_of(array: Array) -> Weight:
    """Return an array as a weight."""
    array = np.ascontiguousarray(array)
    return Weight(hashlib.sha256(as_bytes(array).data).hexdigest(), array)


def _movable(model: ModelProto) -> set[str]:
    """Return the names of what is read only as a tensor among others, in the main graph."""
    movable: Counter[str] = Counter()
    read: Counter[str] = Counter(value.name for value in model.graph.output)
    for node in model.graph.node:
        read.update(name for name in node.input if name)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                read.update(_names_in(inner))
        if node.domain in ("", "ai.onnx"):
            places = _READ_AS.get(node.op_type, ())
            movable.update(node.input[place] for place in places if place < len(node.input))
    return {name for name, count in movable.items() if count == read[name]}


def _names_in(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _names_in(inner)
    yield from (value.name for value in graph.output)


def described(weights: Mapping[str, Weight], offsets: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return what a compiled form says of its weights, which are in a file at these offsets."""
    return [
        {
            "name": name,
            "dtype": weight.array.dtype.name,
            "shape": list(weight.array.shape),
            "offset": offsets[name],
            "sha256": weight.digest,
        }
        for name, weight in weights.items()
    ]
