"""Steps of random models: some treat each row alone, by others rows see each other."""

from __future__ import annotations

import numpy as np
from random_builder import FLOAT, INT64, WIDTH, Builder, Step


def choose(b: Builder, steps: dict[str, Step]) -> tuple[str, Step]:
    """Return the name of a step, and the step."""
    return list(steps.items())[b.chance.integers(len(steps))]


# ----------------------------------------------------------------- steps that treat each row alone


def attention(b: Builder, v: str) -> str:
    cut = b.shaped(v, 3, 4)
    keys = b.turned(b.MatMul(cut, b.weight(4, 4)), 0, 2, 1)
    scores = b.Softmax(b.MatMul(b.MatMul(cut, b.weight(4, 4)), keys), axis=-1)
    return b.flat(b.MatMul(scores, cut))


def heads(b: Builder, v: str) -> str:
    """Attention as torch writes it: positions first, then batch and heads in one axis."""
    first = b.turned(b.shaped(v, 3, 4), 1, 0, 2)  # [3, n, 4]
    doubled = b.Mul(b.rows(v), b.ints(2))
    shape = b.Concat(b.ints(3), doubled, b.ints(2), axis=0)
    parts = b.turned(b.Reshape(first, shape), 1, 0, 2)  # [2n, 3, 2]
    scores = b.MatMul(parts, b.turned(parts, 0, 2, 1))
    mixed = b.MatMul(b.Softmax(scores, axis=-1), parts)
    back = b.Concat(b.ints(3), b.rows(v), b.ints(4), axis=0)
    joined = b.Reshape(b.turned(mixed, 1, 0, 2), back)
    return b.flat(b.turned(joined, 1, 0, 2))


def lstm(b: Builder, v: str) -> str:
    sequence = b.turned(b.shaped(v, 3, 4), 1, 0, 2)
    kind, gates = (("LSTM", 4), ("GRU", 3), ("RNN", 1))[b.chance.integers(3)]
    weights = [b.weight(1, gates * 4, 4), b.weight(1, gates * 4, 4)]
    y = b.add(kind, sequence, *weights, hidden_size=4)  # [3, 1, n, 4]
    return b.flat(b.turned(b.Squeeze(y, b.ints(1)), 1, 0, 2))


def pooled(b: Builder, v: str) -> str:
    image = b.shaped(v, 3, 2, 2)
    kind = b.chance.integers(3)
    if kind == 0:
        pool = b.GlobalAveragePool(image)
    elif kind == 1:
        pool = b.MaxPool(image, kernel_shape=[2, 2])
    else:
        pool = b.AveragePool(image, kernel_shape=[2, 2], pads=[1, 0, 1, 0], strides=[2, 2])
        pool = b.ReduceMean(pool, b.ints(2, 3), keepdims=1)
    return b.flat(b.Add(image, pool))


def einsum(b: Builder, v: str) -> str:
    cut = b.shaped(v, 3, 4)
    if b.chance.integers(2):
        return b.flat(b.Einsum(cut, b.weight(4, 4), equation="bij,jk->bik"))
    scores = b.Einsum(cut, cut, equation="bij,bkj->bik")
    return b.flat(b.Einsum(scores, cut, equation="bik,bkj->bij"))


def rolled(b: Builder, v: str, at: int = 5, axis: int = 1, again: int = -1) -> str:
    head = b.Slice(v, b.ints(0), b.ints(at), b.ints(axis))
    tail = b.Slice(v, b.ints(at), b.ints(1 << 40), b.ints(again))
    return b.Concat(tail, head, axis=axis)


def halves(b: Builder, v: str) -> str:
    first, second = b.add_all("Split", v, outputs=2, axis=-1, num_outputs=2)
    return b.Concat(b.Mul(first, b.Sigmoid(second)), second, axis=-1)


def expanded(b: Builder, v: str) -> str:
    third = b.Unsqueeze(v, b.ints(1))
    shape = b.Concat(b.rows(v), b.ints(3), b.ints(WIDTH), axis=0)
    return b.ReduceSum(b.Mul(b.Expand(third, shape), b.weight(3, 1)), b.ints(1), keepdims=0)


