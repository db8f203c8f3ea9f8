"""ONNX graphs behind the emulated TensorRT: what TensorRT's parser says of them, and results.

The refusals and their texts are what TensorRT's real parser and builder said of such models
(tensorrt_rtx 1.7.1, whose parser and builder need no device).
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import os
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import InferenceError

from emulated_gpu import inside


def _import_onnxruntime() -> Any:
    """Import it without its telemetry, which writes files, and leave the environment as it was."""
    name = "ORT_DISABLE_TELEMETRY"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        return importlib.import_module("onnxruntime")
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


ort = _import_onnxruntime()

OPERATORS = frozenset(
    json.loads(Path(__file__).with_name("operators.json").read_text())["operators"]
)
# DOUBLE becomes FLOAT without a word: that is what the real parser does.
TYPES = {
    TensorProto.FLOAT: "FLOAT",
    TensorProto.DOUBLE: "FLOAT",
    TensorProto.FLOAT16: "HALF",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.INT8: "INT8",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.BOOL: "BOOL",
    TensorProto.UINT8: "UINT8",
    TensorProto.FLOAT8E4M3FN: "FP8",
}
_SAID = {"FLOAT": "Float", "HALF": "Half", "BF16": "BFloat16", "INT8": "Int8", "INT32": "Int32",
         "INT64": "Int64", "BOOL": "Bool", "UINT8": "UInt8", "FP8": "FP8"}  # fmt: skip
_NOT_NUMPYS = {
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
}
_ELEMENTWISE = {"Add": "SUM", "Sub": "SUB", "Mul": "PROD", "Div": "DIV", "Pow": "POW"}
_PRODUCTS = {"Conv", "Gemm", "MatMul"}
_ACTIVATIONS = {"Relu", "Sigmoid", "Tanh"}
_FOR_UINT8 = {"Cast", "Identity", "QuantizeLinear", "DequantizeLinear"}


class InvalidShapes(Exception):
    """Shapes of the inputs contradict each other somewhere in the graph."""


@dataclass(frozen=True)
class Refusal:
    """One error of the parser; node is -1 where it is no node's."""

    code: str
    text: str
    node: int = -1
    name: str = ""
    operator: str = ""


