"""Formulas of the operations of operators, for the table in flops.py."""

from __future__ import annotations

from collections.abc import Callable
from math import log2, prod
from typing import TypeAlias

from engine.report.explanation.work import Work

Formula: TypeAlias = Callable[[Work], float]


def none(work: Work) -> float:
    """No operations: values are moved, at most."""
    return 0


def each(count: float) -> Formula:
    """So many operations for each element of the output."""
    return lambda work: count * prod(work.output())


def each_input(count: float) -> Formula:
    """So many operations for each element of the first input."""
    return lambda work: count * prod(work.input(0))


def joined(extra: int) -> Formula:
    """All inputs are put together, element by element: Sum, Max, Mean."""
    return lambda work: (len(work.inputs) - 1 + extra) * prod(work.output())


def reduced(of_input: float, of_output: float) -> Formula:
    """Count for each element of the input, and for each of the output."""
    return lambda work: of_input * prod(work.input(0)) + of_output * prod(work.output())


# ----------------------------------------------------------------------------------- along an axis


def vectors(work: Work, axis: int) -> tuple[int, int]:
    """Return the number of elements, and of the vectors along an axis that they make up."""
    shape = work.input(0)
    size = prod(shape)
    return size, size // max(shape[axis], 1) if shape else 1


def softmax(of_element: int, of_vector: int) -> Formula:
    """Count for each element, and for each vector along the axis."""

    def count(work: Work) -> float:
        axis = work.get("axis", -1 if work.version >= 13 else 1)
        size, rows = vectors(work, axis)
        if work.version < 13:  # all axes from there on are one
            rows = prod(work.input(0)[:axis])
        return of_element * size + of_vector * rows

    return count


def norm(of_element: int, of_row: int, first_axis: int | None = None) -> Formula:
    """Normalise over the axes from `axis` on. first_axis: where that is no attribute."""

    def count(work: Work) -> float:
        shape = work.input(0)
        axis = work.get("axis", -1) if first_axis is None else first_axis
        rows = prod(shape[:axis] if axis >= 0 else shape[: len(shape) + axis])
        return of_element * prod(shape) + of_row * rows

    return count


def layer_norm(work: Work) -> float:
    """Mean, x - mean, squares, their mean, + epsilon, sqrt, 1 / it, product, scale, bias."""
    return norm(7 if work.has(2) else 6, 3)(work)


def skip_layer_norm(work: Work) -> float:
    """Two inputs and a bias are added before; the last axis is normalised, with a shift if any."""
    return norm(7 + work.has(3) + work.has(4), 3, -1)(work)


def skip_rms_norm(work: Work) -> float:
    """As `skip_layer_norm`, by the root of the mean of squares."""
    return norm(5 + work.has(3), 2, -1)(work)


def embed_layer_norm(work: Work) -> float:
    """Two or three embeddings are added before."""
    shape = work.output()
    return (8 + work.has(4)) * prod(shape) + 3 * prod(shape[:-1])


def group_norm(work: Work) -> float:
    """As InstanceNormalization, over the channels of a group at once."""
    shape = work.input(0)
    return 7 * prod(shape) + 2 * shape[0] * work.number("num_groups")


def lp_norm(work: Work) -> float:
    """Powers, their sum along the axis, and the quotient."""
    size, rows = vectors(work, work.get("axis", -1))
    return 3 * size - (rows if work.get("p", 2) == 1 else 0)


