"""precision_mode = preferred_fp16: the model itself, rewritten to compute in float16.

TensorRT 11 knows no precision flags, and with 10 this is the way that gives the same result: types
are the model's own. Inputs, outputs and everything that float16's range or 10 bits would spoil
stay float32, with casts between. Needs the onnx package.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import BackendUnavailable, ModelError
from engine.model_bytes import infer_shapes
from engine.types import ModelSource

if TYPE_CHECKING:
    import onnx

# Where nearly all of the time goes, and what is as good in float16.
_COMPUTES = {
    "AveragePool", "Clip", "Conv", "ConvTranspose", "Gemm", "GlobalAveragePool", "GlobalMaxPool",
    "HardSigmoid", "HardSwish", "LeakyRelu", "MatMul", "MaxPool", "PRelu", "Relu", "Sigmoid",
    "Tanh",
}  # fmt: skip
# Operators that follow: worth it where an input is float16 already, never worth a cast of its own.
_FOLLOWS = {
    "Abs", "Add", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Max", "Min",
    "Mul", "Neg", "Pad", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Sub", "Tile",
    "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
_LARGEST = float(np.finfo(np.float16).max)


def to_float16(source: ModelSource) -> bytes:
    """Return the model's bytes, weights included, computing in float16 where that is sound.

    Raises ModelError where it cannot be read or is too large for one protobuf message.
    """
    try:
        import onnx  # noqa: F401  # what follows needs it
    except ImportError as error:
        raise BackendUnavailable(
            "precision_mode preferred_fp16 needs the onnx package; run: pip install onnx", "gpu_trt"
        ) from error
    try:
        model = Rewriter(infer_shapes(_read(source))).run()
        return bytes(model.SerializeToString())
    except Exception as error:  # protobuf, onnx and the file system share no base
        raise ModelError(
            f"{source.name}: cannot be rewritten for preferred_fp16: "
            f"{' '.join(str(error).split())}; set precision_mode enforce_fp32",
            str(source.path or ""),
        ) from error


def _read(source: ModelSource) -> onnx.ModelProto:
    import onnx
    from onnx.external_data_helper import load_external_data_for_model

    data = (
        source.data if source.data is not None else Path(os.fspath(source.path or "")).read_bytes()
    )
    model = onnx.load_model_from_string(data)
    folder = source.folder or (source.path.parent if source.path is not None else None)
    if folder is not None:
        load_external_data_for_model(model, str(folder))
    return model


class Rewriter:
    """State of one rewrite: the nodes so far, and a float16 twin of each tensor computed so.

    half: the twin's name of each float32 tensor that has one. full: tensors that exist under
    their own name and type.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        import onnx

        self._onnx = onnx
        self._model = model
        graph = model.graph
        initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._constants = initializers | {
            node.output[0]: node.attribute[0].t
            for node in graph.node
            if node.op_type == "Constant" and node.attribute[0].name == "value"
        }
        self._types = {name: tensor.data_type for name, tensor in self._constants.items()}
        for value in (*graph.input, *graph.output, *graph.value_info):
            self._types[value.name] = value.type.tensor_type.elem_type
        self._half: dict[str, str] = {}
        self._full = {*initializers, *(value.name for value in graph.input)}
        self._nodes: list[onnx.NodeProto] = []
        self._fits: dict[str, bool] = {}

    def run(self) -> onnx.ModelProto:
        """Rewrite the model in place and return it."""
        graph = self._model.graph
        for node in list(graph.node):
            if self._goes_half(node):
                self._add_half(node)
            else:
                self._add_full(node)
        for value in graph.output:
            self._need_full(value.name)
        used = {name for node in self._nodes for name in _read_names(node)}
        used |= {value.name for value in graph.output}
        constants = [tensor for tensor in graph.initializer if tensor.name in used]
        inputs = [value for value in graph.input if value.name not in self._constants]
        del graph.node[:], graph.initializer[:], graph.value_info[:], graph.input[:]
        graph.node.extend(self._nodes)
        graph.initializer.extend(constants)
        graph.input.extend(inputs)
        return self._model

    def _goes_half(self, node: onnx.NodeProto) -> bool:
        if node.domain not in ("", "ai.onnx") or node.op_type not in _COMPUTES | _FOLLOWS:
            return False
        floats = [name for name in node.input if self._is_float(name)]
        if not floats or not all(name in self._types for name in node.input if name):
            return False
        if node.op_type in _FOLLOWS and not any(name in self._half for name in floats):
            return False
        return all(self._in_range(name) for name in floats)

    def _is_float(self, name: str) -> bool:
        return self._types.get(name) == self._onnx.TensorProto.FLOAT

    def _in_range(self, name: str) -> bool:
        """Tell whether a constant keeps its values in float16; what is computed is taken to."""
        tensor = self._constants.get(name)
        if tensor is None:
            return True
        if name not in self._fits:
            array = self._onnx.numpy_helper.to_array(tensor)
            self._fits[name] = not array.size or bool(np.abs(array).max() <= _LARGEST)
        return self._fits[name]

    def _add_half(self, node: onnx.NodeProto) -> None:
        for index, name in enumerate(node.input):
            if self._is_float(name):
                node.input[index] = self._need_half(name)
        for index, name in enumerate(node.output):
            # Of these operators every output has the first input's type but for MaxPool's indices.
            if name and not (node.op_type == "MaxPool" and index == 1):
                self._types.setdefault(name, self._onnx.TensorProto.FLOAT)
                self._half[name] = node.output[index] = f"{name}::half"
            else:
                self._full.add(name)
        self._nodes.append(node)

    def _add_full(self, node: onnx.NodeProto) -> None:
        for name in _read_names(node):
            self._need_full(name)
        self._full.update(node.output)
        self._nodes.append(node)

    def _need_half(self, name: str) -> str:
        if name not in self._half:
            twin = self._half[name] = f"{name}::half"
            tensor = self._constants.get(name)
            if tensor is not None:
                array = self._onnx.numpy_helper.to_array(tensor).astype(np.float16)
                self._model.graph.initializer.append(
                    self._onnx.numpy_helper.from_array(array, twin)
                )
            else:
                self._cast(name, twin, self._onnx.TensorProto.FLOAT16)
        return self._half[name]

    def _need_full(self, name: str) -> None:
        if name in self._half and name not in self._full:
            self._cast(self._half[name], name, self._onnx.TensorProto.FLOAT)
            self._full.add(name)

    def _cast(self, source: str, target: str, to: Any) -> None:
        self._nodes.append(
            self._onnx.helper.make_node("Cast", [source], [target], f"{target}::cast", to=to)
        )


def _read_names(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node reads, also from inside its subgraphs."""
    names = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            names |= {value.name for value in graph.output}
            for inner in graph.node:
                names |= _read_names(inner)
    return names