def embedded(b: Builder, v: str) -> str:
    places = b.Cast(b.Clip(b.Round(v), b.constant(0.0), b.constant(5.0)), to=INT64)
    found = b.Gather(b.weight(6, 2), places)  # [n, 12, 2]
    return b.Add(v, b.ReduceSum(found, b.ints(-1), keepdims=0))


def quantized(b: Builder, v: str) -> str:
    scale, zero = b.constant(0.05), b.constant(3, np.uint8)
    return b.DequantizeLinear(b.QuantizeLinear(v, scale, zero), scale, zero)


def positioned(b: Builder, v: str) -> str:
    """Add an embedding of positions, their number read from the rows."""
    length = b.Squeeze(b.Gather(b.Shape(v), b.ints(1)), b.ints(0))
    places = b.Range(b.scalar(0), length, b.scalar(1))
    table = b.Gather(b.weight(WIDTH, 1), places)
    return b.Add(v, b.Squeeze(table, b.ints(1)))


def own_rows(b: Builder, v: str) -> str:
    """Read each row by its own number, as exports of masks do."""
    rows = b.Squeeze(b.rows(v), b.ints(0))
    numbers = b.Unsqueeze(b.Range(b.scalar(0), rows, b.scalar(1)), b.ints(1))  # [n, 1]
    columns = b.ints(*b.chance.permutation(WIDTH).tolist())
    shape = b.Concat(b.rows(v), b.ints(WIDTH), axis=0)
    pairs = [b.Unsqueeze(b.Expand(part, shape), b.ints(-1)) for part in (numbers, columns)]
    return b.GatherND(v, b.Concat(*pairs, axis=-1))


def branch(b: Builder, v: str) -> str:
    """An If whose condition is a constant, or a size that is not the batch."""
    if b.chance.integers(2):
        condition = b.constant(bool(b.chance.integers(2)), np.bool_)
    else:
        width = b.Gather(b.Shape(v), b.scalar(1))
        condition = b.Greater(width, b.scalar(b.pick(3, 30)))
    steps = row_step(b), row_step(b)
    then, other = [b.branch(lambda inner, step=step: step(inner, v)) for step in steps]
    return b.If(condition, then_branch=then, else_branch=other)


def loop(b: Builder, v: str) -> str:
    """A Loop of a fixed number of turns."""
    step = row_step(b)
    return b.loop(v, 2, step)


def scan(b: Builder, v: str) -> str:
    """A Scan over the parts of each row."""
    cut = b.shaped(v, 3, 4)
    graph = b.summing(["rows", 4], is_tanh=True)
    start = b.ReduceSum(cut, b.ints(1), keepdims=0)
    axes = {"num_scan_inputs": 1, "scan_input_axes": [1], "scan_output_axes": [1]}
    return b.flat(b.add_all("Scan", start, cut, outputs=2, body=graph, **axes)[1])