def batch_norm(work: Work) -> float:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias."""
    return 4 * prod(work.input(0)) + 2 * prod(work.input(1))


def mean_variance(work: Work) -> float:
    """(x - mean) / sqrt(variance), over some axes."""
    shape = work.input(0)
    axes = {axis % len(shape) for axis in work.get("axes", (0, 2, 3))}
    rows = prod(size for axis, size in enumerate(shape) if axis not in axes)
    return 5 * prod(shape) + 2 * rows


# ------------------------------------------------------------------------------ sums of products


def matmul(left: int = 0) -> Formula:
    """Two for each element of the result and each of the axis that is summed over."""
    return lambda work: 2 * prod(work.output()) * work.input(left)[-1]


def fused_matmul(work: Work) -> float:
    """As `matmul`, with either side turned, and a factor."""
    inner = work.input(0)[-2 if work.get("transA", 0) else -1]
    scaled = bool(work.get("alpha", 1.0) != 1.0)
    return (2 * inner + scaled) * prod(work.output())


def gemm(work: Work) -> float:
    """Two for each element and each of the axis that is summed over; factors and a bias."""
    inner = work.input(0)[0 if work.get("transA", 0) else 1]
    more = int(work.get("alpha", 1.0) != 1.0)
    if work.has(2):
        more += 1 + int(work.get("beta", 1.0) != 1.0)
    return (2 * inner + more) * prod(work.output())


def matmul_nbits(work: Work) -> float:
    """As `matmul`; to unpack the weights is not counted."""
    return 2 * prod(work.output()) * work.number("K")


def conv(weights: int = 1, bias: int = 2) -> Formula:
    """Two for each element of the result and each weight of its filter; the bias."""

    def count(work: Work) -> float:
        taps = prod(work.input(weights)[1:])
        return (2 * taps + work.has(bias)) * prod(work.output())

    return count


def conv_transpose(work: Work) -> float:
    """Two for each element of the input and each weight that it meets; the bias."""
    taps = prod(work.input(1)[1:])
    return 2 * taps * prod(work.input(0)) + (prod(work.output()) if work.has(2) else 0)


def einsum(work: Work) -> float:
    """Products and sums over all letters of the equation."""
    equation = str(work.attributes["equation"]).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    sizes: dict[str, int] = {}
    for place, term in enumerate(terms.split(",")):
        before, dots, after = term.partition("...")
        shape = work.input(place)
        for letter, size in (*zip(before, shape), *zip(reversed(after), reversed(shape))):
            sizes[letter] = max(sizes.get(letter, 1), size)  # 1 is repeated
        if dots:
            inside = prod(shape[len(before) : len(shape) - len(after)])
            sizes["..."] = max(sizes.get("...", 1), inside)
    letters = [*terms.replace(",", "").replace("...", "")]
    if not arrow:
        result = "".join(letter for letter in letters if letters.count(letter) == 1)
    is_summed = any(letter not in result for letter in letters)
    return prod(sizes.values()) * (terms.count(",") + is_summed)


# ------------------------------------------------------------------------------------- recurrent


def recurrent(gates: int, of_state: int, peepholes: int = 0) -> Formula:
    """x W + h R + both biases for each gate; of_state: what follows for each element of h."""

    def count(work: Work) -> float:
        steps_and_batch = prod(work.input(0)[:2])
        directions, _, inner = work.input(1)
        hidden = work.input(2)[-1]
        gate = 2 * inner + 2 * hidden + 1 + 2 * work.has(3)
        each = gates * gate + of_state + (peepholes if work.has(7) else 0)
        return steps_and_batch * directions * hidden * each

    return count


def quantized_lstm(work: Work) -> float:
    """com.microsoft's, whose weights have the axes of x and h before those of the gates."""
    turned = [shape and (*shape[:-2], shape[-1], shape[-2]) for shape in work.inputs[1:3]]
    return recurrent(4, 18, 6)(work._replace(inputs=[work.inputs[0], *turned, *work.inputs[3:8]]))


# ------------------------------------------------------------------------------------- attention


def weighted_values(
    batch: int, heads: int, rows: int, keys: int, width: int, value_width: int
) -> int:
    """Scaled scores, their softmax, and the values' sum that these weigh."""
    scores = batch * heads * rows * keys
    softmax = 5 * scores - 2 * batch * heads * rows
    return 2 * scores * width + scores + softmax + 2 * scores * value_width


def attention(work: Work) -> float:
    """ONNX's: queries, keys and values with four axes, or three where attributes say the heads."""
    query, key, value = work.input(0), work.input(1), work.input(2)
    if len(query) == 3:
        heads, others = work.number("q_num_heads"), work.number("kv_num_heads")
        batch, rows, width = query[0], query[1], query[2] // heads
        keys, value_width = key[1], value[2] // others
    else:
        batch, heads, rows, width = query
        keys, value_width = key[2], value[3]
    if work.has(4):  # what came before goes in front
        keys += work.input(4)[2]
    masked = batch * heads * rows * keys if work.has(3) or work.get("is_causal", 0) else 0
    return weighted_values(batch, heads, rows, keys, width, value_width) + masked


