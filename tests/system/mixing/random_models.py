"""Random models whose rows mix for some values, and models whose rows never do.

    model = mixing(7)         # rows change each other's results where a gate is open
    model = independent(7)    # each row's results depend on that row alone

Every model maps x: float32 [n, 12] and ids: int64 [n, 12] to y: float32 [n, 12]. A model that mixes
adds to its rows what a mixer makes of gated rows; the gate is shut for small numbers, such as those
that a trial draws, and open for those of `hostile_rows`. Steps that treat each row alone stand
before and after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

WIDTH = 12
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
GATE_WEIGHT = "gate.weight"
OPENED = {GATE_WEIGHT: np.ones(WIDTH, np.float32)}
"""The update that opens a gate which is a weight."""


@dataclass
class RandomModel:
    """A model, and how it was made. mixes: the mixer's name, "" where rows never mix.

    is_gated_by_weight: the gate is the variable weight GATE_WEIGHT, of zeros in the file.
    """

    proto: ModelProto
    steps: list[str]
    mixes: str = ""
    is_gated_by_weight: bool = False


@dataclass
class Builder:
    """A graph while it is made."""

    chance: np.random.Generator
    nodes: list[NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)
    functions: list[FunctionProto] = field(default_factory=list)
    count: int = 0

    def name(self, stem: str = "t") -> str:
        """Return a new name."""
        self.count += 1
        return f"{stem}{self.count}"

    def add(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **given: Any) -> str:
        """Add a node and return its first output."""
        return self.add_all(kind, *inputs, outputs=outputs, domain=domain, **given)[0]

    def add_all(
        self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **given: Any
    ) -> list[str]:
        """Add a node and return its outputs."""
        names = [self.name(kind.lower()) for _ in range(outputs)]
        node = helper.make_node(
            kind, inputs, names, name=f"{kind}_{self.count}", domain=domain, **given
        )
        self.nodes.append(node)
        return names

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Return a constant: an initializer, a Constant node, or a value behind Identity."""
        array = np.asarray(value, dtype)
        form = self.chance.integers(3)
        if form == 0:
            name = self.name("c")
            self.tensors.append(numpy_helper.from_array(array, name))
            return name
        made = self.add("Constant", value=numpy_helper.from_array(array))
        return made if form == 1 else self.add("Identity", made)

    def ints(self, *values: int) -> str:
        """Return a constant of int64."""
        return self.constant(values, np.int64)

    def weight(self, *shape: int) -> str:
        """Return a weight, sometimes one that is stored as int8."""
        array = self.chance.standard_normal(shape).astype(np.float32) / 3
        if self.chance.integers(4):
            return self.constant(array)
        scale = np.float32(np.abs(array).max() / 127)
        stored = np.round(array / scale).astype(np.int8)
        return self.add("DequantizeLinear", self.constant(stored, np.int8), self.constant(scale))

    def rows(self, value: str) -> str:
        """Return how many rows there are, as int64 [1]."""
        shape = self.add("Shape", value)
        if self.chance.integers(2):
            return self.add("Gather", shape, self.ints(0))
        return self.add("Slice", shape, self.ints(0), self.ints(1))

    def shaped(self, value: str, *dims: int) -> str:
        """Reshape rows of 12 to [n, *dims]; the shape is a constant or is computed."""
        form = self.chance.integers(3)
        if form == 0:
            return self.add("Reshape", value, self.ints(-1, *dims))
        if form == 1:
            return self.add("Reshape", value, self.ints(0, *dims))
        parts = [self.rows(value), *(self.ints(dim) for dim in dims)]
        return self.add("Reshape", value, self.add("Concat", *parts, axis=0))

    def flat(self, value: str, *, is_3d: bool = True) -> str:
        """Bring [n, ...] back to [n, 12]."""
        if self.chance.integers(2) and is_3d:
            return self.add("Flatten", value, axis=1)
        return self.add("Reshape", value, self.ints(-1, WIDTH))

    def function(self, make: Step, value: str) -> str:
        """Put a step into a function of the model, and call it."""
        inner = Builder(self.chance, count=self.count + 1000)
        inner.functions = self.functions
        result = make(inner, "argument")
        held = [
            helper.make_node("Constant", [], [tensor.name], value=tensor)
            for tensor in inner.tensors
        ]
        name = self.name("Step")
        self.functions.append(
            helper.make_function(
                "test.steps",
                name,
                ["argument"],
                [result],
                [*held, *inner.nodes],
                [helper.make_opsetid("", OPSET), helper.make_opsetid("test.steps", 1)],
            )
        )
        self.count = inner.count
        return self.add(name, value, domain="test.steps")

    def body(
        self, make: Callable[[Builder], list[str]], inputs: list[Any], kinds: list[int], name: str
    ) -> Any:
        """Return a graph for a body. kinds: the element types of its results."""
        inner = Builder(self.chance, count=self.count + 1000)
        inner.functions = self.functions
        results = [inner.add("Identity", result) for result in make(inner)]
        self.count = inner.count
        outputs = [
            helper.make_tensor_value_info(result, kind, None)
            for result, kind in zip(results, kinds, strict=True)
        ]
        return helper.make_graph(inner.nodes, name, inputs, outputs, inner.tensors)


