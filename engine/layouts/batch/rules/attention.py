"""Attention in one operator: sequences of a sample meet, those of others do not."""

from __future__ import annotations

from collections.abc import Sequence

from engine.layouts.batch.node import Node, require, require_beside
from engine.layouts.batch.sizes import Dim
from engine.layouts.batch.values import Shape, Value, divided, whole


def _own(node: Node, indices: Sequence[int]) -> tuple[bool, Dim]:
    """Return whether these inputs are divided along axis 0, and their size there."""
    given = [value for index in indices if (value := node.maybe(index)) is not None]
    return require_beside(given), given[0].dims[0]


def _broadcast_to(node: Node, index: int, rank: int, is_divided: bool) -> None:
    """Raise Mixes unless an input that is broadcast to `rank` axes goes with the samples."""
    value = node.maybe(index)
    if value is None:
        return
    if value.is_divided:
        require(is_divided and value.axis == 0 and value.rank == rank, "its mask is of others")
    elif is_divided and value.rank >= rank:
        require(value.dims[value.rank - rank] == 1, "its mask is another for each sample's number")


def _made(is_divided: bool, shapes: Sequence[Shape], count: int) -> list[Value]:
    return [divided(0, shape) if is_divided else whole(shape) for shape in shapes[:count]]


def attention(node: Node) -> list[Value]:
    """Attention of ONNX."""
    is_divided, size = _own(node, (0, 1, 2, 4, 5, 6))
    _broadcast_to(node, 3, 4, is_divided)
    query, key, value = (node.input(index) for index in range(3))
    new = node.symbols.new
    if query.rank == 4:
        heads, kv_heads = query.dims[1], key.dims[1]
        shape: Shape = (*query.dims[:3], value.dims[3])
        width: Dim = key.dims[3]
    else:
        heads = int(node.attributes["q_num_heads"])
        kv_heads = int(node.attributes["kv_num_heads"])
        other = value.dims[2]
        each = other // kv_heads if isinstance(other, int) and isinstance(kv_heads, int) else new()
        shape, width = (*query.dims[:2], heads * each), new()
    cache: list[Shape] = [(size, kv_heads, new(), width), (size, kv_heads, new(), new())]
    scores: Shape = (size, heads, query.dims[-2], new())
    return _made(is_divided, [shape, *cache, scores], node.count)


def multi_head(node: Node) -> list[Value]:
    """MultiHeadAttention of com.microsoft with queries, keys and values apart."""
    is_divided, size = _own(node, (0, 1, 2, 4, 6, 7))
    node.require_whole(3)
    require(node.has(1) and node.has(2), "its projections are packed")
    mask = node.maybe(4)
    require(mask is None or mask.rank > 1, "its mask is packed")
    _broadcast_to(node, 5, 4, is_divided)
    require(len(node.inputs) <= 8, "it has inputs that are not followed")
    query, value = node.input(0), node.input(2)
    require(query.rank == 3 and value.rank == 3, "its inputs are packed")
    shape: Shape = (*query.dims[:2], value.dims[2])
    new, heads = node.symbols.new, int(node.attributes["num_heads"])
    cache: Shape = (size, heads, new(), new())
    return _made(is_divided, [shape, cache, cache, cache], node.count)


def fused(node: Node) -> list[Value]:
    """Attention of com.microsoft, which has the three projections in it."""
    x = node.input(0)
    node.require_whole(1, 2)
    require(len(node.inputs) <= 4 or not any(map(node.has, range(4, 7))), "it has a past")
    mask = node.maybe(3)
    if not x.is_divided:
        node.require_whole(3)
    elif mask is not None:
        require(
            mask.is_divided and mask.axis == 0 and mask.size == x.size and mask.rank > 1,
            "its mask is not divided along the batch, or packed",
        )
    require(x.axis <= 0, "the batch is not its first axis")
    widths = node.attributes.get("qkv_hidden_sizes")
    total = node.input(1).dims[1]
    own = widths[2] if widths else total // 3 if isinstance(total, int) else node.symbols.new()
    shape: Shape = (*x.dims[:-1], own)
    require(not node.makes(1), "it gives a cache")
    return _made(x.is_divided, [shape], 1)


def rotary(node: Node) -> list[Value]:
    """RotaryEmbedding: positions are each sample's own, or the same for all."""
    x = node.input(0)
    require(x.axis <= 0, "the batch is not its first axis")
    is_microsoft = node.proto.domain == "com.microsoft"
    tables, places = ((2, 3), 1) if is_microsoft else ((1, 2), 3)
    own = node.maybe(places)
    if not x.is_divided:
        node.require_whole(1, 2, 3)
    for index in tables:
        table = node.input(index)
        if table.is_divided:
            require(
                not is_microsoft and own is None and table.axis == 0 and table.size == x.size,
                "its tables are of other samples",
            )
        elif own is None and x.is_divided:
            require(table.rank == 3 and table.dims[0] == 1, "its tables have the batch's axis")
    if own is not None and x.is_divided:
        require(
            (own.is_divided and own.axis == 0 and own.size == x.size)
            or (own.is_whole and own.rank == 1 and is_microsoft),
            "its positions are not divided along the batch",
        )
    return [divided(0, x.dims) if x.is_divided else whole(x.dims)]


def embedding_norm(node: Node) -> list[Value]:
    """EmbedLayerNormalization of com.microsoft."""
    is_divided, _ = _own(node, (0, 1, 7))
    node.require_whole(2, 3, 4, 5, 6)
    places = node.maybe(8)
    ids = node.input(0)
    if not is_divided:
        node.require_whole(8)
    elif places is not None:
        own = places.is_divided and places.axis == 0 and places.size == ids.size
        require(own or (places.is_whole and places.dims[0] == 1), "its positions are of others")
    shape: Shape = (*ids.dims, node.input(2).dims[1])
    return _made(is_divided, [shape, ids.dims[:1], shape], node.count)