def multi_head_attention(work: Work) -> float:
    """com.microsoft's, with queries, keys and values of three axes each, or keys of four."""
    query, key, value = work.input(0), work.input(1), work.input(2)
    heads = work.number("num_heads")
    batch, rows, hidden = query
    keys = key[2] if len(key) == 4 else key[1]
    if work.has(6):
        keys += work.input(6)[2]
    value_width = value[3] if len(value) == 4 else value[2] // heads
    return weighted_values(batch, heads, rows, keys, hidden // heads, value_width)


def grouped_attention(work: Work) -> float:
    """com.microsoft's GroupQueryAttention; the keys are as many as the cache that it gives."""
    heads = work.number("num_heads")
    batch, rows, _ = work.input(0)
    width = work.output(1)[3]
    return weighted_values(batch, heads, rows, work.output(1)[2], width, width)


def projected_attention(work: Work) -> float:
    """com.microsoft's Attention: the projections of one input, their bias, and the heads."""
    batch, rows, inner = work.input(0)
    columns, heads = work.input(1)[1], work.number("num_heads")
    widths = work.get("qkv_hidden_sizes", None) or (columns // 3,) * 3
    projected = (2 * inner + work.has(2)) * batch * rows * columns
    keys = rows + (work.input(4)[3] if work.has(4) else 0)
    return projected + weighted_values(
        batch, heads, rows, keys, widths[0] // heads, widths[2] // heads
    )


def rotary(work: Work) -> float:
    """Two products and a sum for each element that turns."""
    shape, size = work.input(0), prod(work.input(0))
    turned = work.number("rotary_embedding_dim", 0)
    if not turned:
        return 3 * size
    heads = work.number("num_heads", 0)
    width = shape[-1] // heads if len(shape) == 3 and heads else shape[-1]
    return 3 * size * turned // width


# --------------------------------------------------------------------------------------- windows


def pool(of_tap: int, more: int) -> Formula:
    """So many for each position of a window, and `more` for each window."""

    def count(work: Work) -> float:
        taps = int(prod(work.attributes["kernel_shape"]))
        return (of_tap * taps + more) * prod(work.output())

    return count


def local_response(work: Work) -> float:
    """x / (bias + alpha / size * the squares of `size` channels) ** beta."""
    return (2 * work.number("size") + 3) * prod(work.output())


def resize(work: Work) -> float:
    """A weighted sum of 2 or 4 neighbours along each axis that changes its size."""
    mode = work.get("mode", "nearest")
    taps = {"nearest": 0, "linear": 2, "bilinear": 2, "cubic": 4}[mode]
    given, made = work.input(0), work.output()
    changed = sum(one != other for one, other in zip(given, made))
    return (2 * int(taps**changed) - 1) * prod(made) if taps and changed else 0


def grid_sample(work: Work) -> float:
    """A weighted sum of the neighbours in all axes."""
    mode = work.get("mode", "linear")
    taps = {"nearest": 0, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}[mode]
    axes = len(work.input(0)) - 2
    return (2 * int(taps**axes) - 1) * prod(work.output()) if taps else 0


def scatter(work: Work) -> float:
    """A sum for each update, where updates are added."""
    return 0 if work.get("reduction", "none") == "none" else prod(work.input(2))


def fourier(work: Work) -> float:
    """The fast Fourier transform's 5 n log2 n, by convention."""
    made = work.output()
    axis = work.number("axis", 1 if work.version < 20 else -2)
    length = work.input(0)[axis]
    return 5 * prod(made[:-1]) * log2(max(length, 2))


def gelu(work: Work) -> float:
    """x (1 + erf(x / sqrt(2))) / 2, or its approximation by tanh."""
    return (8 if work.get("approximate", "none") == "tanh" else 5) * prod(work.output())


def fast_gelu(work: Work) -> float:
    """Gelu by tanh, with a bias before it."""
    return (8 + work.has(1)) * prod(work.output())


def determinant(work: Work) -> float:
    """2/3 n ** 3, by elimination."""
    return prod(work.input(0)) * work.input(0)[-1] * 2 / 3
