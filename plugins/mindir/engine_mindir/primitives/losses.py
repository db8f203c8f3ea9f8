"""Loss functions, which some exported models still contain."""

from __future__ import annotations

from typing import Any

from engine_mindir.emit import Emitter
from engine_mindir.primitives import primitive
from engine_mindir.values import DType, Value


def _reduced(g: Emitter, loss: Value, reduction: Any) -> Value:
    """Reduce a loss as named by MindSpore's text for it, or by its number."""
    if reduction in ("mean", 1):
        return g.node("ReduceMean", loss, keepdims=0, shape=())
    if reduction in ("sum", 0):
        return g.node("ReduceSum", loss, keepdims=0, shape=())
    if reduction == "batchmean":
        total = g.node("ReduceSum", loss, keepdims=0, shape=())
        return g.node("Div", total, g.cast(g.scalar(g.dim(loss, 0), DType.INT64), loss.dtype))
    return loss


def _weighted(g: Emitter, loss: Value, weight: Any) -> Value:
    return loss if weight is None else g.node("Mul", loss, weight, shape=loss.shape)


@primitive("BinaryCrossEntropy")
def binary_cross_entropy(
    g: Emitter, x: Value, target: Value, weight: Any = None, reduction: Any = "mean"
) -> Value:
    one, least = g.constant(1, x.dtype), g.constant(1e-12, x.dtype)

    def log(value: Value) -> Value:
        return g.node("Log", g.node("Max", value, least))

    yes = g.node("Mul", target, log(x))
    no = g.node("Mul", g.node("Sub", one, target), log(g.node("Sub", one, x)))
    loss = g.node("Neg", g.node("Add", yes, no), shape=x.shape)
    return _reduced(g, _weighted(g, loss, weight), reduction)


@primitive("BCEWithLogitsLoss")
def bce_with_logits(
    g: Emitter, x: Value, target: Value, weight: Any = None, positive: Any = None,
    reduction: Any = "mean",
) -> Value:  # fmt: skip
    """Lower by max(-x, 0) + log(1 + exp(-|x|)), which does not overflow, times the weight."""
    one = g.constant(1, x.dtype)
    soft = g.node("Softplus", g.node("Neg", x))
    if positive is not None:
        more = g.node("Mul", g.node("Sub", positive, one, like=x), target)
        soft = g.node("Mul", soft, g.node("Add", more, one))
    loss = g.node("Add", g.node("Mul", g.node("Sub", one, target), x), soft, shape=x.shape)
    return _reduced(g, _weighted(g, loss, weight), reduction)


@primitive("SmoothL1Loss")
def smooth_l1(
    g: Emitter, x: Value, target: Value, beta: float = 1.0, reduction: Any = "none"
) -> Value:
    apart = g.node("Abs", g.node("Sub", x, target))
    near = g.node("Div", g.node("Mul", g.node("Mul", apart, apart), 0.5), float(beta))
    far = g.node("Sub", apart, 0.5 * float(beta))
    is_near = g.node("Less", apart, g.constant(beta, x.dtype), dtype=DType.BOOL)
    return _reduced(g, g.node("Where", is_near, near, far, like=x, shape=x.shape), reduction)


@primitive("L1LossExt")
def l1(g: Emitter, x: Value, target: Value, reduction: Any = "mean") -> Value:
    return _reduced(g, g.node("Abs", g.node("Sub", x, target)), reduction)


@primitive("MSELossExt")
def mse(g: Emitter, x: Value, target: Value, reduction: Any = "mean") -> Value:
    apart = g.node("Sub", x, target)
    return _reduced(g, g.node("Mul", apart, apart), reduction)


@primitive("SoftMarginLoss")
def soft_margin(g: Emitter, x: Value, target: Value, reduction: Any = "mean") -> Value:
    return _reduced(g, g.node("Softplus", g.node("Neg", g.node("Mul", x, target))), reduction)


