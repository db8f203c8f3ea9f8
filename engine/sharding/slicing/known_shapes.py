"""Shapes that operators have whatever they are given, where onnx's inference says nothing.

Behind a Reshape to a shape that is computed, onnx knows not even how many axes there are, and so
nothing of what follows. But a vector of three entries makes three axes, a Gemm makes two, and its
weights say how many columns it takes and makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from engine.formats.onnx.infer import shape_of
from engine.types import Dim

Shape: TypeAlias = "tuple[Dim, ...]"

_LIKE_FIRST = frozenset(("GroupNormalization", "LayerNormalization", "RMSNormalization",
                         "InstanceNormalization", "BatchNormalization"))  # fmt: skip
_LIKE_FIRST_OF_MICROSOFT = frozenset(
    ("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "SkipLayerNormalization",
     "SkipSimplifiedLayerNormalization", "GroupQueryAttention", "RotaryEmbedding")
)  # fmt: skip
_RECURRENT = frozenset(("LSTM", "GRU", "RNN"))
_MOST_ENTRIES = 16
_DEEPEST = 32


def added(proto: ModelProto, types: Mapping[str, TypeProto]) -> int:
    """Declare in a model the shapes that follow from those known; returns how many are new."""
    known = _Known(proto, types)
    count = 0
    for node in proto.graph.node:
        rule = _FOLLOWS.get(node.domain)
        for name, like, shape in rule(node, known) if rule else ():
            count += known.declare(name, like, shape)
    return count


class _Known:
    """The known shapes of a model's tensors, and what has been declared beside it."""

    def __init__(self, proto: ModelProto, types: Mapping[str, TypeProto]) -> None:
        self._graph = proto.graph
        self._types = {**types, **{value.name: value.type for value in proto.graph.input}}
        self._weights = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._makers = {name: node for node in proto.graph.node for name in node.output if name}
        self._declared = {value.name: value for value in proto.graph.value_info}

    def shape(self, name: str) -> Shape | None:
        """Return a shape as far as it is known."""
        if name in self._weights:
            return tuple(self._weights[name].dims)
        return shape_of(self._types.get(name))

    def is_weight(self, name: str) -> bool:
        """Return whether a tensor is held by the file."""
        return name in self._weights

    def declare(self, name: str, like: str, shape: Shape) -> bool:
        """Declare the shape of a tensor that has none, and the type of another; False if it has.

        The type stays that which the file says, where it says one.
        """
        if not name or name in self._weights or self.shape(name) is not None:
            return False
        own = self._types.get(name) or self._types.get(like)
        weight = self._weights.get(like)
        dtype = own.tensor_type.elem_type if own is not None else 0
        dtype = dtype or (weight.data_type if weight is not None else 0)
        value = self._declared.get(name)
        if not dtype or (value is not None and value.type.tensor_type.HasField("shape")):
            return False
        made = helper.make_tensor_value_info(name, dtype, list(shape))
        if value is None:
            self._graph.value_info.append(made)
        else:
            value.type.CopyFrom(made.type)
        self._types[name] = made.type
        return True

    def entries(self, name: str, depth: int = 0) -> list[int | None] | None:
        """Return what a vector of sizes holds, as far as it is known; None for an open length."""
        weight = self._weights.get(name)
        if weight is not None:
            is_small = len(weight.dims) < 2 and int(np.prod(weight.dims)) <= _MOST_ENTRIES
            if not is_small or weight.data_location == TensorProto.EXTERNAL:
                return None
            return [int(entry) for entry in numpy_helper.to_array(weight).reshape(-1)]
        node = self._makers.get(name)
        if node is not None and depth < _DEEPEST:
            if node.op_type == "Concat":
                parts = [self.entries(part, depth + 1) for part in node.input]
                if all(part is not None for part in parts):
                    return [entry for part in parts for entry in part or ()]
            elif node.op_type in ("Cast", "Identity", "Unsqueeze", "Squeeze"):
                found = self.entries(node.input[0], depth + 1)
                if found is not None:
                    return found
        shape = self.shape(name)
        if shape is None or len(shape) > 1:
            return None
        length = shape[0] if shape else 1
        return [None] * length if isinstance(length, int) and length <= _MOST_ENTRIES else None


