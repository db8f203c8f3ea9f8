"""Shapes of what operators of com.microsoft make, which onnx's inference does not know."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto, NodeProto, TypeProto, helper

from engine.types import Dim

_AS_FIRST = frozenset(
    ("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "SkipLayerNormalization",
     "SkipSimplifiedLayerNormalization", "GroupQueryAttention", "RotaryEmbedding")
)  # fmt: skip


def added(proto: ModelProto, types: Mapping[str, TypeProto]) -> int:
    """Declare in a model the shapes that follow from those known; returns how many are new."""
    declared = {value.name for value in proto.graph.value_info}
    known = {**types, **{value.name: value.type for value in proto.graph.input}}
    sizes = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    count = 0
    for node in proto.graph.node:
        if node.domain != "com.microsoft" or node.output[0] in declared:
            continue
        first = known.get(node.input[0])
        if first is None or not first.tensor_type.HasField("shape"):
            continue
        shape = _made(node, _dims(first), sizes)
        if shape is not None:
            value = helper.make_tensor_value_info(
                node.output[0], first.tensor_type.elem_type, list(shape)
            )
            proto.graph.value_info.append(value)
            count += 1
    return count


def _dims(kind: TypeProto) -> tuple[Dim, ...]:
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in kind.tensor_type.shape.dim
    )


def _made(
    node: NodeProto, first: tuple[Dim, ...], sizes: Mapping[str, tuple[int, ...]]
) -> tuple[Dim, ...] | None:
    numbers = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    kind = node.op_type
    if kind == "MultiHeadAttention" and len(first) == 3 and len(node.input) > 2 and node.input[2]:
        return first  # or as wide as the values, which nobody makes wider
    if kind == "GroupQueryAttention" and not node.input[1]:
        heads, others = numbers["num_heads"], numbers["kv_num_heads"]
        width = first[-1]
        own = width // (heads + 2 * others) * heads if isinstance(width, int) else None
        return (*first[:-1], own)
    if kind == "Attention" and len(node.input) > 1 and node.input[1] in sizes:
        widths = numbers.get("qkv_hidden_sizes")
        return (*first[:-1], widths[2] if widths else sizes[node.input[1]][1] // 3)
    if kind == "MatMulNBits":
        return (*first[:-1], numbers["N"])
    return first if kind in _AS_FIRST else None