@primitive("KLDivLoss", "KLDiv")
def kl_div(
    g: Emitter, x: Value, target: Value, reduction: Any = "mean", log_target: Any = False
) -> Value:
    """Lower KL divergence; x is the logarithm of a probability; a target of 0 adds nothing."""
    if log_target:
        loss = g.node("Mul", g.node("Exp", target), g.node("Sub", target, x))
        return _reduced(g, loss, reduction)
    zero = g.constant(0, x.dtype)
    some = g.node("Greater", target, zero, dtype=DType.BOOL)
    safe = g.node("Where", some, target, g.constant(1, x.dtype), like=x)
    loss = g.node("Mul", target, g.node("Sub", g.node("Log", safe), x))
    return _reduced(g, g.node("Where", some, loss, zero, like=x, shape=x.shape), reduction)


@primitive("SoftmaxCrossEntropyWithLogits")
def softmax_cross_entropy(g: Emitter, logits: Value, labels: Value) -> tuple[Value, Value]:
    """Return the loss of each row, and its gradient."""
    likely = g.node("LogSoftmax", logits, axis=-1)
    loss = g.node("ReduceSum", g.node("Mul", likely, labels), g.ints((-1,)), keepdims=0)
    return g.node("Neg", loss), g.node("Sub", g.node("Exp", likely), labels)


@primitive("SparseSoftmaxCrossEntropyWithLogits")
def sparse_softmax_cross_entropy(
    g: Emitter, logits: Value, labels: Value, *, is_grad: Any = False
) -> Value:
    """Return the mean loss over the rows, or its gradient by the logits."""
    rows = g.cast(g.scalar(g.dim(logits, 0), DType.INT64), logits.dtype)
    if is_grad:
        from engine_mindir.primitives.indexing import one_hot

        hit = one_hot(g, labels, g.dim(logits, 1), 1.0, 0.0)
        apart = g.node("Sub", g.node("Softmax", logits, axis=-1), g.cast(hit, logits.dtype))
        return g.node("Div", apart, rows)
    likely = g.node("LogSoftmax", logits, axis=-1)
    of_label = g.node(
        "GatherElements", likely, g.unsqueeze(g.cast(labels, DType.INT64), (-1,)), axis=1
    )
    return g.node("Neg", g.node("ReduceMean", of_label, keepdims=0, shape=()))


@primitive("NLLLoss", "NLLLoss2d")
def nll(
    g: Emitter, x: Value, labels: Value, weight: Any = None, reduction: Any = "mean",
    ignore_index: Any = -100,
) -> tuple[Value, Value]:  # fmt: skip
    """Return the loss and the sum of the weights that it is divided by."""
    ids = g.cast(labels, DType.INT64)
    kept = g.node("Not", g.node("Equal", ids, int(ignore_index), dtype=DType.BOOL))
    safe = g.node("Where", kept, ids, g.constant(0), like=ids)
    picked = g.squeeze(g.node("GatherElements", x, g.unsqueeze(safe, (1,)), axis=1), (1,))
    if weight is None:
        weight = g.node("Expand", g.constant(1, x.dtype), g.ints((g.dim(x, 1),)))
    factor = g.node("Gather", weight, safe, axis=0)
    factor = g.node("Mul", factor, g.cast(kept, x.dtype))
    loss = g.node("Neg", g.node("Mul", picked, factor))
    total = g.node("ReduceSum", factor, keepdims=0, shape=())
    if reduction in ("mean", 1):
        return g.node("Div", g.node("ReduceSum", loss, keepdims=0, shape=()), total), total
    return _reduced(g, loss, reduction), total