class _Fact(NamedTuple):
    """A tensor, one whose type it has, and its shape."""

    name: str
    like: str
    shape: Shape


def _follows(node: NodeProto, known: _Known) -> Iterator[_Fact]:
    """Yield what a node says of the tensors that it takes and makes."""
    kind = node.op_type
    inputs = [*node.input, "", "", ""]
    if kind in _LIKE_FIRST:
        shape = known.shape(inputs[0])
        if shape is not None:
            yield _Fact(node.output[0], inputs[0], shape)
    elif kind == "Reshape":
        entries = known.entries(inputs[1])
        if entries is not None:
            sizes = tuple(entry if entry is not None and entry > 0 else None for entry in entries)
            yield _Fact(node.output[0], inputs[0], sizes)
    elif kind in ("Gemm", "Conv", "ConvTranspose") or kind in _RECURRENT:
        weights = known.shape(inputs[1])
        if weights is None:
            return
        given, *made = _of_weights(node, weights)
        if given is not None:
            yield _Fact(inputs[0], inputs[1], given)
        for name, shape in zip(node.output, made):
            if shape is not None:
                yield _Fact(name, inputs[1], shape)


def _of_weights(node: NodeProto, weights: Shape) -> Sequence[Shape | None]:
    """Return the shapes of a node's first input, and of its outputs, as its weights give them."""
    kind = node.op_type
    numbers = {a.name: a.i for a in node.attribute}
    if kind == "Gemm" and len(weights) == 2:
        inner, outer = weights[::-1] if numbers.get("transB") else weights
        return ((inner, None) if numbers.get("transA") else (None, inner)), (None, outer)
    if kind in _RECURRENT and len(weights) == 3:
        directions, rows, inner = weights
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
        hidden = rows // gates if isinstance(rows, int) else None
        state: Shape = (directions, None, hidden)
        every: Shape = (None, directions, None, hidden)
        if numbers.get("layout"):
            state, every = (None, directions, hidden), (None, None, directions, hidden)
        return (None, None, inner), every, state, state
    if kind in ("Conv", "ConvTranspose") and len(weights) > 2:
        groups, rest = numbers.get("group") or 1, (None,) * (len(weights) - 2)
        first, second = weights[:2]
        more = second * groups if isinstance(second, int) else None
        if kind == "Conv":
            return (None, more, *rest), (None, first, *rest)
        return (None, first, *rest), (None, more, *rest)
    return (None, None)


def _follows_of_microsoft(node: NodeProto, known: _Known) -> Iterator[_Fact]:
    """Yield what an operator of com.microsoft makes, which onnx's inference does not know."""
    first = known.shape(node.input[0])
    shape = None if first is None else _of_microsoft(node, first, known)
    if shape is not None:
        yield _Fact(node.output[0], node.input[0], shape)


def _of_microsoft(node: NodeProto, first: Shape, known: _Known) -> Shape | None:
    numbers = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    kind, inputs = node.op_type, [*node.input, "", ""]
    if kind == "MultiHeadAttention" and len(first) == 3 and inputs[2]:
        return first  # or as wide as the values, which nobody makes wider
    if kind == "GroupQueryAttention" and not inputs[1]:
        heads, others = numbers["num_heads"], numbers["kv_num_heads"]
        width = first[-1]
        own = width // (heads + 2 * others) * heads if isinstance(width, int) else None
        return (*first[:-1], own)
    if kind == "Attention" and known.is_weight(inputs[1]):
        widths, columns = numbers.get("qkv_hidden_sizes"), (known.shape(inputs[1]) or ())[1]
        return (*first[:-1], widths[2] if widths else int(columns or 0) // 3)
    if kind == "MatMulNBits":
        return (*first[:-1], numbers["N"])
    return first if kind in _LIKE_FIRST_OF_MICROSOFT else None


_FOLLOWS: dict[str, Callable[[NodeProto, _Known], Iterator[_Fact]]] = {
    "": _follows,
    "ai.onnx": _follows,
    "com.microsoft": _follows_of_microsoft,
}
