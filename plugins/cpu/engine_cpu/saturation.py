"""Products of uint8 and int8 that ONNX Runtime's kernels may saturate on this processor.

On x86 without VNNI they multiply by vpmaddubsw, which adds two products in 16 bits, and ends at
32767 and -32768: 255 * 64 * 2 fits, 255 * 65 * 2 does not. Two int8, or two uint8, are multiplied
otherwise, and exactly. The weights say whether a sum can be too large; what the activations will be
is not known. Read from the model's bytes, without onnx.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from engine.errors import ModelError
from engine.host import processor
from engine.host.interrupts import raised_by_handler
from engine.types import DType, ModelSource, NodeInfo
from engine_cpu.nodes import NOTHING, Body, Needles, bodies_of, held_still, view_of
from engine_cpu.risk import NESTS, QUANTIZED, holds
from engine_cpu.tensors import Array, array_of, dtype_of

EXACT = "session.x64quantprecision"
"""Raw entry of [cpu_context]; with "1", ONNX Runtime makes uint8 of int8 weights."""

NOTE = "may saturate: this processor adds products of uint8 and int8 in 16 bits"
_SHOWN = 3  # names in a warning
_EXACT_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8"})
_MOST = 128  # of the sum of two weights: 255 * 128 is the largest multiple below 32768

# Where each operator has its activations and its weights.
_FACTORS: Mapping[str, tuple[int, int]] = {
    "MatMulInteger": (0, 1), "ConvInteger": (0, 1), "QLinearMatMul": (0, 3), "QLinearConv": (0, 3),
    "QGemm": (0, 3), "QAttention": (0, 1), "MatMulIntegerToFloat": (0, 1),
    "DynamicQuantizeMatMul": (0, 1),
}  # fmt: skip
_FLOATS = frozenset({"Conv", "Gemm", "MatMul"})  # fused with the DequantizeLinear before them
_MOVES = frozenset({"Flatten", "Identity", "MaxPool", "Reshape", "Squeeze", "Transpose",
                    "Unsqueeze"})  # fmt: skip


def saturates() -> bool:
    """Return True where the processor is known to add products of uint8 and int8 in 16 bits."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    flags = processor.fields(processor.CPUINFO).get("flags")
    return flags is not None and _EXACT_FLAGS.isdisjoint(flags.split())


class Found(NamedTuple):
    """Nodes whose products may saturate. names: all, as a reader knows them.

    notes: by the index of those in the main graph.
    """

    names: Sequence[str] = ()
    notes: Mapping[int, str] = MappingProxyType({})


def found_in(source: ModelSource) -> Found:
    """Return the nodes whose products may saturate, with those in subgraphs and functions."""
    graph = source.graph
    assert graph is not None, "the core reads every ONNX file before a backend does"
    needles = Needles(QUANTIZED) if holds(graph, NESTS) else NOTHING
    names: list[str] = []
    notes: dict[int, str] = {}
    try:
        with held_still(source):
            for body in bodies_of(view_of(source), graph, needles):
                for node in body.nodes:
                    if _may_saturate(node, body, source):
                        names.append(f"{node.op_type} {node.name!r}")
                        if body.nodes is graph.nodes:
                            notes[node.index] = NOTE
    except (OSError, ValueError) as error:  # it is no longer what the core has read
        if isinstance(error, ModelError) or raised_by_handler(error):
            raise
        return Found()
    return Found(names, notes)


def warn(source: ModelSource, names: Sequence[str]) -> None:
    """Log which nodes may saturate, and what to do."""
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    logging.getLogger("engine").warning(
        "%s: products may saturate, which makes results wrong, in %s (nodes: %d): on x86 without "
        "VNNI, as here, onnxruntime adds products of uint8 and int8 in 16 bits; [cpu_context] "
        "%s = 1 makes them exact, and so do weights of 7 bits: docs/convert.md, Saturation",
        source.name, shown, len(names), EXACT,
    )  # fmt: skip


def _may_saturate(node: NodeInfo, body: Body, source: ModelSource) -> bool:
    if node.op_type in _FLOATS:
        values, weights = (_quantized(name, body) for name in (*node.inputs, "", "")[:2])
    elif node.op_type in _FACTORS:
        first, second = _FACTORS[node.op_type]
        if len(node.inputs) <= second:
            return False
        values, weights = node.inputs[first], node.inputs[second]
    else:
        return False
    if not values or not weights or _type(weights, body) is not DType.INT8:
        return False
    if node.op_type != "DynamicQuantizeMatMul" and _type(values, body) is DType.INT8:
        return False
    tensor = body.constant(weights)
    elements = None if tensor is None else array_of(tensor, source)
    return elements is None or _has_large_pair(elements)


def _quantized(name: str, body: Body) -> str:
    """Return what a value is dequantized from, perhaps before it is moved; "" for none."""
    for _ in body.nodes:
        node = body.producer(name)
        if node is None or node.op_type not in _MOVES:
            break
        name = node.inputs[0]
    else:
        return ""
    return node.inputs[0] if node is not None and node.op_type == "DequantizeLinear" else ""


def _type(name: str, body: Body) -> DType | None:
    """Return the element type of a quantized value, None where it is not known."""
    for _ in body.nodes:
        if (tensor := body.constant(name)) is not None:
            return dtype_of(tensor)
        node = body.producer(name)
        if node is None:
            return body.types.get(name)
        if node.op_type == "DynamicQuantizeLinear":
            return DType.UINT8
        if node.op_type == "QuantizeLinear":
            zero = node.inputs[2] if len(node.inputs) > 2 else ""
            if (tensor := body.constant(zero)) is not None:
                return dtype_of(tensor)
            said = node.attributes.get("output_dtype", 0)
            return DType.from_onnx(said) if said and isinstance(said, int) else DType.UINT8
        if node.op_type not in _MOVES:
            return None
        name = node.inputs[0]
    return None


def _has_large_pair(weights: Array) -> bool:
    """Return True where two weights of one sign have a sum that saturates."""
    if weights.size < 2 or (2 * int(weights.max()) <= _MOST and 2 * int(weights.min()) >= -_MOST):
        return False
    ends = np.partition(weights, (1, -2)).astype(np.int64)
    return bool(ends[-1] + ends[-2] > _MOST or ends[0] + ends[1] < -_MOST)
