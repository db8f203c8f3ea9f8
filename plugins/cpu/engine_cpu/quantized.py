"""Quantization that ONNX Runtime's integer kernels would take for another.

ONNX Runtime fuses DequantizeLinear, an operator and QuantizeLinear into a kernel on integers, by
the types alone. Such a kernel has one scale for each activation, one for each output channel of the
weights, and takes a bias for one of the product of these scales. Where a model has it otherwise,
the fused kernel is wrong, or fails at its first run: MatMul and Gemm with scales along the summed
axis, Conv alike (microsoft/onnxruntime#21712, closed without a change), scales along an axis or in
blocks for activations, a bias of another scale. It also rounds float weights between quantized
values to 8 bits. Seen in 1.23 to 1.32, the newest.

Such nodes alone are kept from it (prepare/unfuse.py) and compute in floats, as ONNX defines them;
all others stay in integers. Read from the model's bytes, without onnx.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from engine.errors import ModelError
from engine.host.interrupts import raised_by_handler
from engine.types import DType, ModelSource, NodeInfo
from engine_cpu.known_issues import version
from engine_cpu.nodes import NOTHING, Body, Needles, bodies_of, held_still, view_of
from engine_cpu.risk import NESTS, holds
from engine_cpu.tensors import Array, array_of, dims_of, dtype_of

DEQUANTIZE, QUANTIZE = "DequantizeLinear", "QuantizeLinear"
_NEEDLES = Needles([DEQUANTIZE])

# Operators that become a kernel on integers, and which of their inputs are values.
VALUES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Mul"), (0, 1)),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax"), (0,)),
    "Concat": tuple(range(64)),
    "Where": (1, 2),
}
_WEIGHTED = frozenset({"Conv", "Gemm", "MatMul"})
# Operators that ONNX Runtime moves QuantizeLinear and its inverse across, or drops between them.
MOVES = frozenset({
    "Clip", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Relu", "Reshape", "Slice",
    "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip
_NEEDS_NO_ZEROS = (1, 28)
_CLOSE = 1e-4  # relative: scales that tools multiply in other precisions are the same

OFF = "session.disable_quant_qdq"
_AXIS = "onnxruntime's integer kernel takes the weights' scales for those of its output's columns"
_ACTIVATION = "onnxruntime's integer kernel has one scale for each activation"
_BIAS = "onnxruntime's integer kernel takes the bias for one of its inputs' scales"
_ZEROS = "onnxruntime before 1.28 wants a zero point for each scale of Gemm's weights"
_ROUNDED = "onnxruntime rounds float weights between quantized values to 8 bits"


class Guard(NamedTuple):
    """Nodes that ONNX Runtime would fuse wrongly.

    names: of values that they make, in subgraphs and functions too. reasons: by the index of those
    in the main graph.
    """

    names: frozenset[str] = frozenset()
    reasons: Mapping[int, str] = MappingProxyType({})


def guard_of(source: ModelSource) -> Guard:
    """Return the nodes to be kept apart; risk.may_quantize says which models may have any."""
    graph = source.graph
    assert graph is not None, "the core reads every ONNX file before a backend does"
    needles = _NEEDLES if holds(graph, NESTS) else NOTHING
    reasons: dict[int, str] = {}
    names: set[str] = set()
    try:
        with held_still(source):
            for body in bodies_of(view_of(source), graph, needles):
                for node, reason in _Fusions(body, source).wrong():
                    names.update(filter(None, node.outputs))
                    if body.nodes is graph.nodes:
                        reasons[node.index] = f"in floats: {reason}"
    except (OSError, ValueError) as error:  # it is no longer what the core has read
        if isinstance(error, ModelError) or raised_by_handler(error):
            raise
        return Guard()
    return Guard(frozenset(names), reasons)


class _Fusions:
    """Nodes of one body that ONNX Runtime would fuse."""

    def __init__(self, body: Body, source: ModelSource) -> None:
        self._body = body
        self._source = source
        self._users: dict[str, list[NodeInfo]] = {}

    def wrong(self) -> Iterator[tuple[NodeInfo, str]]:
        """Yield the nodes that would be fused wrongly, and why."""
        if not any(node.op_type == DEQUANTIZE for node in self._body.nodes):
            return
        for node in self._body.nodes:
            for name in node.inputs:
                self._users.setdefault(name, []).append(node)
        for node in self._body.nodes:
            if node.op_type in VALUES and (reason := self._reason(node)):
                yield node, reason

    def _reason(self, node: NodeInfo) -> str:
        values = [node.inputs[i] for i in VALUES[node.op_type] if i < len(node.inputs)]
        sources = [self._dequantizer(name) for name in values]
        activations = sources[:1] if node.op_type in _WEIGHTED else sources
        is_product = node.op_type in _WEIGHTED or node.op_type == "ConvTranspose"
        if len(sources) < 1 + is_product or activations[0] is None:  # a function of that name
            return ""
        results = list(self._quantizers(node))
        if is_product and sources[1] is None:
            if results and not self._is_made(values[1]):
                return _ROUNDED
            return ""
        if None in sources or node.op_type == "ConvTranspose":
            return ""
        rank = 0 if node.op_type == "AveragePool" else 1  # of a scale that its kernel takes
        if any(not self._has_one_scale(item, rank) for item in (*activations, *results) if item):
            return _ACTIVATION
        if node.op_type in _WEIGHTED and not self._scales_columns(node):
            return _AXIS
        if node.op_type == "Gemm" and version() < _NEEDS_NO_ZEROS and self._lacks_zeros(sources[1]):
            return _ZEROS
        return "" if self._fits_bias(node, *sources) else _BIAS

    def _dequantizer(self, name: str) -> NodeInfo | None:
        """Return the node that a value is dequantized by, perhaps before it is moved."""
        for _ in self._body.nodes:
            node = self._body.producer(name)
            if node is None or not node.inputs:
                return None
            if node.op_type == DEQUANTIZE:
                return node if len(node.inputs) > 1 else None
            if node.op_type not in MOVES:
                return None
            name = node.inputs[0]
        return None

    def _is_made(self, name: str) -> bool:
        """Return True for a value that a node makes of what a caller gives."""
        pending, seen = [name], set()
        while pending:
            name = pending.pop()
            node = self._body.producer(name)
            if node is None:
                if name not in self._body.constants:
                    return True
            elif name not in seen:
                seen.add(name)
                pending += filter(None, node.inputs)
        return False

    def _quantizers(self, node: NodeInfo) -> Iterator[NodeInfo]:
        """Yield what quantizes a node's result, perhaps after a bias is added or it is moved."""
        pending, seen = [node], set()
        while pending:
            node = pending.pop()
            for user in self._users.get(node.outputs[0], ()) if node.outputs else ():
                if user.op_type == QUANTIZE and len(user.inputs) > 1:
                    yield user
                elif user.index not in seen and (
                    user.op_type in MOVES or (user.op_type == "Add" and node.op_type == "MatMul")
                ):
                    seen.add(user.index)
                    pending.append(user)

    def _has_one_scale(self, node: NodeInfo, rank: int = 1) -> bool:
        scale = node.inputs[1]
        made = self._body.producer(scale)
        if made is not None and made.op_type == "DynamicQuantizeLinear":
            return True
        dims = self._dims(scale)
        return dims is not None and len(dims) <= rank and all(size == 1 for size in dims)

    def _dims(self, name: str) -> list[int] | None:
        node = self._body.producer(name)
        if node is not None and node.op_type == "Constant":
            if "value_float" in node.attributes:
                return []
            listed = node.attributes.get("value_floats")
            if isinstance(listed, tuple):
                return [len(listed)]
        tensor = self._body.constant(name)
        return None if tensor is None else dims_of(tensor)

    def _scales_columns(self, node: NodeInfo) -> bool:
        """Return True where the weights have one scale, or one for each channel of the result."""
        turned, name = False, node.inputs[1]
        made = self._body.producer(name)
        while made is not None and made.op_type != DEQUANTIZE:
            if made.op_type == "Transpose":
                if made.attributes.get("perm", (1, 0)) != (1, 0):
                    return False
                turned = not turned
            elif made.op_type != "Identity" or not made.inputs:
                return True  # it is not fused across what changes the shape
            name = made.inputs[0]
            made = self._body.producer(name)
        if made is None or self._has_one_scale(made):
            return True
        dims, sizes = self._dims(made.inputs[1]), self._dims(made.inputs[0])
        axis = made.attributes.get("axis", 1)
        if made.attributes.get("block_size") or dims is None or len(dims) != 1:
            return False
        if sizes is None and (quantized := self._body.producer(made.inputs[0])) is not None:
            sizes = self._dims(quantized.inputs[0]) if quantized.op_type == QUANTIZE else None
        if sizes is None or not isinstance(axis, int):
            return False
        if node.op_type == "Conv":
            return axis % len(sizes) == 0
        if len(sizes) != 2:
            return False
        is_row = bool(node.attributes.get("transB", 0)) != turned
        return axis % 2 == (0 if is_row else 1)

    def _lacks_zeros(self, weights: NodeInfo | None) -> bool:
        if weights is None or self._has_one_scale(weights):
            return False
        return len(weights.inputs) < 3 or not weights.inputs[2]

    def _fits_bias(self, node: NodeInfo, *sources: NodeInfo | None) -> bool:
        """Return True without an int32 bias, or with one of the product of the inputs' scales."""
        if node.op_type not in _WEIGHTED:
            return True
        name = node.inputs[2] if len(node.inputs) > 2 else ""
        if node.op_type == "MatMul":  # it becomes a Gemm with the bias that is added to it
            added = [user for user in self._users.get(node.outputs[0], ()) if user.op_type == "Add"]
            others = [item for user in added for item in user.inputs if item != node.outputs[0]]
            name = others[0] if others else ""
        bias = self._body.producer(name) if name else None
        if bias is None or bias.op_type != DEQUANTIZE or not self._is_int32(bias.inputs[0]):
            return True
        if len(bias.inputs) > 2 and bias.inputs[2]:
            zeros = self._elements(bias.inputs[2])
            if zeros is None or zeros.any():
                return False
        scales = [self._scales(made.inputs[1]) for made in (*sources, bias) if made is not None]
        if len(scales) != 3 or any(item is None for item in scales):
            return False
        x, weights, given = (item.astype(np.float64) for item in scales if item is not None)
        product = x * weights
        if given.size not in (1, product.size) and product.size != 1:
            return False
        return bool(np.all(np.abs(given - product) <= _CLOSE * np.abs(product)))

    def _is_int32(self, name: str) -> bool:
        tensor = self._body.constant(name)
        kind = self._body.types.get(name) if tensor is None else dtype_of(tensor)
        return kind in (None, DType.INT32)

    def _scales(self, name: str) -> Array | None:
        node = self._body.producer(name)
        if node is not None and node.op_type == "Constant":
            given = node.attributes.get("value_float", node.attributes.get("value_floats"))
            if given is not None:
                return np.atleast_1d(np.asarray(given, np.float64))
        return self._elements(name)

    def _elements(self, name: str) -> Array | None:
        tensor = self._body.constant(name)
        return None if tensor is None else array_of(tensor, self._source)