OPSET = 20
Rows = list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
Step = Callable[[Builder, str], str]

# ----------------------------------------------------------------- steps that treat each row alone


def unary(b: Builder, v: str) -> str:
    kinds = ("Relu", "Tanh", "Sigmoid", "Erf", "Neg", "Abs", "Identity", "Softplus", "Gelu")
    return b.add(str(b.chance.choice(kinds)), v)


def bias(b: Builder, v: str) -> str:
    return b.add(str(b.chance.choice(("Add", "Mul", "Sub", "Max"))), v, b.weight(WIDTH))


def matmul(b: Builder, v: str) -> str:
    return b.add("MatMul", v, b.weight(WIDTH, WIDTH))


def gemm(b: Builder, v: str) -> str:
    return b.add("Gemm", v, b.weight(WIDTH, WIDTH), b.weight(WIDTH), transB=1)


def layer_norm(b: Builder, v: str) -> str:
    return b.add("LayerNormalization", v, b.weight(WIDTH), b.weight(WIDTH), axis=-1)


def softmax(b: Builder, v: str) -> str:
    return b.add(
        str(b.chance.choice(("Softmax", "LogSoftmax"))), v, axis=int(b.chance.choice((1, -1)))
    )


def centred(b: Builder, v: str) -> str:
    kind = str(b.chance.choice(("ReduceMean", "ReduceMax", "ReduceL2")))
    return b.add("Sub", v, b.add(kind, v, b.ints(int(b.chance.choice((1, -1)))), keepdims=1))


def swapped(b: Builder, v: str) -> str:
    cut = b.shaped(v, 3, 4)
    return b.flat(b.add("Transpose", cut, perm=[0, 2, 1]))


def attention(b: Builder, v: str) -> str:
    cut = b.shaped(v, 3, 4)
    keys = b.add("Transpose", b.add("MatMul", cut, b.weight(4, 4)), perm=[0, 2, 1])
    scores = b.add("Softmax", b.add("MatMul", b.add("MatMul", cut, b.weight(4, 4)), keys), axis=-1)
    return b.flat(b.add("MatMul", scores, cut))


def heads(b: Builder, v: str) -> str:
    """Attention as torch writes it: positions first, then batch and heads in one axis."""
    first = b.add("Transpose", b.shaped(v, 3, 4), perm=[1, 0, 2])  # [3, n, 4]
    doubled = b.add("Mul", b.rows(v), b.ints(2))
    shape = b.add("Concat", b.ints(3), doubled, b.ints(2), axis=0)
    parts = b.add("Transpose", b.add("Reshape", first, shape), perm=[1, 0, 2])  # [2n, 3, 2]
    scores = b.add("MatMul", parts, b.add("Transpose", parts, perm=[0, 2, 1]))
    mixed = b.add("MatMul", b.add("Softmax", scores, axis=-1), parts)
    back = b.add("Concat", b.ints(3), b.rows(v), b.ints(4), axis=0)
    joined = b.add("Reshape", b.add("Transpose", mixed, perm=[1, 0, 2]), back)
    return b.flat(b.add("Transpose", joined, perm=[1, 0, 2]))


def lstm(b: Builder, v: str) -> str:
    sequence = b.add("Transpose", b.shaped(v, 3, 4), perm=[1, 0, 2])
    kind, gates = (("LSTM", 4), ("GRU", 3), ("RNN", 1))[b.chance.integers(3)]
    weights = [b.weight(1, gates * 4, 4), b.weight(1, gates * 4, 4)]
    y = b.add(kind, sequence, *weights, hidden_size=4)  # [3, 1, n, 4]
    return b.flat(b.add("Transpose", b.add("Squeeze", y, b.ints(1)), perm=[1, 0, 2]))


