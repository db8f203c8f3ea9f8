"""Operations by operator, against a second count: numbers that count what is done with them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest

from engine.report.explanation.flops import FORMULAS, flops
from engine.report.explanation.work import LEFT_OUT, UNKNOWN, Shape, Work


class Counting:
    """A number of which every operation counts."""

    done = 0

    def operate(self, *others: object) -> Counting:
        Counting.done += 1
        return Counting()

    __add__ = __sub__ = __mul__ = __truediv__ = operate


def call(number: Counting) -> Counting:
    """Compute a function, as exp."""
    return number.operate()


def sigmoid(number: Counting) -> Counting:
    return Counting() / (Counting() + call(Counting() - number))


def values(*shape: int) -> Any:
    made = np.empty(shape, object)
    for place in np.ndindex(*shape):
        made[place] = Counting()
    return made


def dot(left: Iterable[Any], right: Iterable[Any]) -> Counting:
    """Add products to a sum that begins at 0."""
    total = Counting()
    for one, other in zip(left, right, strict=True):
        total = total + one * other
    return total


def total(numbers: Iterable[Any]) -> Counting:
    first, *rest = numbers
    for number in rest:
        first = first + number
    return first


def counted(work: Callable[[], object]) -> int:
    Counting.done = 0
    work()
    return Counting.done


@pytest.mark.parametrize(
    ("channels", "made", "stride", "pad", "group", "bias"),
    [(3, 4, 1, 0, 1, True), (4, 6, 2, 1, 2, False), (4, 4, 1, 1, 4, True)],
    ids=["plain", "strides, padding and groups", "depthwise"],
)
def test_a_convolution(
    channels: int, made: int, stride: int, pad: int, group: int, bias: bool
) -> None:
    size, kernel = 5, 3
    out = (size + 2 * pad - kernel) // stride + 1
    inner = channels // group
    x = values(2, channels, size + 2 * pad, size + 2 * pad)
    weights = values(made, inner, kernel, kernel)

    def run() -> None:
        for sample, filter_, row, column in np.ndindex(2, made, out, out):
            first, y, x_ = filter_ // (made // group) * inner, row * stride, column * stride
            window = x[sample, first : first + inner, y : y + kernel, x_ : x_ + kernel]
            result = dot(window.ravel(), weights[filter_].ravel())
            if bias:
                result + Counting()

    inputs: list[Shape] = [(2, channels, size, size), weights.shape, *([(made,)] if bias else [])]
    work = Work("Conv", "", {"group": group}, inputs, [(2, made, out, out)])
    assert flops(work) == counted(run)


def test_a_transposed_convolution_does_a_product_for_each_value_and_weight() -> None:
    x, weights = values(1, 2, 3, 3), values(2, 5, 2, 2)

    def run() -> None:
        for channel, row, column in np.ndindex(2, 3, 3):
            for filter_, *_ in np.ndindex(5, 2, 2):
                Counting() + x[0, channel, row, column] * weights[channel, filter_, 0, 0]

    work = Work("ConvTranspose", "", {}, [x.shape, weights.shape], [(1, 5, 4, 4)])
    assert flops(work) == counted(run)


def matmul(left: Any, right: Any) -> None:
    for place in np.ndindex(*left.shape[:-1], right.shape[-1]):
        dot(left[place[:-1]], right[..., place[-1]].reshape(-1, right.shape[-2])[0])


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 2, 1, 4)])
def test_a_matrix_product(shape: tuple[int, ...]) -> None:
    work = Work("MatMul", "", {}, [shape, (4, 5)], [(*shape[:-1], 5)])
    assert flops(work) == counted(lambda: matmul(values(*shape), values(4, 5)))
    for name in ("MatMulInteger", "QLinearMatMul"):
        assert flops(work._replace(op_type=name)) == flops(work)


@pytest.mark.parametrize("turned", [False, True])
def test_gemm_with_its_bias_and_factors(turned: bool) -> None:
    def run() -> None:
        for row, column in np.ndindex(3, 5):
            product = dot(values(4), values(4)) * Counting()
            product + Counting() * Counting()
            assert row + column >= 0

    attributes = {"alpha": 0.5, "beta": 2.0, "transA": turned}
    shape = (4, 3) if turned else (3, 4)
    assert flops(Work("Gemm", "", attributes, [shape, (4, 5), (5,)], [(3, 5)])) == counted(run)


@pytest.mark.parametrize(
    ("equation", "shapes", "made"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)], (3, 5)),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)], (2, 3, 4, 6)),
        ("i,j->ij", [(3,), (4,)], (3, 4)),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)], (2, 3, 5)),
        ("ij", [(3, 4)], (3, 4)),
        ("bij,bjk->bik", [(4, 2, 3), (1, 3, 5)], (4, 2, 5)),
    ],
)
def test_einsum_counts_products_and_sums_over_all_its_letters(
    equation: str, shapes: list[tuple[int, ...]], made: tuple[int, ...]
) -> None:
    terms, _, result = equation.replace("...", "Z").partition("->")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms.split(","), shapes, strict=True):
        for letter, size in zip(term, shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    is_summed = bool(result) and len(sizes) > len(result)

    def run() -> None:
        for _ in itertools.product(*map(range, sizes.values())):
            product = Counting()
            for _ in shapes[1:]:
                product = product * Counting()
            if is_summed:
                Counting() + product

    assert flops(Work("Einsum", "", {"equation": equation}, shapes, [made])) == counted(run)


@pytest.mark.parametrize(
    ("op_type", "of_window"),
    [("MaxPool", lambda window: total(window)), ("AveragePool", lambda w: total(w) / Counting())],
)
def test_a_pooling(op_type: str, of_window: Callable[[Any], object]) -> None:
    def run() -> None:
        for _ in np.ndindex(2, 3, 4, 4):
            of_window(values(9))

    work = Work(op_type, "", {"kernel_shape": [3, 3]}, [(2, 3, 6, 6)], [(2, 3, 4, 4)])
    assert flops(work) == counted(run)


def softmax(row: Any) -> Any:
    greatest = total(row)  # a comparison is an operation as a sum is
    powers = [call(number - greatest) for number in row]
    divisor = total(powers)
    return [number / divisor for number in powers]


def test_softmax_along_its_axis() -> None:
    work = Work("Softmax", "", {"axis": 1}, [(2, 5, 3)], [(2, 5, 3)], 13)
    assert flops(work) == counted(lambda: [softmax(values(5)) for _ in range(6)])
    before = work._replace(version=11)  # where all axes from there on are one
    assert flops(before) == counted(lambda: [softmax(values(15)) for _ in range(2)])


def normalised(row: Any, has_bias: bool) -> None:
    mean = total(row) / Counting()
    apart = [number - mean for number in row]
    variance = total([number * number for number in apart]) / Counting()
    inverse = Counting() / call(variance + Counting())
    for number in apart:
        result = number * inverse * Counting()
        if has_bias:
            result + Counting()


@pytest.mark.parametrize("has_bias", [False, True])
def test_layer_normalization(has_bias: bool) -> None:
    inputs: list[Shape] = [(2, 3, 8), (8,), (8,) if has_bias else LEFT_OUT]
    work = Work("LayerNormalization", "", {"axis": -1}, inputs, [(2, 3, 8)])
    assert flops(work) == counted(lambda: [normalised(values(8), has_bias) for _ in range(6)])


def test_batch_normalization() -> None:
    def run() -> None:
        for _ in range(3):  # channels
            deviation = call(Counting() + Counting())
            for _ in range(2 * 4):
                (Counting() - Counting()) / deviation * Counting() + Counting()

    work = Work("BatchNormalization", "", {}, [(2, 3, 4), *[(3,)] * 4], [(2, 3, 4)])
    assert flops(work) == counted(run)


def gate(inner: int, hidden: int) -> Counting:
    of_input, of_state = (dot(values(size), values(size)) for size in (inner, hidden))
    return of_input + of_state + Counting() + Counting()


def lstm_step(inner: int, hidden: int) -> None:
    for _ in range(hidden):
        i, o, f = (sigmoid(gate(inner, hidden)) for _ in range(3))
        cell = f * Counting() + i * call(gate(inner, hidden))
        o * call(cell)


def gru_step(inner: int, hidden: int) -> None:
    for _ in range(hidden):
        update, reset = (sigmoid(gate(inner, hidden)) for _ in range(2))
        reset * Counting()  # the state that it resets
        new = call(gate(inner, hidden))
        (Counting() - update) * new + update * Counting()


@pytest.mark.parametrize(
    ("op_type", "gates", "step"), [("LSTM", 4, lstm_step), ("GRU", 3, gru_step)]
)
def test_a_recurrent_network_in_both_directions(
    op_type: str, gates: int, step: Callable[[int, int], None]
) -> None:
    steps, batch, inner, hidden = 3, 2, 4, 5
    rows = gates * hidden
    inputs: list[Shape] = [
        (steps, batch, inner),
        (2, rows, inner),
        (2, rows, hidden),
        (2, 2 * rows),
    ]
    work = Work(op_type, "", {}, inputs, [(steps, 2, batch, hidden)])
    runs = steps * batch * 2
    expected = counted(lambda: [step(inner, hidden) for _ in range(runs)])
    assert flops(work) == expected
    if op_type == "LSTM":  # the quantized one has its weights turned
        turned = [(2, inner, rows), (2, hidden, rows)]
        own = work._replace(
            op_type="DynamicQuantizeLSTM",
            domain="com.microsoft",
            inputs=[inputs[0], *turned, inputs[3], *[LEFT_OUT] * 4, *[(2,)] * 4],
        )
        assert flops(own) == expected


def test_attention() -> None:
    batch, heads, rows, keys, width, value_width = 1, 2, 3, 4, 5, 6

    def run() -> None:
        for _ in range(batch * heads * rows):
            scores = [dot(values(width), values(width)) * Counting() for _ in range(keys)]
            weights = softmax(scores)
            for _ in range(value_width):
                dot(weights, values(keys))

    sizes = ((rows, width), (keys, width), (keys, value_width))
    four: list[Shape] = [(batch, heads, *size) for size in sizes]
    made: list[Shape] = [(batch, heads, rows, value_width)]
    assert flops(Work("Attention", "", {}, four, made)) == counted(run)
    three: list[Shape] = [(batch, n, heads * size) for n, size in sizes]
    named = {"q_num_heads": heads, "kv_num_heads": heads, "num_heads": heads}
    for op_type, domain in (("Attention", ""), ("MultiHeadAttention", "com.microsoft")):
        work = Work(op_type, domain, named, three, [(batch, rows, heads * value_width)])
        assert flops(work) == counted(run)


@pytest.mark.parametrize(
    ("op_type", "of_each"),
    [
        ("Relu", lambda x: call(x)),
        ("Add", lambda x: x + x),
        ("Sigmoid", sigmoid),
        ("LeakyRelu", lambda x: call(x) * x),
        ("Clip", lambda x: call(call(x))),
        ("Gelu", lambda x: x * (call(x / x) + x) * x),
        ("Softplus", lambda x: call(call(x) + x)),
        ("HardSigmoid", lambda x: call(call(x * x + x))),
        ("DequantizeLinear", lambda x: (x - x) * x),
    ],
)
def test_a_function_of_each_element(op_type: str, of_each: Callable[[Counting], object]) -> None:
    work = Work(op_type, "", {}, [(2, 3)], [(2, 3)])
    assert flops(work) == counted(lambda: [of_each(Counting()) for _ in range(6)])


@pytest.mark.parametrize(
    ("op_type", "of_row"),
    [
        ("ReduceSum", total),
        ("ReduceMean", lambda row: total(row) / Counting()),
        ("ReduceL2", lambda row: call(total([number * number for number in row]))),
        ("ReduceLogSumExp", lambda row: call(total([call(number) for number in row]))),
    ],
)
def test_a_reduction(op_type: str, of_row: Callable[[Any], object]) -> None:
    work = Work(op_type, "", {}, [(4, 5)], [(4, 1)])
    assert flops(work) == counted(lambda: [of_row(values(5)) for _ in range(4)])


def test_what_only_moves_values_does_nothing() -> None:
    for op_type in ("Reshape", "Transpose", "Concat", "Gather", "Cast"):
        assert flops(Work(op_type, "", {}, [UNKNOWN], [UNKNOWN])) == 0


@pytest.mark.parametrize(
    "work",
    [
        Work("Loop", "", {}, [(1,)], [(1,)]),
        Work("Add", "a.domain.of.their.own", {}, [(1,), (1,)], [(1,)]),
        Work("Add", "", {}, [UNKNOWN, (1,)], [UNKNOWN]),
        Work("Conv", "", {}, [(1, 3, 4, 4)], [(1, 3, 4, 4)]),
        Work("MaxPool", "", {}, [(1, 3, 4, 4)], [(1, 3, 4, 4)]),
        Work("Einsum", "", {"equation": "i,j->ij"}, [(2,)], [(2, 2)]),
        Work("Resize", "", {"mode": "spline"}, [(1, 3, 4, 4)], [(1, 3, 8, 8)]),
    ],
    ids=["depends on data", "other domain", "open size", "no weights", "no kernel",
         "one input", "mode"],
)  # fmt: skip
def test_what_is_not_known_is_unknown_and_not_nothing(work: Work) -> None:
    assert flops(work) is None


def test_no_formula_fails_on_a_node_that_lacks_everything() -> None:
    for domain, rules in FORMULAS.items():
        for op_type in rules:
            assert flops(Work(op_type, domain, {}, [], [])) in (None, 0)
            assert flops(Work(op_type, domain, {}, [()], [()])) in (None, *range(20))


def test_the_count_is_a_whole_number() -> None:
    shapes: Sequence[Shape] = [(2, 16, 2)]
    found = flops(Work("DFT", "", {"axis": 1}, shapes, shapes, 17))
    assert found == 5 * 2 * 16 * 4
    assert prod((2, 16)) * 5 * 4 == found