@primitive("MultiMarginLoss")
def multi_margin(
    g: Emitter, x: Value, target: Value, weight: Any = None, *, p: Any = 1, margin: float = 1.0,
    reduction: Any = "mean",
) -> Value:  # fmt: skip
    ids = g.unsqueeze(g.cast(target, DType.INT64), (-1,))
    right = g.node("GatherElements", x, ids, axis=1)
    short = g.node("Add", g.node("Sub", x, right), float(margin))
    cost = g.node("Max", short, g.constant(0, x.dtype))
    if int(p) == 2:
        cost = g.node("Mul", cost, cost)
    if weight is not None:
        cost = g.node("Mul", cost, g.node("Gather", weight, ids, axis=0))
    # The right class itself does not count.
    places = g.node("Range", 0, g.scalar(g.dim(x, 1), DType.INT64), 1, like=ids)
    other = g.node("Not", g.node("Equal", ids, places, dtype=DType.BOOL))
    cost = g.node("Mul", cost, g.cast(other, x.dtype))
    return _reduced(g, g.node("ReduceMean", cost, g.ints((-1,)), keepdims=0), reduction)


@primitive("CosineEmbeddingLoss")
def cosine_embedding(
    g: Emitter, x1: Value, x2: Value, target: Value, margin: float = 0.0, reduction: Any = "mean"
) -> Value:
    axis = g.ints((-1,))

    def length(x: Value) -> Value:
        return g.node("Add", g.node("ReduceSumSquare", x, axis, keepdims=0), 1e-12)

    both = g.node("Sqrt", g.node("Mul", length(x1), length(x2)))
    cosine = g.node("Div", g.node("ReduceSum", g.node("Mul", x1, x2), axis, keepdims=0), both)
    near = g.node("Sub", g.constant(1, x1.dtype), cosine)
    far = g.node("Max", g.node("Sub", cosine, float(margin)), g.constant(0, x1.dtype))
    alike = g.node("Greater", target, g.constant(0, target.dtype), dtype=DType.BOOL)
    return _reduced(g, g.node("Where", alike, near, far, like=x1), reduction)


@primitive("CTCGreedyDecoder")
def ctc_greedy_decoder(
    g: Emitter, x: Value, lengths: Value, *, merge_repeated: bool = True
) -> tuple[Value, ...]:
    """x [time, batch, classes], the last class the blank; lengths [batch].

    Gives the best path as a sparse matrix [batch, most labels]: places, labels and shape, int64;
    and minus the sum of the path's scores, [batch, 1].
    """
    rows = g.transpose(x, (1, 0, 2))
    best = g.node("ArgMax", rows, axis=2, keepdims=0, dtype=DType.INT64)  # [batch, time]
    size = g.scalar(g.dim(x, 0), DType.INT64)
    steps = g.node("Range", g.constant(0), size, g.constant(1), dtype=DType.INT64)
    ends = g.unsqueeze(g.cast(lengths, DType.INT64), (1,))
    inside = g.node("Less", g.unsqueeze(steps, (0,)), ends, dtype=DType.BOOL)
    blank = g.node("Sub", g.scalar(g.dim(x, 2), DType.INT64), 1)
    kept = g.node("And", inside, g.node("Less", best, blank, dtype=DType.BOOL))
    if merge_repeated:
        later = g.node("Pad", best, g.ints((0, 1, 0, 0)), g.constant(-1))
        before = g.node("Slice", later, *map(g.ints, (0, -1, 1)))
        is_new = g.node("Not", g.node("Equal", best, before, dtype=DType.BOOL))
        kept = g.node("And", kept, is_new)
    counted = g.node("CumSum", g.cast(kept, DType.INT64), g.constant(1))
    places = g.node("Transpose", g.node("NonZero", kept, dtype=DType.INT64), perm=[1, 0])
    at = g.node("Sub", g.node("GatherND", counted, places, shape=(None,)), 1)
    first = g.node("Slice", places, *map(g.ints, (0, 1, 1)))
    labels = g.node("GatherND", best, places, shape=(None,))
    most = g.node("ReduceMax", counted, keepdims=0, shape=())
    scores = g.node("ReduceMax", rows, g.ints((2,)), keepdims=0)
    scores = g.node("Where", inside, scores, g.constant(0, x.dtype), like=x)
    total = g.node("ReduceSum", scores, g.ints((1,)), keepdims=1)
    return (
        g.node("Concat", first, g.unsqueeze(at, (1,)), axis=1),
        labels,
        g.ints((g.dim(x, 1), most)),
        g.node("Neg", total),
    )