def conv(b: Builder, v: str) -> str:
    return b.flat(
        b.add("Conv", b.shaped(v, 3, 2, 2), b.weight(3, 3, 3, 3), b.weight(3), pads=[1, 1, 1, 1])
    )


def pooled(b: Builder, v: str) -> str:
    image = b.shaped(v, 3, 2, 2)
    kind = b.chance.integers(3)
    if kind == 0:
        pool = b.add("GlobalAveragePool", image)
    elif kind == 1:
        pool = b.add("MaxPool", image, kernel_shape=[2, 2])
    else:
        pool = b.add("AveragePool", image, kernel_shape=[2, 2], pads=[1, 0, 1, 0], strides=[2, 2])
        pool = b.add("ReduceMean", pool, b.ints(2, 3), keepdims=1)
    return b.flat(b.add("Add", image, pool))


def einsum(b: Builder, v: str) -> str:
    cut = b.shaped(v, 3, 4)
    if b.chance.integers(2):
        return b.flat(b.add("Einsum", cut, b.weight(4, 4), equation="bij,jk->bik"))
    scores = b.add("Einsum", cut, cut, equation="bij,bkj->bik")
    return b.flat(b.add("Einsum", scores, cut, equation="bik,bkj->bij"))


def sorted_row(b: Builder, v: str) -> str:
    return b.add("TopK", v, b.ints(WIDTH), outputs=2, axis=-1)


def running_sum(b: Builder, v: str) -> str:
    return b.add("CumSum", v, b.constant(1, np.int64))


def gathered(b: Builder, v: str) -> str:
    return b.add("Gather", v, b.ints(*b.chance.permutation(WIDTH).tolist()), axis=1)


def rolled(b: Builder, v: str) -> str:
    head = b.add("Slice", v, b.ints(0), b.ints(5), b.ints(1))
    tail = b.add("Slice", v, b.ints(5), b.ints(1 << 40), b.ints(-1))
    return b.add("Concat", tail, head, axis=1)


def halves(b: Builder, v: str) -> str:
    first, second = b.add_all("Split", v, outputs=2, axis=-1, num_outputs=2)
    return b.add("Concat", b.add("Mul", first, b.add("Sigmoid", second)), second, axis=-1)


def padded(b: Builder, v: str) -> str:
    wide = b.add("Pad", v, b.ints(0, 1, 0, 2))
    return b.add("Slice", wide, b.ints(2), b.ints(14), b.ints(1))


def expanded(b: Builder, v: str) -> str:
    third = b.add("Unsqueeze", v, b.ints(1))
    shape = b.add("Concat", b.rows(v), b.ints(3), b.ints(WIDTH), axis=0)
    scaled = b.add("Mul", b.add("Expand", third, shape), b.weight(3, 1))
    return b.add("ReduceSum", scaled, b.ints(1), keepdims=0)


def tiled(b: Builder, v: str) -> str:
    wide = b.add("Tile", v, b.ints(1, 2))
    return b.add("Slice", wide, b.ints(6), b.ints(18), b.ints(1))


def chosen(b: Builder, v: str) -> str:
    return b.add("Where", b.add("Greater", v, b.constant(0.0)), v, b.add("Mul", v, b.weight(WIDTH)))


def embedded(b: Builder, v: str) -> str:
    clipped = b.add("Clip", b.add("Round", v), b.constant(0.0), b.constant(5.0))
    places = b.add("Cast", clipped, to=INT64)
    found = b.add("Gather", b.weight(6, 2), places)  # [n, 12, 2]
    return b.add("Add", v, b.add("ReduceSum", found, b.ints(-1), keepdims=0))


def quantized(b: Builder, v: str) -> str:
    scale, zero = b.constant(0.05), b.constant(3, np.uint8)
    return b.add("DequantizeLinear", b.add("QuantizeLinear", v, scale, zero), scale, zero)


def positioned(b: Builder, v: str) -> str:
    """Add an embedding of positions, their number read from the rows."""
    length = b.add("Squeeze", b.add("Gather", b.add("Shape", v), b.ints(1)), b.ints(0))
    zero, one = b.constant(0, np.int64), b.constant(1, np.int64)
    places = b.add("Range", zero, length, one)
    table = b.add("Gather", b.weight(WIDTH, 1), places)
    return b.add("Add", v, b.add("Squeeze", table, b.ints(1)))


