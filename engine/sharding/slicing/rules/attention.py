"""Attention in one operator: heads are divided, and with them queries, keys, values and caches."""

from __future__ import annotations

from collections.abc import Iterator

from engine.sharding.slicing.rules.op import Change, Local, Op, Way, set_attribute
from engine.sharding.slicing.states import State, shard


def attention(op: Op) -> Iterator[Way]:
    """Attention of operator set 23: with heads as an axis of their own, or in the last one."""
    query, key, mask = (op.shape(op.input(index)) for index in (0, 1, 3))
    if query is None or key is None:
        return
    four = len(query) == 4
    heads = query[1] if four else op.attribute("q_num_heads", 0)
    kv_heads = key[1] if four else op.attribute("kv_num_heads", 0)
    if not (op.splits(heads) and op.splits(kv_heads)):
        return
    own, cache = shard(1 if four else 2), shard(1)
    inputs: dict[int, State] = {0: own, 1: own, 2: own, 4: cache, 5: cache}
    if mask is None and op.input(3):
        return
    if mask is not None and len(mask) > 2 and mask[-3] != 1:  # broadcast to four dims
        inputs[3] = shard(len(mask) - 3)
    outputs = {0: own, 1: cache, 2: cache, 3: cache}
    yield op.way(inputs, outputs, None if four else _heads("q_num_heads", "kv_num_heads"))


def multi_head(op: Op) -> Iterator[Way]:
    """MultiHeadAttention of com.microsoft, with queries, keys and values of three dims."""
    shapes = [op.shape(op.input(index)) for index in range(3)]
    if any(shape is None or len(shape) != 3 for shape in shapes):
        return
    heads = op.attribute("num_heads", 0)
    widths = [int(shape[2] or 0) for shape in shapes if shape and isinstance(shape[2], int)]
    if not op.splits(heads) or len(widths) < 3:
        return
    own, cache = shard(2), shard(1)
    inputs = {0: own, 1: own, 2: own, 3: shard(0, tuple(widths)), 6: cache, 7: cache}
    bias = op.shape(op.input(5)) if op.input(5) else None
    if op.input(5) and (bias is None or len(bias) != 4):
        return
    if bias is not None and bias[1] != 1:
        inputs[5] = cache
    yield op.way(inputs, {0: own, 1: cache, 2: cache, 3: cache}, _heads("num_heads"))


def grouped_query(op: Op) -> Iterator[Way]:
    """GroupQueryAttention of com.microsoft, with keys and values or packed with the queries."""
    query, heads = op.shape(op.input(0)), op.attribute("num_heads", 0)
    kv_heads = op.attribute("kv_num_heads", 0)
    if query is None or len(query) != 3 or not (op.splits(heads) and op.splits(kv_heads)):
        return
    width = query[2]
    if not isinstance(width, int) or len(op.inputs) > 9:
        return
    own, cache = shard(2), shard(1)
    inputs = {3: cache, 4: cache}
    if op.input(1):
        inputs |= {0: own, 1: own, 2: own}
    else:
        head = width // (heads + 2 * kv_heads)
        inputs[0] = shard(2, (heads * head, kv_heads * head, kv_heads * head))
    change = _heads("num_heads", "kv_num_heads")
    yield op.way(inputs, {0: own, 1: cache, 2: cache}, change)


def fused(op: Op) -> Iterator[Way]:
    """Attention of com.microsoft, which has the three projections in it."""
    weights, heads = op.shape(op.input(1)), op.attribute("num_heads", 0)
    if weights is None or len(weights) != 2 or not op.splits(heads):
        return
    width = weights[1]
    if not isinstance(width, int) or any(op.input(index) for index in (4, 5, 6)):
        return
    sizes = tuple(op.attribute("qkv_hidden_sizes") or (width // 3,) * 3)
    inputs = {1: shard(1, sizes), 2: shard(0, sizes)}
    yield op.way(inputs, {0: shard(2), 1: shard(2)}, _fused_heads(sizes))


def _fused_heads(sizes: tuple[int, ...]) -> Change:
    def change(local: Local) -> None:
        _heads("num_heads")(local)
        if any(attribute.name == "qkv_hidden_sizes" for attribute in local.node.attribute):
            own = [size // local.ranks for size in sizes]
            set_attribute(local.node, "qkv_hidden_sizes", own)

    return change


def _heads(*names: str) -> Change:
    """Return a change that gives a rank its part of the heads."""

    def change(local: Local) -> None:
        for attribute in list(local.node.attribute):
            if attribute.name in names:
                set_attribute(local.node, attribute.name, attribute.i // local.ranks)

    return change


def rotary(op: Op) -> Iterator[Way]:
    """RotaryEmbedding with heads as an axis of their own; tables of sines are whole."""
    shape = op.shape(op.inputs[0])
    if shape is None or len(shape) != 4 or op.node.domain not in ("", "ai.onnx"):
        return
    for state in op.states(op.inputs[0]):
        if state == shard(1):
            yield op.way({0: state}, {0: state})


def packed_columns(op: Op) -> Iterator[Way]:
    """MatMulNBits of com.microsoft, by columns: its weights have them in the first axis."""
    shape, columns = op.shape(op.input(1)), op.attribute("N", 0)
    made = op.shape(op.outputs[0])
    if shape is None or made is None or not op.splits(columns) or op.input(4):
        return
    beside = [op.shape(op.input(index)) for index in (2, 3, 5) if op.input(index)]
    if any(not size or not isinstance(size[0], int) or size[0] % columns for size in beside):
        return
    inputs = {1: shard(0), 2: shard(0), 3: shard(0), 5: shard(0)}

    def change(local: Local) -> None:
        set_attribute(local.node, "N", columns // local.ranks)

    yield op.way(inputs, {0: shard(len(made) - 1)}, change)
