"""Executing an emulated .om with onnxruntime, from the weights that lie in device memory."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from emulated_ascend.omfile import Om

Array = npt.NDArray[Any]

# onnxruntime takes these from numpy only by their bits.
_BITS = {TensorProto.BFLOAT16: np.uint16, TensorProto.FLOAT8E4M3FN: np.uint8,
         TensorProto.FLOAT8E5M2: np.uint8, TensorProto.FLOAT8E8M0: np.uint8}  # fmt: skip


class Program:
    """The code of one loaded model: a session for the weights as they are now.

    Weights are read from device memory at every run, as the device reads them: what is written
    over them shows.
    """

    def __init__(self, om: Om) -> None:
        self._om = om
        self._lock = threading.Lock()
        self._made_of = b""
        self._session: ort.InferenceSession | None = None
        self.types = _types(om)

    def run(self, inputs: dict[str, Array], weights: Array, options: ort.RunOptions) -> list[Array]:
        """Return the outputs for these inputs: raw arrays, dtypes as ONNX has them."""
        session = self.session(weights)
        if self._om.is_half:
            inputs = {name: _rounded(value) for name, value in inputs.items()}
        feeds = {
            name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
                np.ascontiguousarray(value), self.types[name]
            )
            if self.types[name] in _BITS
            else ort.OrtValue.ortvalue_from_numpy(value)
            for name, value in inputs.items()
        }
        names = [value.name for value in session.get_outputs()]
        results = session.run_with_ort_values(names, feeds, options)
        values = [
            _numpy(value, self.types[name]) for name, value in zip(names, results, strict=True)
        ]
        return [_rounded(value) for value in values] if self._om.is_half else values

    def session(self, weights: Array) -> ort.InferenceSession:
        """Return the session for these weights, made anew where they have changed."""
        digest = hashlib.blake2b(weights.tobytes(), digest_size=16).digest()
        with self._lock:
            if self._session is None or digest != self._made_of:
                self._session = open_session(self._om, weights.tobytes())
                self._made_of = digest
            return self._session


def open_session(om: Om, weights: bytes) -> ort.InferenceSession:
    """Open a session of the model with these weights; onnxruntime's errors pass through."""
    model = onnx.load_model_from_string(om.graph)
    for weight in om.weights:
        raw = weights[weight.offset : weight.offset + weight.nbytes]
        model.graph.initializer.append(
            helper.make_tensor(weight.name, weight.dtype, weight.dims, raw, raw=True)
        )
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 4
    settings.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # float32
    # On x86 without VNNI ONNX Runtime's kernels add products of uint8 and int8 in 16 bits.
    operators = {node.op_type for node in model.graph.node}
    if not operators.isdisjoint(("MatMulInteger", "QLinearMatMul")):
        settings.add_session_config_entry("session.x64quantprecision", "1")
    elif "DequantizeLinear" in operators:  # computed in floats, as no kernel is fused
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )


def host_dtype(onnx_type: int) -> np.dtype[Any]:
    """Return the numpy dtype that holds a type's elements, or their bits."""
    if onnx_type in _BITS:
        return np.dtype(_BITS[onnx_type])
    return np.dtype(helper.tensor_dtype_to_np_dtype(onnx_type))


def _types(om: Om) -> dict[str, int]:
    graph = onnx.load_model_from_string(om.graph).graph
    return {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}


def _numpy(value: ort.OrtValue, onnx_type: int) -> Array:
    if onnx_type not in _BITS:
        return np.asarray(value.numpy())
    # No numpy type of its own: take the bits where they lie.
    shape = tuple(value.shape())
    bits = np.empty(shape, _BITS[onnx_type])
    if bits.nbytes:
        import ctypes

        ctypes.memmove(bits.ctypes.data, value.data_ptr(), bits.nbytes)
    return bits


def _rounded(value: Array) -> Array:
    return value.astype(np.float16).astype(np.float32) if value.dtype == np.float32 else value