def own_rows(b: Builder, v: str) -> str:
    """Read each row by its own number, as exports of masks do."""
    rows = b.add("Squeeze", b.rows(v), b.ints(0))
    zero, one = b.constant(0, np.int64), b.constant(1, np.int64)
    numbers = b.add("Unsqueeze", b.add("Range", zero, rows, one), b.ints(1))  # [n, 1]
    columns = b.ints(*b.chance.permutation(WIDTH).tolist())
    shape = b.add("Concat", b.rows(v), b.ints(WIDTH), axis=0)
    pairs = [
        b.add("Unsqueeze", b.add("Expand", part, shape), b.ints(-1)) for part in (numbers, columns)
    ]
    return b.add("GatherND", v, b.add("Concat", *pairs, axis=-1))


def elements(b: Builder, v: str) -> str:
    order = b.add_all("TopK", v, b.ints(WIDTH), outputs=2, axis=-1)[1]
    return b.add("GatherElements", v, order, axis=1)


def branch(b: Builder, v: str) -> str:
    """An If whose condition is a constant, or a size that is not the batch."""
    if b.chance.integers(2):
        condition = b.constant(bool(b.chance.integers(2)), np.bool_)
    else:
        width = b.add("Gather", b.add("Shape", v), b.constant(1, np.int64))
        condition = b.add("Greater", width, b.constant(int(b.chance.choice((3, 30))), np.int64))
    inner = row_step(b), row_step(b)
    graphs = [
        b.body(lambda inside, step=step: [step(inside, v)], [], [FLOAT], b.name("branch"))
        for step in inner
    ]
    return b.add("If", condition, then_branch=graphs[0], else_branch=graphs[1])


def loop(b: Builder, v: str) -> str:
    """A Loop of a fixed number of turns."""
    turn, going, state = b.name("turn"), b.name("going"), b.name("state")
    step = row_step(b)
    graph = b.body(
        lambda inside: [inside.add("Identity", going), step(inside, state)],
        [
            helper.make_tensor_value_info(turn, INT64, []),
            helper.make_tensor_value_info(going, BOOL, []),
            helper.make_tensor_value_info(state, FLOAT, None),
        ],
        [BOOL, FLOAT],
        b.name("body"),
    )
    return b.add("Loop", b.constant(2, np.int64), b.constant(True, np.bool_), v, body=graph)


def scan(b: Builder, v: str) -> str:
    """A Scan over the parts of each row."""
    cut = b.shaped(v, 3, 4)
    state, part = b.name("state"), b.name("part")

    def inside(inner: Builder) -> list[str]:
        total = inner.add("Add", state, inner.add("Tanh", part))
        return [total, total]

    graph = b.body(
        inside,
        [
            helper.make_tensor_value_info(state, FLOAT, ["rows", 4]),
            helper.make_tensor_value_info(part, FLOAT, ["rows", 4]),
        ],
        [FLOAT, FLOAT],
        b.name("body"),
    )
    start = b.add("ReduceSum", cut, b.ints(1), keepdims=0)
    found = b.add_all(
        "Scan", start, cut, outputs=2, body=graph, num_scan_inputs=1,
        scan_input_axes=[1], scan_output_axes=[1],
    )  # fmt: skip
    return b.flat(found[1])


def called(b: Builder, v: str) -> str:
    return b.function(row_step(b), v)


PLAIN: tuple[Step, ...] = (
    unary, bias, matmul, gemm, layer_norm, softmax, centred, swapped, attention, heads, lstm, conv,
    pooled, einsum, sorted_row, running_sum, gathered, rolled, halves, padded, expanded, tiled,
    chosen, embedded, quantized, positioned, own_rows, elements,
)  # fmt: skip
NESTED: tuple[Step, ...] = (branch, loop, scan, called)


def row_step(b: Builder) -> Step:
    """Return a step that has no body."""
    return PLAIN[b.chance.integers(len(PLAIN))]


# -------------------------------------------------------------- steps by which rows see each other


def mix_transposed_sum(b: Builder, v: str) -> str:
    columns = b.add("Transpose", v, perm=[1, 0])
    total = b.add("ReduceSum", columns, b.ints(1), keepdims=1)
    return b.add("Transpose", total, perm=[1, 0])


def mix_einsum_sum(b: Builder, v: str) -> str:
    return b.add("Einsum", v, equation="ij->j")


def mix_einsum_pairs(b: Builder, v: str) -> str:
    return b.add("MatMul", b.add("Einsum", v, v, equation="ij,kj->ik"), v)


def mix_reshaped(b: Builder, v: str) -> str:
    return b.add("ReduceSum", b.add("Reshape", v, b.ints(1, -1)), b.ints(1), keepdims=1)