PLAIN: dict[str, Step] = {
    "unary": lambda b, v: b.add(
        b.pick("Relu", "Tanh", "Sigmoid", "Erf", "Neg", "Abs", "Identity", "Softplus", "Gelu"), v
    ),
    "bias": lambda b, v: b.add(b.pick("Add", "Mul", "Sub", "Max"), v, b.weight(WIDTH)),
    "matmul": lambda b, v: b.MatMul(v, b.weight(WIDTH, WIDTH)),
    "gemm": lambda b, v: b.Gemm(v, b.weight(WIDTH, WIDTH), b.weight(WIDTH), transB=1),
    "layer_norm": lambda b, v: b.LayerNormalization(v, b.weight(WIDTH), b.weight(WIDTH), axis=-1),
    "softmax": lambda b, v: b.add(b.pick("Softmax", "LogSoftmax"), v, axis=b.pick(1, -1)),
    "centred": lambda b, v: b.Sub(
        v,
        b.add(b.pick("ReduceMean", "ReduceMax", "ReduceL2"), v, b.ints(b.pick(1, -1)), keepdims=1),
    ),
    "swapped": lambda b, v: b.flat(b.turned(b.shaped(v, 3, 4), 0, 2, 1)),
    "attention": attention,
    "heads": heads,
    "lstm": lstm,
    "conv": lambda b, v: b.flat(
        b.Conv(b.shaped(v, 3, 2, 2), b.weight(3, 3, 3, 3), b.weight(3), pads=[1, 1, 1, 1])
    ),
    "pooled": pooled,
    "einsum": einsum,
    "sorted_row": lambda b, v: b.TopK(v, b.ints(WIDTH), outputs=2, axis=-1),
    "running_sum": lambda b, v: b.CumSum(v, b.scalar(1)),
    "gathered": lambda b, v: b.Gather(v, b.ints(*b.chance.permutation(WIDTH).tolist()), axis=1),
    "rolled": rolled,
    "halves": halves,
    "padded": lambda b, v: b.Slice(b.Pad(v, b.ints(0, 1, 0, 2)), b.ints(2), b.ints(14), b.ints(1)),
    "expanded": expanded,
    "tiled": lambda b, v: b.Slice(b.Tile(v, b.ints(1, 2)), b.ints(6), b.ints(18), b.ints(1)),
    "chosen": lambda b, v: b.Where(b.Greater(v, b.constant(0.0)), v, b.Mul(v, b.weight(WIDTH))),
    "embedded": embedded,
    "quantized": quantized,
    "positioned": positioned,
    "own_rows": own_rows,
    "elements": lambda b, v: b.GatherElements(
        v, b.add_all("TopK", v, b.ints(WIDTH), outputs=2, axis=-1)[1], axis=1
    ),
}
NESTED: dict[str, Step] = {
    "branch": branch,
    "loop": loop,
    "scan": scan,
    "called": lambda b, v: b.function(row_step(b), v),
}


def row_step(b: Builder) -> Step:
    """Return a step that has no body."""
    return choose(b, PLAIN)[1]


# -------------------------------------------------------------- steps by which rows see each other


def mix_pooled(b: Builder, v: str) -> str:
    line = b.line(v)
    return b.unlined(b.add(b.pick("AveragePool", "MaxPool"), line, kernel_shape=[3], pads=[1, 1]))


def mix_as_sequence(b: Builder, v: str) -> str:
    kind, gates = (("LSTM", 4), ("GRU", 3))[b.chance.integers(2)]
    weights = [b.weight(1, gates * WIDTH, WIDTH), b.weight(1, gates * WIDTH, WIDTH)]
    how = {"hidden_size": WIDTH, "direction": b.pick("forward", "reverse")}
    return b.Squeeze(b.add(kind, b.Unsqueeze(v, b.ints(1)), *weights, **how), b.ints(1, 2))


def mix_reversed(b: Builder, v: str) -> str:
    rows, one = b.Squeeze(b.rows(v), b.ints(0)), b.scalar(1)
    up = b.Range(b.scalar(0), rows, one)
    return b.Gather(v, b.Sub(b.Sub(rows, one), up), axis=0)


def mix_by_number(b: Builder, v: str) -> str:
    """Multiply each row by its place in the batch."""
    rows = b.Squeeze(b.rows(v), b.ints(0))
    numbers = b.Cast(b.Range(b.scalar(0), rows, b.scalar(1)), to=FLOAT)
    return b.Mul(v, b.Unsqueeze(numbers, b.ints(1)))


def mix_wrong_reshape(b: Builder, v: str) -> str:
    """Reshape [n, 12] to [12, n], which is no transposition, and normalise."""
    torn = b.Reshape(v, b.Concat(b.ints(WIDTH), b.rows(v), axis=0))
    return b.turned(b.ReduceSum(torn, b.ints(1), keepdims=1))


