"""Quantization of a model's inputs and outputs, as its DequantizeLinear and QuantizeLinear say it.

Only constants in the model file count: those in external data are not read here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import numpy as np

from engine.formats.onnx import limits
from engine.formats.onnx.tensor import Tensor
from engine.formats.protobuf import Budget, signed, varints
from engine.types import DType, NodeInfo, Quantization, TensorSpec

DOMAINS = frozenset(("", "ai.onnx", "com.microsoft"))  # the last, ONNX Runtime's, has more types

Array: TypeAlias = np.ndarray[Any, Any]

_FLOATS = frozenset((DType.FLOAT32, DType.FLOAT16, DType.FLOAT64, DType.BFLOAT16))


class Quantizations:
    """Quantization of values of a main graph.

    constant: gives the tensor that is the constant of a name. hidden: names that bodies of nodes
    read too.
    """

    def __init__(
        self,
        nodes: Collection[NodeInfo],
        constant: Callable[[str], Tensor | None],
        hidden: Collection[str],
        budget: Budget,
    ) -> None:
        self._constant = constant
        self._budget = budget
        self._values = {  # of Constant nodes that hold plain numbers
            node.outputs[0]: node.attributes
            for node in nodes
            if node.op_type == "Constant" and node.domain in DOMAINS and len(node.outputs) == 1
        }
        self._readers: dict[str, list[NodeInfo | None]] = defaultdict(list)
        self._makers: dict[str, NodeInfo] = {}
        for node in nodes:
            for index, name in enumerate(node.inputs):
                is_dequantized = _is(node, "DequantizeLinear") and not index
                self._readers[name].append(node if is_dequantized else None)
            if _is(node, "QuantizeLinear") and node.outputs:
                self._makers[node.outputs[0]] = node
        for name in hidden:
            self._readers[name].append(None)

    def of_input(self, spec: TensorSpec) -> Quantization | None:
        """Return what all readers of an input make of its integers; None where they differ."""
        readers = self._readers.get(spec.name, ())
        found = {None if node is None else self._of(node, spec) for node in readers}
        return found.pop() if len(found) == 1 else None

    def of_output(self, spec: TensorSpec) -> Quantization | None:
        """Return how an output was quantized; None where no QuantizeLinear has made it."""
        node = self._makers.get(spec.name)
        return None if node is None else self._of(node, spec)

    def _of(self, node: NodeInfo, spec: TensorSpec) -> Quantization | None:
        """Return a node's parameters; None where they are no constants, or are of blocks."""
        if node.attributes.get("block_size") or spec.dtype in _FLOATS or len(node.inputs) < 2:
            return None
        scale = self._numbers(node.inputs[1])
        if scale is None or not scale.size or scale.dtype.kind != "f":
            return None
        zero_point: Array | None = np.zeros(scale.shape, np.int64)
        if len(node.inputs) > 2 and node.inputs[2]:
            zero_point = self._numbers(node.inputs[2])
        if zero_point is None or zero_point.size != scale.size or zero_point.dtype.kind not in "iu":
            return None
        axis = None
        if scale.size != 1:
            axis = _axis(node, spec, scale.size)
            if axis is None:
                return None
        return Quantization(
            scale=tuple(scale.ravel().tolist()),
            zero_point=tuple(zero_point.ravel().tolist()),
            axis=axis,
        )

    def _numbers(self, name: str) -> Array | None:
        tensor = self._constant(name)
        if tensor is not None:
            is_small = tensor.shape == () or (
                len(tensor.shape) == 1 and tensor.shape[0] <= limits.SHAPE_ELEMENTS
            )
            return numbers(tensor, self._budget) if is_small else None
        attributes = self._values.get(name, {})
        value = attributes.get("value_float", attributes.get("value_floats"))
        return None if value is None else np.array(value, np.float32)


def _is(node: NodeInfo, operator: str) -> bool:
    return node.op_type == operator and node.domain in DOMAINS


def _axis(node: NodeInfo, spec: TensorSpec, count: int) -> int | None:
    """Return the axis of parameters, not negative; None where the shape does not go with it."""
    axis = node.attributes.get("axis", 1)
    if not isinstance(axis, int):
        return None
    if spec.shape is None:
        return axis if axis >= 0 else None
    axis += len(spec.shape) if axis < 0 else 0
    if not 0 <= axis < len(spec.shape):
        return None
    size = spec.shape[axis]
    return axis if size == count or not isinstance(size, int) else None


def numbers(tensor: Tensor, budget: Budget) -> Array | None:
    """Return a tensor's elements, of up to 64 bits; None where they are not in the model file."""
    dtype = tensor.dtype
    plain = _PLAIN.get(dtype)
    count = int(np.prod(tensor.shape, dtype=np.int64))
    if tensor.location:
        return None
    if tensor.raw is not None:
        if plain is not None:
            found = np.frombuffer(tensor.raw, plain)
        elif dtype is DType.BFLOAT16:
            found = _widened(np.frombuffer(tensor.raw, "<u2"))
        elif dtype in _SMALL:
            found = _unpacked(np.frombuffer(tensor.raw, np.uint8), dtype)[:count]
        else:
            return None
    elif plain in ("<f4", "<f8"):
        found = np.frombuffer(b"".join(tensor.packed), plain)
    else:
        stored = [signed(value) for part in tensor.packed for value in varints(part, budget)]
        if dtype in _SMALL:
            found = _unpacked(np.array(stored, np.int64).astype(np.uint8), dtype)[:count]
        elif dtype is DType.FLOAT16:
            found = np.array(stored, np.int64).astype("<u2").view("<f2")
        elif dtype is DType.BFLOAT16:
            found = _widened(np.array(stored, np.int64).astype("<u2"))
        elif plain is not None:
            found = np.array(stored, np.int64).astype(plain)
        else:
            return None
    return found.reshape(tensor.shape) if found.size == count else None  # else it was not packed


_PLAIN: Mapping[DType, str] = {
    DType.FLOAT32: "<f4", DType.FLOAT64: "<f8", DType.FLOAT16: "<f2",
    DType.INT8: "i1", DType.UINT8: "u1", DType.INT16: "<i2", DType.UINT16: "<u2",
    DType.INT32: "<i4", DType.UINT32: "<u4", DType.INT64: "<i8",
}  # fmt: skip
_SMALL = frozenset((DType.INT4, DType.UINT4, DType.INT2, DType.UINT2))


def _widened(bits: Array) -> Array:
    """Return bfloat16s, given by their bits, as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _unpacked(data: Array, dtype: DType) -> Array:
    """Return the integers of several a byte, the first in the lowest bits."""
    bits = dtype.bits
    found = (data[:, None].astype(np.int64) >> np.arange(0, 8, bits)) & ((1 << bits) - 1)
    if dtype in (DType.INT4, DType.INT2):
        found = np.where(found >= 1 << (bits - 1), found - (1 << bits), found)
    return found.ravel()