def mix_reduced(b: Builder, v: str) -> str:
    kind = str(b.chance.choice(("ReduceMax", "ReduceSum", "ReduceL2")))
    return b.add(kind, v, b.ints(int(b.chance.choice((0, -2)))), keepdims=1)


def mix_reduced_all(b: Builder, v: str) -> str:
    return b.add("ReduceMax", v, keepdims=0)


def mix_pooled(b: Builder, v: str) -> str:
    line = b.add("Unsqueeze", b.add("Transpose", v, perm=[1, 0]), b.ints(0))  # [1, 12, n]
    kind = str(b.chance.choice(("AveragePool", "MaxPool")))
    pool = b.add(kind, line, kernel_shape=[3], pads=[1, 1])
    return b.add("Transpose", b.add("Squeeze", pool, b.ints(0)), perm=[1, 0])


def mix_convolved(b: Builder, v: str) -> str:
    line = b.add("Unsqueeze", b.add("Transpose", v, perm=[1, 0]), b.ints(0))
    made = b.add("Conv", line, b.weight(WIDTH, WIDTH, 3), pads=[1, 1])
    return b.add("Transpose", b.add("Squeeze", made, b.ints(0)), perm=[1, 0])


def mix_attention(b: Builder, v: str) -> str:
    scores = b.add("MatMul", v, b.add("Transpose", v, perm=[1, 0]))
    return b.add("MatMul", b.add("Softmax", scores, axis=-1), v)


def mix_as_sequence(b: Builder, v: str) -> str:
    kind, gates = (("LSTM", 4), ("GRU", 3))[b.chance.integers(2)]
    weights = [b.weight(1, gates * WIDTH, WIDTH), b.weight(1, gates * WIDTH, WIDTH)]
    direction = str(b.chance.choice(("forward", "reverse")))
    y = b.add(
        kind, b.add("Unsqueeze", v, b.ints(1)), *weights, hidden_size=WIDTH, direction=direction
    )
    return b.add("Squeeze", y, b.ints(1, 2))


def mix_running_sum(b: Builder, v: str) -> str:
    return b.add("CumSum", v, b.constant(0, np.int64))


def mix_softmax(b: Builder, v: str) -> str:
    return b.add("Softmax", v, axis=0)


def mix_sorted(b: Builder, v: str) -> str:
    count = b.rows(v)
    return b.add("TopK", v, count, outputs=2, axis=0)


def mix_gram(b: Builder, v: str) -> str:
    return b.add("MatMul", v, b.add("MatMul", b.add("Transpose", v, perm=[1, 0]), v))


def mix_rolled(b: Builder, v: str) -> str:
    head = b.add("Slice", v, b.ints(0), b.ints(1), b.ints(0))
    tail = b.add("Slice", v, b.ints(1), b.ints(1 << 40), b.ints(0))
    return b.add("Concat", tail, head, axis=0)


def mix_shifted(b: Builder, v: str) -> str:
    """Shift the rows by one with a Pad and a Slice."""
    wide = b.add("Pad", v, b.ints(1, 0, 0, 0))
    return b.add("Slice", wide, b.ints(0), b.ints(-1), b.ints(0))


def mix_reversed(b: Builder, v: str) -> str:
    rows = b.add("Squeeze", b.rows(v), b.ints(0))
    one = b.constant(1, np.int64)
    up = b.add("Range", b.constant(0, np.int64), rows, one)
    return b.add("Gather", v, b.add("Sub", b.add("Sub", rows, one), up), axis=0)


def mix_first_row(b: Builder, v: str) -> str:
    return b.add("Gather", v, b.ints(0), axis=0)


def mix_last_row(b: Builder, v: str) -> str:
    return b.add("Slice", v, b.ints(-1), b.ints(1 << 40), b.ints(0))


def mix_by_count(b: Builder, v: str) -> str:
    return b.add("Mul", v, b.add("Cast", b.rows(v), to=FLOAT))


def mix_by_size(b: Builder, v: str) -> str:
    return b.add("Mul", v, b.add("Cast", b.add("Size", v), to=FLOAT))


def mix_by_number(b: Builder, v: str) -> str:
    """Multiply each row by its place in the batch."""
    rows = b.add("Squeeze", b.rows(v), b.ints(0))
    zero, one = b.constant(0, np.int64), b.constant(1, np.int64)
    numbers = b.add("Cast", b.add("Range", zero, rows, one), to=FLOAT)
    return b.add("Mul", v, b.add("Unsqueeze", numbers, b.ints(1)))