def mix_split_reshape(b: Builder, v: str) -> str:
    """Take rows by the dozen of all elements: [n, 12] as [12 n] as [-1, 6], normalised in pairs."""
    shifted = b.Pad(b.Reshape(v, b.ints(-1)), b.ints(6, 6))
    wide = b.Reshape(shifted, b.ints(-1, WIDTH))
    cut = b.Slice(b.Softmax(wide, axis=-1), b.ints(0), b.ints(-1), b.ints(0))
    return b.Mul(cut, b.Abs(v))


def mix_resized(b: Builder, v: str) -> str:
    image = b.Unsqueeze(v, b.ints(0, 1))  # [1, 1, n, 12]
    large = b.Resize(image, "", b.constant([1.0, 1.0, 3.0, 1.0]), mode="linear")
    small = b.MaxPool(large, kernel_shape=[3, 1], strides=[3, 1])
    return b.Squeeze(small, b.ints(0, 1))


def mix_scattered(b: Builder, v: str) -> str:
    update = b.ReduceMax(v, b.ints(0), keepdims=1)
    return b.ScatterElements(v, b.constant(np.zeros((1, WIDTH)), np.int64), update, axis=0)


def mix_compressed(b: Builder, v: str) -> str:
    sums = b.ReduceSum(v, b.ints(1), keepdims=0)
    kept = b.Compress(v, b.Greater(sums, b.constant(0.5)), axis=0)
    return b.ReduceSum(kept, b.ints(0), keepdims=1)


def mix_gathered_by_data(b: Builder, v: str) -> str:
    """Read the row whose number stands in the row."""
    number = b.ReduceMax(v, b.ints(1), keepdims=0)
    rows = b.Squeeze(b.Sub(b.rows(v), b.ints(1)), b.ints(0))
    return b.Gather(v, b.Min(b.Cast(b.Relu(number), to=INT64), rows), axis=0)


def mix_any_branch(b: Builder, v: str) -> str:
    """A branch that is taken when any row asks for it."""
    condition = b.Greater(b.ReduceMax(v, keepdims=0), b.constant(0.5))
    then, other = [
        b.branch(lambda inner, add=add: inner.Add(v, inner.constant(add))) for add in (7.0, 0.0)
    ]
    return b.If(condition, then_branch=then, else_branch=other)


def mix_inside_branch(b: Builder, v: str) -> str:
    """A branch of a fixed condition, in which rows mix."""
    step = mixer_step(b)
    then = b.branch(lambda inner: inner.Add(v, step(inner, v)), "g")
    other = b.branch(lambda inner: inner.Neg(v), "g")
    return b.If(b.constant(True, np.bool_), then_branch=then, else_branch=other)


def mix_turns(b: Builder, v: str) -> str:
    """A Loop of as many turns as the largest value says."""
    top = b.Min(b.ReduceMax(b.Relu(v), keepdims=0), b.constant(3.0))
    turns = b.Cast(top, to=INT64)
    return b.loop(v, turns, lambda inner, state: inner.Add(state, inner.constant(1.0)))


def mix_inside_loop(b: Builder, v: str) -> str:
    step = mixer_step(b)
    turns = b.scalar(2)
    return b.loop(v, turns, lambda inner, state: inner.Add(state, inner.Tanh(step(inner, state))))


def mix_scan(b: Builder, v: str) -> str:
    """A Scan over the rows, which carries a sum from each to the next."""
    graph = b.summing([WIDTH])
    start = b.constant([0.0] * WIDTH)
    return b.add_all("Scan", start, v, outputs=2, body=graph, num_scan_inputs=1)[1]


def mix_batch_norm(b: Builder, v: str) -> str:
    ones, zeros = b.constant([1.0] * WIDTH), b.constant([0.0] * WIDTH)
    return b.BatchNormalization(v, ones, zeros, zeros, ones, outputs=3, training_mode=1)


def mix_fused_attention(b: Builder, v: str) -> str:
    """MultiHeadAttention in which the rows are the positions of one sample."""
    line = b.Unsqueeze(v, b.ints(0))
    made = b.MultiHeadAttention(line, line, line, domain="com.microsoft", num_heads=3)
    return b.Squeeze(made, b.ints(0))


