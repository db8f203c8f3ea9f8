"""Float16 storage pass: half the file, and the same model but for the weights' rounding.

Each is followed by a Cast back, which runtimes fold when they load the model: it computes in
float32 as before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto, numpy_helper

from engine.converter.graphs import Names, add_opset, cast
from engine.converter.job import Job
from engine.formats.onnx.graphs import Body, bodies, light

LEAST_BYTES = 1024
"""Smaller tensors stay float32: there is nothing to gain by them, and most scales are such."""

LOST = 0.01
"""The largest share of a tensor's values that may become zero."""

# Numbers that say how to compute, by the places at which operators take them. Runtimes want them
# as plain constants, and rounding one moves a whole channel.
_NO_WEIGHTS = {
    "BatchNormalization": (1, 2, 3, 4),
    "DequantizeLinear": (1,),
    "DynamicQuantizeLSTM": (8, 10),
    "DynamicQuantizeMatMul": (2,),
    "InstanceNormalization": (1, 2),
    "MatMulIntegerToFloat": (2, 3),
    "MatMulNBits": (2,),
    "QAttention": (3, 4),
    "QGemm": (1, 4, 7),
    "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6),
    "QuantizeLinear": (1,),
}


def store(model: ModelProto, job: Job) -> tuple[ModelProto, list[str]]:
    """Return the model with float32 weights of 1 KiB and more stored as float16, and notes on that.

    Weights are initializers and Constant nodes, those in subgraphs and functions too. One that
    float16 cannot hold stays as it is, with a note; so do scales and statistics of normalizations
    and quantized operators. Nodes read values of the same names as before; what is stored is
    called NAME.float16. `model` is not changed, and its float32 weights are not copied.
    Raises Cancelled.
    """
    result = light(model)
    add_opset(result)
    work = _Work(model, job)
    main, *others = bodies(result)
    for body in (main, *others):
        work.store_nodes(body)
    for body in others:
        if isinstance(body, GraphProto):
            own = GraphProto()
            own.initializer.extend(body.initializer)
            del body.initializer[:]
            work.store_initializers(own.initializer, body)
    work.store_initializers(model.graph.initializer, result.graph)
    if not work.count:
        work.notes.append("weight_fp16: no float32 weight of 1 KiB or more could be stored so")
    return result, work.notes


class _Work:
    """State of the pass. notes: what stays float32 and why. count: tensors stored as float16."""

    def __init__(self, model: ModelProto, job: Job) -> None:
        self.notes: list[str] = []
        self.count = 0
        self._job = job
        self._names = Names(model)
        self._opsets = model.opset_import
        self._kept = {
            node.input[position]
            for body in bodies(model)
            for node in body.node
            for position in _NO_WEIGHTS.get(node.op_type, ())
            if position < len(node.input)
        }

    def store_initializers(self, tensors: Iterable[TensorProto], graph: GraphProto) -> None:
        """Add tensors to a graph that has none yet."""
        inputs = {value.name: value for value in graph.input}
        casts = []
        for tensor in tensors:
            half = self._half(tensor, tensor.name)
            graph.initializer.add().CopyFrom(tensor if half is None else half)
            if half is None:
                continue
            casts.append(cast(half.name, tensor.name, TensorProto.FLOAT, self._opsets))
            if tensor.name in inputs:  # in IR version 3 each initializer is an input as well
                inputs[tensor.name].name = half.name
                inputs[tensor.name].type.tensor_type.elem_type = TensorProto.FLOAT16
        for node in reversed(casts):
            graph.node.insert(0, node)

    def store_nodes(self, body: Body) -> None:
        """Store the tensors of a body's Constant nodes, each with a Cast behind it."""
        opsets = body.opset_import if isinstance(body, FunctionProto) else self._opsets
        for position in range(len(body.node) - 1, -1, -1):
            node = body.node[position]
            if node.op_type != "Constant" or node.attribute[0].name != "value":
                continue
            name = node.output[0]
            half = self._half(node.attribute[0].t, name)
            if half is not None:
                node.output[0] = half.name
                node.attribute[0].t.CopyFrom(half)
                body.node.insert(position + 1, cast(half.name, name, TensorProto.FLOAT, opsets))

    def _half(self, tensor: TensorProto, name: str) -> TensorProto | None:
        """Return a weight as float16 under a name of its own; None for what stays as it is."""
        self._job.cancel.check()
        if (
            tensor.data_type != TensorProto.FLOAT
            or tensor.data_location == TensorProto.EXTERNAL
            or name in self._kept
        ):
            return None
        array = numpy_helper.to_array(tensor)
        if array.nbytes < LEAST_BYTES:
            return None
        with np.errstate(over="ignore", under="ignore"):
            half = array.astype(np.float16)
        reason = _loss(array, half)
        if reason:
            self.notes.append(f"weight {name!r} stays float32: {reason}")
            return None
        self.count += 1
        return numpy_helper.from_array(half, self._names.free(f"{name}.float16"))


def _loss(array: npt.NDArray[Any], half: npt.NDArray[np.float16]) -> str:
    """Describe the values of a tensor that float16 cannot hold, beyond rounding; "" for none."""
    beyond = np.isinf(half)
    beyond &= np.isfinite(array)
    count = np.count_nonzero(beyond)
    if count:
        largest = np.abs(array[beyond]).max()
        return f"{count} of its {array.size} values are beyond float16's 65504, up to {largest:g}"
    lost = np.count_nonzero(array) - np.count_nonzero(half)
    if lost > LOST * array.size:
        return f"{lost} of its {array.size} values are too small for float16, and would be zero"
    return ""