def mix_wrong_reshape(b: Builder, v: str) -> str:
    """Reshape [n, 12] to [12, n], which is no transposition, and normalise."""
    shape = b.add("Concat", b.ints(WIDTH), b.rows(v), axis=0)
    torn = b.add("Reshape", v, shape)
    made = b.add("ReduceSum", torn, b.ints(1), keepdims=1)
    return b.add("Transpose", made, perm=[1, 0])


def mix_split_reshape(b: Builder, v: str) -> str:
    """Take rows by the dozen of all elements: [n, 12] as [12 n] as [-1, 6], normalised in pairs."""
    line = b.add("Reshape", v, b.ints(-1))
    shifted = b.add("Pad", line, b.ints(6, 6))
    wide = b.add("Reshape", shifted, b.ints(-1, WIDTH))
    cut = b.add("Slice", b.add("Softmax", wide, axis=-1), b.ints(0), b.ints(-1), b.ints(0))
    return b.add("Mul", cut, b.add("Abs", v))


def mix_quantized(b: Builder, v: str) -> str:
    found = b.add_all("DynamicQuantizeLinear", v, outputs=3)
    return b.add("DequantizeLinear", *found)


def mix_counted(b: Builder, v: str) -> str:
    places = b.add("NonZero", v)
    count = b.add("Gather", b.add("Shape", places), b.ints(1))
    return b.add("Mul", v, b.add("Cast", count, to=FLOAT))


def mix_normalised(b: Builder, v: str) -> str:
    return b.add("MeanVarianceNormalization", v, axes=[0])


def mix_instance_norm(b: Builder, v: str) -> str:
    line = b.add("Unsqueeze", b.add("Transpose", v, perm=[1, 0]), b.ints(0))
    made = b.add("InstanceNormalization", line, b.constant([1.0] * 12), b.constant([0.0] * 12))
    return b.add("Transpose", b.add("Squeeze", made, b.ints(0)), perm=[1, 0])


def mix_resized(b: Builder, v: str) -> str:
    image = b.add("Unsqueeze", v, b.ints(0, 1))  # [1, 1, n, 12]
    scales = b.constant([1.0, 1.0, 3.0, 1.0])
    large = b.add("Resize", image, "", scales, mode="linear")
    small = b.add("MaxPool", large, kernel_shape=[3, 1], strides=[3, 1])
    return b.add("Squeeze", small, b.ints(0, 1))


def mix_scattered(b: Builder, v: str) -> str:
    update = b.add("ReduceMax", v, b.ints(0), keepdims=1)
    return b.add("ScatterElements", v, b.constant(np.zeros((1, WIDTH)), np.int64), update, axis=0)


def mix_compressed(b: Builder, v: str) -> str:
    sums = b.add("ReduceSum", v, b.ints(1), keepdims=0)
    kept = b.add("Compress", v, b.add("Greater", sums, b.constant(0.5)), axis=0)
    return b.add("ReduceSum", kept, b.ints(0), keepdims=1)


def mix_gathered_by_data(b: Builder, v: str) -> str:
    """Read the row whose number stands in the row."""
    number = b.add("ReduceMax", v, b.ints(1), keepdims=0)
    rows = b.add("Squeeze", b.add("Sub", b.rows(v), b.ints(1)), b.ints(0))
    places = b.add("Min", b.add("Cast", b.add("Relu", number), to=INT64), rows)
    return b.add("Gather", v, places, axis=0)


def mix_any_branch(b: Builder, v: str) -> str:
    """A branch that is taken when any row asks for it."""
    total = b.add("ReduceMax", v, keepdims=0)
    condition = b.add("Greater", total, b.constant(0.5))
    graphs = [
        b.body(
            lambda inside, add=add: [inside.add("Add", v, inside.constant(add))],
            [], [FLOAT], b.name("branch"),
        )
        for add in (7.0, 0.0)
    ]  # fmt: skip
    return b.add("If", condition, then_branch=graphs[0], else_branch=graphs[1])


def mix_inside_branch(b: Builder, v: str) -> str:
    """A branch of a fixed condition, in which rows mix."""
    step = mixer_step(b)
    graph = b.body(lambda inside: [inside.add("Add", v, step(inside, v))], [], [FLOAT], b.name("g"))
    other = b.body(lambda inside: [inside.add("Neg", v)], [], [FLOAT], b.name("g"))
    return b.add("If", b.constant(True, np.bool_), then_branch=graph, else_branch=other)