MIXERS: dict[str, Step] = {
    "transposed_sum": lambda b, v: b.turned(b.ReduceSum(b.turned(v), b.ints(1), keepdims=1)),
    "einsum_sum": lambda b, v: b.Einsum(v, equation="ij->j"),
    "einsum_pairs": lambda b, v: b.MatMul(b.Einsum(v, v, equation="ij,kj->ik"), v),
    "reshaped": lambda b, v: b.ReduceSum(b.Reshape(v, b.ints(1, -1)), b.ints(1), keepdims=1),
    "reduced": lambda b, v: b.add(
        b.pick("ReduceMax", "ReduceSum", "ReduceL2"), v, b.ints(b.pick(0, -2)), keepdims=1
    ),
    "reduced_all": lambda b, v: b.ReduceMax(v, keepdims=0),
    "pooled": mix_pooled,
    "convolved": lambda b, v: b.unlined(b.Conv(b.line(v), b.weight(WIDTH, WIDTH, 3), pads=[1, 1])),
    "attention": lambda b, v: b.MatMul(b.Softmax(b.MatMul(v, b.turned(v)), axis=-1), v),
    "as_sequence": mix_as_sequence,
    "running_sum": lambda b, v: b.CumSum(v, b.scalar(0)),
    "softmax": lambda b, v: b.Softmax(v, axis=0),
    "sorted": lambda b, v: b.TopK(v, b.rows(v), outputs=2, axis=0),
    "gram": lambda b, v: b.MatMul(v, b.MatMul(b.turned(v), v)),
    "rolled": lambda b, v: rolled(b, v, 1, 0, 0),
    "shifted": lambda b, v: b.Slice(  # by one
        b.Pad(v, b.ints(1, 0, 0, 0)), b.ints(0), b.ints(-1), b.ints(0)
    ),
    "reversed": mix_reversed,
    "first_row": lambda b, v: b.Gather(v, b.ints(0), axis=0),
    "last_row": lambda b, v: b.Slice(v, b.ints(-1), b.ints(1 << 40), b.ints(0)),
    "by_count": lambda b, v: b.Mul(v, b.Cast(b.rows(v), to=FLOAT)),
    "by_size": lambda b, v: b.Mul(v, b.Cast(b.Size(v), to=FLOAT)),
    "by_number": mix_by_number,
    "wrong_reshape": mix_wrong_reshape,
    "split_reshape": mix_split_reshape,
    "quantized": lambda b, v: b.DequantizeLinear(*b.add_all("DynamicQuantizeLinear", v, outputs=3)),
    "counted": lambda b, v: b.Mul(v, b.Cast(b.Gather(b.Shape(b.NonZero(v)), b.ints(1)), to=FLOAT)),
    "normalised": lambda b, v: b.MeanVarianceNormalization(v, axes=[0]),
    "instance_norm": lambda b, v: b.unlined(
        b.InstanceNormalization(b.line(v), b.constant([1.0] * 12), b.constant([0.0] * 12))
    ),
    "resized": mix_resized,
    "scattered": mix_scattered,
    "compressed": mix_compressed,
    "gathered_by_data": mix_gathered_by_data,
    "any_branch": mix_any_branch,
    "inside_branch": mix_inside_branch,
    "turns": mix_turns,
    "inside_loop": mix_inside_loop,
    "scan": mix_scan,
    "called": lambda b, v: b.function(mixer_step(b), v),
    "sequence": lambda b, v: b.Add(
        v, b.SequenceAt(b.SplitToSequence(v, b.scalar(1), axis=0), b.scalar(0))
    ),
    "batch_norm": mix_batch_norm,
    "fused_attention": mix_fused_attention,
}
_IN_BODIES = {
    name: MIXERS[name]
    for name in ("transposed_sum", "einsum_sum", "reshaped", "reduced", "pooled", "attention",
                 "running_sum", "rolled", "gram", "by_count")
}  # fmt: skip


def mixer_step(b: Builder) -> Step:
    """Return a mixer that has no body of its own."""
    return choose(b, _IN_BODIES)[1]