def _read_external(tensor: TensorProto, folder: Path) -> None:
    """Read a tensor's data file. TensorRT's parser follows links, which onnx's own loader refuses.

    Raises OSError, ValueError or KeyError where there is none, or not as much.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return
    entries = {entry.key: entry.value for entry in tensor.external_data}
    length = int(entries.get("length", -1))
    with (folder / entries["location"]).open("rb") as file:
        file.seek(int(entries.get("offset", 0)))
        tensor.raw_data = file.read(length)
    if len(tensor.raw_data) < length:
        raise ValueError("the file ends before the tensor does")
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.DEFAULT


class Graph:
    """A model as the parser has read it: whole, with its weights."""

    def __init__(
        self, data: bytes, path: str | None = None, ranks: Mapping[int, int] | None = None
    ) -> None:
        """Raises ValueError with the parser's text where the bytes are no model.

        ranks: how many there are, by the index of a collective inside.
        """
        self.ranks = dict(ranks or {})
        try:
            self.model = onnx.ModelProto()
            self.model.ParseFromString(data)
        except DecodeError:
            raise ValueError(
                "Assertion failed: model->ParseFromCodedStream(&codedInput): "
                "Failed to parse the ONNX model."
            ) from None
        folder = Path(path).parent if path else Path()
        for tensor in self.model.graph.initializer:
            try:
                _read_external(tensor, folder)
            except (OSError, ValueError, KeyError):
                raise ValueError(f"Failed to import initializer: {tensor.name}") from None
        graph = self.model.graph
        constants = {tensor.name for tensor in graph.initializer}
        self.inputs = [value for value in graph.input if value.name not in constants]
        self.outputs = list(graph.output)

    def original(self, name: str) -> str:
        """Return the model's name of a network's input: one that is an output too was renamed."""
        names = {value.name for value in self.inputs}
        return name if name in names else name.removeprefix("__")

    def collectives(self) -> list[int]:
        """Return the nodes that are collectives, by index."""
        return [i for i, node in enumerate(self.model.graph.node) if inside.is_inside(node)]

    def name_of(self, index: int) -> str:
        """Return the layer name that TensorRT gives a node."""
        node = self.model.graph.node[index]
        return node.name or f"node_of_{node.output[0]}"

    def refusals(self) -> list[Refusal]:
        """Return the parser's objections to this model: [] where it takes it."""
        refusals = [
            Refusal(
                "UNSUPPORTED_NODE",
                "Assertion failed: convertDtype(onnxDtype.elem_type(), &trtDtype) && "
                '"Failed to convert ONNX date type to TensorRT data type."',
            )
            for value in self.inputs
            if value.type.tensor_type.elem_type not in TYPES
        ]
        functions = {(function.domain, function.name) for function in self.model.functions}
        for index, node in enumerate(self.model.graph.node):
            bad = _unknown(node, functions)
            if bad is not None:
                known = onnx.defs.has(bad.op_type, bad.domain)
                text = "false" if known else (
                    'creator && "Plugin not found, are the plugin name, version, and namespace '
                    'correct?"'
                )  # fmt: skip
                code = "UNSUPPORTED_NODE" if known else "INVALID_NODE"
                refusals.append(Refusal(code, text, index, bad.name, bad.op_type))
        for index, node in enumerate(self.model.graph.node):
            if inside.is_inside(node) and (text := inside.refusal(node)):
                refusals.append(Refusal("INVALID_NODE", text, index, node.name, node.op_type))
        if refusals:
            return refusals
        typed = self._mistyped()
        return typed or self._misshapen()

    def _mistyped(self) -> list[Refusal]:
        types = _types(inside.stand_in(self.model, self.ranks))
        for index, node in enumerate(self.model.graph.node):
            said = [_SAID.get(TYPES.get(types.get(name, 0), ""), "") for name in node.input]
            text = _type_error(node.op_type, self.name_of(index), said)
            if text:
                return [Refusal("INVALID_NODE", text, index, node.name, node.op_type)]
        return []

    def _misshapen(self) -> list[Refusal]:
        try:
            self.shapes({})
        except InvalidShapes as error:
            place = re.search(r"node name: (\d+)", str(error))
            if place is None:
                return [Refusal("INVALID_GRAPH", str(error))]
            index = int(place[1])
            node = self.model.graph.node[index]
            text = (
                f"Invalid Node - {self.name_of(index)}\n"
                f"ITensor::getDimensions: Error Code 4: API Usage Error ({error})"
            )
            return [Refusal("INVALID_NODE", text, index, node.name, node.op_type)]
        return []

    def shapes(self, inputs: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        """Return the outputs' shapes for these input shapes; -1 where the data decide.

        Raises InvalidShapes where they contradict each other.
        """
        model = inside.stand_in(self.model, self.ranks)
        for index, node in enumerate(model.graph.node):
            node.name = str(index)
        for value in model.graph.input:
            for dim, size in zip(
                value.type.tensor_type.shape.dim, inputs.get(value.name, ()), strict=False
            ):
                dim.dim_value = size
        fixed = {value.name for value in (*model.graph.input, *model.graph.initializer)}
        computed = [value for value in model.graph.output if value.name not in fixed]
        # Of what a loop carries ONNX infers no shape, since it may change from one iteration to
        # the next. TensorRT's may not: it is the one that the file declares.
        declared = {
            value.name: _dims(value)
            for value in computed
            if value.type.tensor_type.HasField("shape")
        }
        del model.graph.output[:]
        for value in computed:
            value.type.tensor_type.ClearField("shape")  # as declared is not as computed
            model.graph.output.append(value)
        try:
            inferred = onnx.shape_inference.infer_shapes(
                model, check_type=False, strict_mode=True, data_prop=True
            )
        except (InferenceError, ValueError, RuntimeError) as error:
            raise InvalidShapes(" ".join(str(error).split())) from None
        known = {
            value.name: _dims(value)
            if value.type.tensor_type.HasField("shape")
            else declared.get(value.name, ())
            for value in inferred.graph.output
        }
        known |= {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
        known |= {value.name: _dims(value) for value in model.graph.input}
        return {value.name: known[value.name] for value in self.outputs}

    def decides_shapes(self, name: str) -> bool:
        """Tell whether an input is read as a shape (a shape tensor in TensorRT's words)."""
        places = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0, "Tile": 1}
        return any(
            node.op_type in places and name in node.input[places[node.op_type] :][:1]
            for node in self.model.graph.node
        )

    def layers(self) -> list[dict[str, str]]:
        """Return the layers of the engine, as the inspector tells them at the detailed verbosity.

        "a + b" is one kernel for the nodes a and b. Two nodes of one name have layers of two names,
        and metadata of one. What is computed from constants alone is folded away, and an activation
        is computed by the kernel of the product before it.
        """
        constant = {tensor.name for tensor in self.model.graph.initializer}
        kept = {value.name for value in self.outputs}
        readers = Counter(name for node in self.model.graph.node for name in node.input)
        layers: list[dict[str, str]] = []
        open_layers: dict[str, int] = {}  # a product's output -> its layer
        names: Counter[str] = Counter()
        for index, node in enumerate(self.model.graph.node):
            is_constant = all(name in constant for name in node.input if name)
            if is_constant and not kept.intersection(node.output):
                constant.update(node.output)
                continue
            name, source = self.name_of(index), node.input[0] if node.input else ""
            metadata = f"[ONNX Layer: {name}]"
            names[name] += 1
            if names[name] > 1:
                name += f"_{names[name] - 2}"
            place = open_layers.get(source)
            if node.op_type in _ACTIVATIONS and place is not None and source not in kept:
                layers[place]["Name"] += f" + {name}"
                layers[place]["Metadata"] += f"\x1f{metadata}"
                continue
            kind = "gemm" if node.op_type in _PRODUCTS else "kgen"
            layers.append({"Name": name, "LayerType": kind, "Metadata": metadata})
            if node.op_type in _PRODUCTS and readers[node.output[0]] == 1:
                open_layers[node.output[0]] = len(layers) - 1
        return layers

    def layer_kinds(self) -> list[str]:
        """Return the keys of the layers in a timing cache."""
        return [node.op_type for node in self.model.graph.node]

    def weight_names(self) -> set[str]:
        return {tensor.name for tensor in self.model.graph.initializer}

    def joined_with(self, name: str) -> set[str]:
        """Return the weights that the engine keeps in one piece with this one: weight and bias."""
        return {
            other
            for node in self.model.graph.node
            if name in node.input and node.op_type in _PRODUCTS
            for other in node.input
            if other in self.weight_names()
        }

    def with_weights(self, changes: Mapping[str, np.ndarray[Any, Any]]) -> Graph:
        """Return the graph with other weights."""
        changed = Graph(self.model.SerializeToString(), ranks=self.ranks)
        for tensor in changed.model.graph.initializer:
            if tensor.name in changes:
                dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
                value = changes[tensor.name].astype(dtype).reshape(tuple(tensor.dims))
                tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
        return changed

    def weights_bytes(self) -> int:
        return sum(len(t.raw_data) or t.ByteSize() for t in self.model.graph.initializer)


class Kernels:
    """Computes a graph; shared by threads."""

    def __init__(self, graph: Graph) -> None:
        self._types = {v.name: v.type.tensor_type.elem_type for v in graph.inputs}
        self._names = [value.name for value in graph.outputs]
        self._lock = threading.Lock()
        self._session: Any = None
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # float32
        if any(node.op_type == "DequantizeLinear" for node in graph.model.graph.node):
            # In floats: on x86 without VNNI ONNX Runtime's fused kernels saturate.
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self._session = ort.InferenceSession(
                graph.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception:  # ONNX Runtime's share no base; most often no kernel for these types
            # Slower, and able to do it; what is no model at all fails there again.
            new = [inside.DistCollective] if graph.collectives() else None
            self._evaluator = ReferenceEvaluator(graph.model, new_ops=new)

    def __call__(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Outputs in the graph's order; raises whatever the data make impossible."""
        if self._session is None:
            with self._lock:
                return [
                    np.asarray(value) for value in self._evaluator.run(self._names, dict(inputs))
                ]
        feeds = {name: _value(array, self._types[name]) for name, array in inputs.items()}
        values = self._session.run_with_ort_values(self._names, feeds)
        return [_array(value) for value in values]


def _dims(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in dims)


def _value(array: np.ndarray[Any, Any], type: int) -> Any:
    if type == TensorProto.DOUBLE:
        array = array.astype(np.float64)  # the narrowed type's way back
    if array.dtype.kind == "V" or array.dtype.name in ("bfloat16", "float8_e4m3fn"):
        raw = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, type)
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def _array(value: Any) -> np.ndarray[Any, Any]:
    dtype = _NOT_NUMPYS.get(value.element_type())
    if dtype is not None:
        shape = tuple(value.shape())
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        raw = ctypes.string_at(value.data_ptr(), nbytes)
        return np.frombuffer(raw, dtype).reshape(shape)
    array = value.numpy()
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _unknown(node: onnx.NodeProto, functions: set[tuple[str, str]]) -> onnx.NodeProto | None:
    """Return the node itself, or one in its subgraphs, that the parser has no importer for."""
    known = node.domain in ("", "ai.onnx") and node.op_type in OPERATORS | {inside.OPERATOR}
    if not known and (node.domain, node.op_type) not in functions:
        return node
    for attribute in node.attribute:
        for inner in attribute.g.node:
            found = _unknown(inner, functions)
            if found is not None:
                return found
    return None


def _types(model: onnx.ModelProto) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(model)
    graph = inferred.graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.value_info, *graph.input):
        types[value.name] = value.type.tensor_type.elem_type
    return types


def _type_error(operator: str, name: str, said: list[str]) -> str:
    """Return TensorRT's text where a layer does not take these types; "" where it does."""
    known = [name for name in said if name]
    text = ""
    if operator in _ELEMENTWISE:
        layer = f"ElementWiseOperation {_ELEMENTWISE[operator]}"
        if "Bool" in known:
            return (
                f"Assertion failed: Elementwise layer does not support operator "
                f"{_ELEMENTWISE[operator]} and the given inputs with type BOOL."
            )
        if len(set(known)) > 1:
            text = (
                f"{layer} must have same input types. But they are of types {known[0]} and "
                f"{known[1]}."
            )
        elif "UInt8" in known:
            text = (
                f"{layer} requires inputs with type kFLOAT, kHALF, kBF16, kFP8, or kINT8, kINT32, "
                "or kINT64. But type is UInt8."
            )
    elif operator in ("MatMul", "Gemm") and len(set(known[:2])) > 1:
        text = (
            f"IMatrixMultiplyLayer must have same input types. `A` is of type {known[0]} and `B` "
            f"is of type {known[1]}."
        )
    elif operator == "Concat" and len(set(known)) > 1:
        other = next(name for name in known if name != known[0])
        text = (
            f"IConcatenationLayer `inputs` must all be of the same type. "
            f"inputs[{known.index(other)}] is of type {other} but inputs[0] is of type {known[0]}."
        )
    elif operator == "Where" and len(set(known[1:])) > 1:
        text = (
            "ISelectLayer must have `thenInput` and `elseInput` of same types but has "
            f"{known[1]} and {known[2]}."
        )
    elif "UInt8" in known and operator not in _FOR_UINT8:
        text = (
            "first input has type UInt8 but must have type Float, Half, BFloat16, FP8, E8M0, FP4, "
            "Int4, Int8, Int64, Int32, or Bool."
        )
    if not text:
        return ""
    return (
        f"Invalid Node - {name}\nITensor::getDimensions: Error Code 4: API Usage Error ({name}: "
        f"{text} In validateTypes at /_src/optimizer/common/nodes/node.cpp:1)"
    )