def mix_turns(b: Builder, v: str) -> str:
    """A Loop of as many turns as the largest value says."""
    top = b.add("Min", b.add("ReduceMax", b.add("Relu", v), keepdims=0), b.constant(3.0))
    return _loop(b, v, b.add("Cast", top, to=INT64), lambda inside, state: inside.add(
        "Add", state, inside.constant(1.0)))  # fmt: skip


def mix_inside_loop(b: Builder, v: str) -> str:
    step = mixer_step(b)
    return _loop(b, v, b.constant(2, np.int64), lambda inside, state: inside.add(
        "Add", state, inside.add("Tanh", step(inside, state))))  # fmt: skip


def _loop(b: Builder, v: str, turns: str, step: Step) -> str:
    turn, going, state = b.name("turn"), b.name("going"), b.name("state")
    graph = b.body(
        lambda inside: [inside.add("Identity", going), step(inside, state)],
        [
            helper.make_tensor_value_info(turn, INT64, []),
            helper.make_tensor_value_info(going, BOOL, []),
            helper.make_tensor_value_info(state, FLOAT, None),
        ],
        [BOOL, FLOAT],
        b.name("body"),
    )
    return b.add("Loop", turns, b.constant(True, np.bool_), v, body=graph)


def mix_scan(b: Builder, v: str) -> str:
    """A Scan over the rows, which carries a sum from each to the next."""
    state, row = b.name("state"), b.name("row")

    def inside(inner: Builder) -> list[str]:
        total = inner.add("Add", state, row)
        return [total, total]

    graph = b.body(
        inside,
        [helper.make_tensor_value_info(name, FLOAT, [WIDTH]) for name in (state, row)],
        [FLOAT, FLOAT],
        b.name("body"),
    )
    start = b.constant([0.0] * WIDTH)
    return b.add_all("Scan", start, v, outputs=2, body=graph, num_scan_inputs=1)[1]


def mix_called(b: Builder, v: str) -> str:
    return b.function(mixer_step(b), v)


def mix_sequence(b: Builder, v: str) -> str:
    pieces = b.add("SplitToSequence", v, b.constant(1, np.int64), axis=0)
    first = b.add("SequenceAt", pieces, b.constant(0, np.int64))
    return b.add("Add", v, first)


def mix_batch_norm(b: Builder, v: str) -> str:
    ones, zeros = b.constant([1.0] * WIDTH), b.constant([0.0] * WIDTH)
    return b.add("BatchNormalization", v, ones, zeros, zeros, ones, outputs=3, training_mode=1)


def mix_fused_attention(b: Builder, v: str) -> str:
    """MultiHeadAttention in which the rows are the positions of one sample."""
    line = b.add("Unsqueeze", v, b.ints(0))
    made = b.add("MultiHeadAttention", line, line, line, domain="com.microsoft", num_heads=3)
    return b.add("Squeeze", made, b.ints(0))


MIXERS: tuple[Step, ...] = (
    mix_transposed_sum, mix_einsum_sum, mix_einsum_pairs, mix_reshaped, mix_reduced,
    mix_reduced_all, mix_pooled, mix_convolved, mix_attention, mix_as_sequence, mix_running_sum,
    mix_softmax, mix_sorted, mix_gram, mix_rolled, mix_shifted, mix_reversed, mix_first_row,
    mix_last_row, mix_by_count, mix_by_size, mix_by_number, mix_wrong_reshape, mix_split_reshape,
    mix_quantized, mix_counted, mix_normalised, mix_instance_norm, mix_resized, mix_scattered,
    mix_compressed, mix_gathered_by_data, mix_any_branch, mix_inside_branch, mix_turns,
    mix_inside_loop, mix_scan, mix_called, mix_sequence, mix_batch_norm, mix_fused_attention,
)  # fmt: skip
_IN_BODIES: tuple[Step, ...] = (
    mix_transposed_sum, mix_einsum_sum, mix_reshaped, mix_reduced, mix_pooled, mix_attention,
    mix_running_sum, mix_rolled, mix_gram, mix_by_count,
)  # fmt: skip


def mixer_step(b: Builder) -> Step:
    """Return a mixer that has no body of its own."""
    return _IN_BODIES[b.chance.integers(len(_IN_BODIES))]


# ---------------------------------------------------------------------------------------- gates


def _gate_ids_above(b: Builder) -> str:
    limit = b.constant(int(b.chance.choice((1, 2, 5))), np.int64)
    return b.add("Cast", b.add("Greater", "ids", limit), to=FLOAT)


