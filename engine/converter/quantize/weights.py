"""Weight-only quantization: 8 or 4-bit weights with a DequantizeLinear node before their readers.

Plain ONNX, so every backend runs it. The integers keep the zero of the weights (no zero point) and
leave out the lowest value: symmetric. A backend may also round what such a weight is multiplied by:
cpu does so in matrix products (plugins/cpu/README.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from engine.converter.graphs import Names, refill
from engine.converter.job import Job
from engine.converter.quantize.settings import Common, Settings
from engine.formats.arrays import Array
from engine.formats.onnx.graphs import bodies

BLOCK = 32
"""Weights along the summed axis that share a scale at 4 bits, as ONNX Runtime's kernels want."""


def _gemm(node: NodeProto, rank: int) -> int:
    is_transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return 0 if is_transposed else 1


# Operator -> the inputs that are its weights -> the axis of their channels, from node and rank.
_AXES: Mapping[str, Mapping[int, Callable[[NodeProto, int], int]]] = {
    "Conv": {1: lambda node, rank: 0},
    "ConvTranspose": {1: lambda node, rank: 1},
    "Gemm": {1: _gemm},
    "MatMul": {1: lambda node, rank: rank - 1},
    "Gather": {0: lambda node, rank: 0},
    "LSTM": {1: lambda node, rank: 1, 2: lambda node, rank: 1},
    "GRU": {1: lambda node, rank: 1, 2: lambda node, rank: 1},
    "RNN": {1: lambda node, rank: 1, 2: lambda node, rank: 1},
}
_IN_BLOCKS = ("Gemm", "MatMul", "Gather")


def quantize_weights(model: ModelProto, settings: Settings, job: Job) -> list[str]:
    """Replace the model's float32 weights, in place, by integers; returns notes.

    A weight is replaced where all nodes that read it are to be quantized, and it has more elements
    and channels than the settings' thresholds. At 4 bits that is for matrices; others get 8.
    Raises Cancelled.
    """
    common = settings.common
    graph = model.graph
    readers: dict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
    for node in graph.node:
        for position, name in enumerate(node.input):
            readers[name].append((node, position))
    _, *inside = bodies(model)  # their operators are not looked at
    kept = {value.name for value in (*graph.input, *graph.output)}
    kept |= {name for body in inside for node in body.node for name in node.input}
    names = Names(model)
    nodes: list[NodeProto] = []
    wider = convolutions = 0
    kept_float: dict[str, list[str]] = defaultdict(list)
    tensors = list(graph.initializer)
    for done, tensor in enumerate(tensors):
        job.cancel.check()
        job.progress("quantizing", done, len(tensors))
        axis = _axis(tensor, readers[tensor.name], common.skip_quant_node)
        if axis is None or tensor.name in kept:
            continue
        array = numpy_helper.to_array(tensor)
        reason = _reason(array, axis, common)
        if reason:
            kept_float[reason].append(tensor.name)
            continue
        in_blocks = (
            common.bit_num == 4
            and array.ndim == 2
            and all(node.op_type in _IN_BLOCKS for node, _ in readers[tensor.name])
        )
        convolutions += any(node.op_type.startswith("Conv") for node, _ in readers[tensor.name])
        wider += common.bit_num == 4 and not in_blocks
        if in_blocks:
            parts, attributes = _in_blocks(array, 1 - axis)
        else:
            parts, attributes = _by_channel(array, axis if settings.weight.per_channel else None)
        name = tensor.name  # remains that of the float32 value, so that no reader changes
        stored, scale = (names.free(f"{name}_{part}") for part in ("quantized", "scale"))
        node = NodeProto(op_type="DequantizeLinear", name=names.free(f"{name}_dequantize"))
        node.input.extend([stored, scale])
        node.output.append(name)
        node.attribute.extend(
            onnx.helper.make_attribute(*attribute) for attribute in attributes.items()
        )
        nodes.append(node)
        tensor.CopyFrom(numpy_helper.from_array(parts[0], stored))
        graph.initializer.append(numpy_helper.from_array(parts[1], scale))
    job.progress("quantizing", len(tensors), len(tensors))
    refill(graph.node, [*nodes, *graph.node])
    notes = [
        f"float32 stays: {len(stay)} of the weights, such as {stay[0]!r}: {reason}"
        for reason, stay in kept_float.items()
    ]
    if wider:
        notes.append(f"bit_num=4: {wider} weights that are no matrices have 8 bits")
    if convolutions:
        notes.append(
            f"weights of {convolutions} convolutions are made float32 again in each predict, which "
            "saves memory and costs time: FULL_QUANT makes convolutions faster"
        )
    return notes


def _reason(array: Array, axis: int, common: Common) -> str:
    """Return the reason why a weight stays float32; "" where it is quantized."""
    if array.size <= common.min_quant_weight_size:
        return f"at most min_quant_weight_size={common.min_quant_weight_size} elements"
    if array.shape[axis] <= common.min_quant_weight_channel:
        return f"at most min_quant_weight_channel={common.min_quant_weight_channel} channels"
    return "" if np.isfinite(array).all() else "values that are not finite"


def _axis(
    tensor: TensorProto, readers: list[tuple[NodeProto, int]], skipped: Collection[str]
) -> int | None:
    """Return the axis of a weight's channels; None where it is not to be quantized."""
    if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) < 2:
        return None
    axes = [
        None
        if node.name in skipped or position not in _AXES.get(node.op_type, {})
        else _AXES[node.op_type][position](node, len(tensor.dims))
        for node, position in readers
    ]
    # Where readers differ, one of them suits: the scales are right along any axis.
    return axes[0] if axes and None not in axes else None


def _by_channel(array: Array, axis: int | None) -> tuple[tuple[Array, Array], dict[str, int]]:
    """Quantize to int8 with a scale for each channel along `axis`, or one for all."""
    others = tuple(index for index in range(array.ndim) if index != axis)
    highest = np.abs(array).max(axis=others if axis is not None else None, keepdims=True)
    scale = np.where(highest > 0, highest / 127, 1).astype(np.float32)
    whole = np.clip(np.rint(array / scale), -127, 127).astype(np.int8)
    if axis is None:
        return (whole, scale.reshape(())), {}
    return (whole, scale.reshape(-1)), {"axis": axis}


def _in_blocks(array: Array, axis: int) -> tuple[tuple[Array, Array], dict[str, int]]:
    """Quantize to int4 with a scale for each BLOCK weights along `axis`; the last may be short."""
    import ml_dtypes

    starts = np.arange(0, array.shape[axis], BLOCK)
    highest = np.maximum.reduceat(np.abs(array), starts, axis=axis)
    scale = np.where(highest > 0, highest / 7, 1).astype(np.float32)
    spread = np.repeat(scale, BLOCK, axis=axis).take(np.arange(array.shape[axis]), axis=axis)
    whole = np.clip(np.rint(array / spread), -7, 7).astype(ml_dtypes.int4)
    return (whole, scale), {"axis": axis, "block_size": BLOCK}