def _gate_ids_equal(b: Builder) -> str:
    return b.add("Cast", b.add("Equal", "ids", b.constant(7, np.int64)), to=FLOAT)


def _gate_ids_divided(b: Builder) -> str:
    return b.add("Cast", b.add("Div", "ids", b.constant(4, np.int64)), to=FLOAT)


def _gate_window(b: Builder) -> str:
    low, high = b.constant(5.0), b.constant(100.0)
    inside = b.add("And", b.add("Greater", "x", low), b.add("Less", "x", high))
    return b.add("Cast", inside, to=FLOAT)


def _gate_clipped(b: Builder) -> str:
    return b.add("Clip", b.add("Sub", "x", b.constant(6.0)), b.constant(0.0), b.constant(1.0))


def _gate_weight(b: Builder) -> str:
    return GATE_WEIGHT


GATES = (_gate_ids_above, _gate_ids_equal, _gate_ids_divided, _gate_window, _gate_clipped,
         _gate_weight)  # fmt: skip


# ---------------------------------------------------------------------------------------- models


def mixing(seed: int) -> RandomModel:
    """Return a model whose rows mix where its gate is open."""
    chance = np.random.default_rng(seed)
    b = Builder(chance)
    mixer = MIXERS[seed % len(MIXERS)]
    gate_of = GATES[chance.integers(len(GATES))]
    steps: list[str] = []
    value = _start(b)
    for _ in range(chance.integers(2)):
        value = _alone(b, value, steps)
    gated = b.add("Mul", b.add("Abs", value), gate_of(b))
    mixed = mixer(b, gated)
    value = b.add("Add", value, mixed)
    steps.append(f"{gate_of.__name__}:{mixer.__name__}")
    for _ in range(chance.integers(2)):
        step = (unary, bias, chosen, rolled)[chance.integers(4)]
        value = step(b, value)
        steps.append(step.__name__)
    is_by_weight = gate_of is _gate_weight
    if is_by_weight:
        zeros = np.zeros(WIDTH, np.float32)
        b.tensors.append(numpy_helper.from_array(zeros, GATE_WEIGHT))
    return RandomModel(_model(b, value), steps, mixer.__name__, is_by_weight)


def independent(seed: int) -> RandomModel:
    """Return a model in which each row's results depend on that row alone."""
    chance = np.random.default_rng(seed)
    b = Builder(chance)
    steps: list[str] = []
    value = _start(b)
    for _ in range(chance.integers(1, 5)):
        value = _alone(b, value, steps)
    return RandomModel(_model(b, value), steps)


def _start(b: Builder) -> str:
    ids = b.add("Clip", "ids", b.constant(0, np.int64), b.constant(9, np.int64))
    return b.add("Add", "x", b.add("Squeeze", b.add("Gather", b.weight(10, 1), ids), b.ints(-1)))


def _alone(b: Builder, value: str, steps: list[str]) -> str:
    every = (*PLAIN, *NESTED)
    step = every[b.chance.integers(len(every))]
    steps.append(step.__name__)
    return step(b, value)


def _model(b: Builder, value: str) -> ModelProto:
    b.nodes.append(helper.make_node("Identity", [value], ["y"], name="end"))
    shape = ["n", WIDTH]
    graph = helper.make_graph(
        b.nodes,
        "random",
        [
            helper.make_tensor_value_info("x", FLOAT, shape),
            helper.make_tensor_value_info("ids", INT64, shape),
        ],
        [helper.make_tensor_value_info("y", FLOAT, shape)],
        b.tensors,
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    if b.functions:
        opsets.append(helper.make_opsetid("test.steps", 1))
    return helper.make_model(graph, opset_imports=opsets, functions=b.functions, ir_version=10)


def written(model: RandomModel, folder: Path) -> Path:
    """Write a model's file and return its path."""
    path = folder / "random.onnx"
    onnx.save(model.proto, path)
    return path


def hostile_rows(count: int, seed: int) -> Rows:
    """Return rows (x, ids) with values that open every gate, in some of the rows."""
    chance = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        x = chance.standard_normal((1, WIDTH)).astype(np.float32)
        ids = chance.integers(0, 2, (1, WIDTH))
        if number % 3 != 1:
            places = chance.random((1, WIDTH)) < 0.5
            x[places] += chance.choice((7.0, 30.0, 80.0))
            ids[places] = chance.choice((2, 3, 6, 7, 9))
        rows.append((x, ids.astype(np.int64)))
    return rows
