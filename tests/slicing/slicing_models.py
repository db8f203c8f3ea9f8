"""Small models with the patterns that the slicer knows, and with what it does not know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from graphs import of_nodes
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from engine.context import Context
from engine.sharding.slicing.emulate import run_ranks
from engine.sharding.slicing.report import Report

Array = np.ndarray[Any, Any]


class Builder:
    """Collects nodes and weights. `add` returns the name of a node's first output."""

    def __init__(self, opset: int = 17, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.opset = opset
        self._random = np.random.default_rng(seed)

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        domain = attributes.pop("domain", "")
        number = len(self.nodes)
        names = [f"{op.lower()}_{number}" + (f"_{i}" if i else "") for i in range(outputs)]
        self.nodes.append(
            helper.make_node(op, inputs, names, f"{op}_{number}", domain=domain, **attributes)
        )
        return names[0] if outputs == 1 else names

    def weight(self, *shape: int, scale: float | None = None) -> str:
        fan_in = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        array = self._random.standard_normal(shape) * (scale or fan_in**-0.5)
        return self.constant(array.astype(np.float32))

    def constant(self, value: Any, dtype: Any = None) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def dense(self, x: str, inside: int, out: int) -> str:
        return self.add("Add", self.add("MatMul", x, self.weight(inside, out)), self.weight(out))

    def save(
        self,
        path: Path,
        inputs: Mapping[str, Sequence[Any]],
        outputs: Sequence[str],
        dtypes: Mapping[str, int] | None = None,
        functions: Sequence[onnx.FunctionProto] = (),
    ) -> Path:
        model = of_nodes(
            self.nodes,
            inputs,
            dict.fromkeys(outputs),
            {tensor.name: tensor for tensor in self.weights},
            dtypes=dtypes,
            functions=functions,
            opset=self.opset,
            ir_version=9,
        )
        onnx.save(model, path)
        return path


def floats(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def assert_ranks_give(
    path: Path, report: Report, inputs: Mapping[str, Array], context: Context
) -> None:
    """Compare the results of all ranks with those of onnx's reference for the model."""
    names = [value.name for value in onnx.load(path, load_external_data=False).graph.output]
    expected = dict(zip(names, ReferenceEvaluator(str(path)).run(None, dict(inputs)), strict=True))
    for results in run_ranks([Path(file) for file in report.files], inputs, context):
        for name, value in expected.items():
            assert results[name].shape == value.shape
            np.testing.assert_allclose(results[name], value, rtol=1e-4, atol=1e-4)


def mlp(folder: Path, inside: int = 8, hidden: int = 16) -> Path:
    """Two layers with a bias each over an open number of rows."""
    g = Builder()
    y = g.dense(g.add("Relu", g.dense("x", inside, hidden)), hidden, inside)
    return g.save(folder / "mlp.onnx", {"x": ["n", inside]}, [y])


def gemms(folder: Path) -> Path:
    """Gemm with and without transposed weights, and a bias that must be added once."""
    g = Builder()
    x = g.add("Tanh", g.add("Gemm", "x", g.weight(16, 8), g.weight(16), transB=1))
    y = g.add("Gemm", x, g.weight(16, 8), g.weight(1, 8), alpha=0.5, beta=2.0)
    return g.save(folder / "gemms.onnx", {"x": ["n", 8]}, [y])


def column(folder: Path) -> Path:
    """One product: columns, and no sum over ranks."""
    g = Builder()
    y = g.dense("x", 8, 12)
    return g.save(folder / "column.onnx", {"x": ["n", 8]}, [y])


def attention(folder: Path, qkv: str = "separate", heads: int = 4, head: int = 8) -> Path:
    """Attention, a residual and a normalisation; qkv: how the three projections are made."""
    g = Builder()
    width, length = heads * head, 6
    if qkv == "separate":
        parts = [g.dense("x", width, width) for _ in range(3)]
    else:
        every = g.dense("x", width, 3 * width)
        if qkv == "split":
            parts = g.add("Split", every, g.ints(width, width, width), outputs=3, axis=-1)
        elif qkv == "slice":
            parts = [
                g.add("Slice", every, g.ints(i * width), g.ints((i + 1) * width), g.ints(2))
                for i in range(3)
            ]
        else:  # as timm's models have it: [batch, length, 3, heads, head] -> [3, batch, heads, ...]
            five = g.add("Reshape", every, g.ints(0, 0, 3, heads, head))
            five = g.add("Transpose", five, perm=[2, 0, 3, 1, 4])
            parts = [g.add("Gather", five, g.constant(i, np.int64), axis=0) for i in range(3)]
    if qkv != "gather":
        parts = [
            g.add("Transpose", g.add("Reshape", p, g.ints(0, 0, heads, head)), perm=[0, 2, 1, 3])
            for p in parts
        ]
    q, k, v = parts
    scores = g.add("MatMul", q, g.add("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.add("Softmax", g.add("Mul", scores, g.constant(head**-0.5, np.float32)), axis=-1)
    mixed = g.add("Transpose", g.add("MatMul", scores, v), perm=[0, 2, 1, 3])
    joined = g.add("Reshape", mixed, g.ints(0, 0, width))
    y = g.add("Add", "x", g.dense(joined, width, width))
    y = g.add("LayerNormalization", y, g.weight(width), g.weight(width), axis=-1)
    return g.save(folder / f"attention_{qkv}.onnx", {"x": ["n", length, width]}, [y])


def decoder(folder: Path, layers: int = 2, tied: bool = True) -> Path:
    """A decoder as exporters write it: shapes computed while it runs, RMSNorm in pieces, rotary
    embeddings, two heads of keys for four of queries, a mask, and logits by the table of tokens.
    """
    g = Builder()
    heads, kv_heads, head, vocabulary = 4, 2, 8, 40
    width, inner = heads * head, 64
    table = g.weight(vocabulary, width, scale=1)
    shape = g.add("Shape", "ids")
    batch = g.add("Gather", shape, g.ints(0), axis=0)
    length = g.add("Gather", shape, g.ints(1), axis=0)
    x = g.add("Gather", table, "ids")
    angles = np.outer(np.arange(64), 100.0 ** (-np.arange(0, head, 2) / head))
    angles = np.concatenate([angles, angles], 1).astype(np.float32)
    sines = [
        g.add("Slice", g.constant(table_), g.ints(0), length, g.ints(0))
        for table_ in (np.cos(angles), np.sin(angles))
    ]
    mask = g.add(
        "Trilu",
        g.add("ConstantOfShape", g.add("Concat", length, length, axis=0),
              value=numpy_helper.from_array(np.float32([-1e9]))),
        g.constant(1, np.int64), upper=1,
    )  # fmt: skip

    def norm(x: str) -> str:
        square = g.add("Pow", x, g.constant(2, np.float32))
        mean = g.add("Add", g.add("ReduceMean", square, axes=[-1]), g.constant(1e-5, np.float32))
        scaled = g.add("Mul", x, g.add("Reciprocal", g.add("Sqrt", mean)))
        return g.add("Mul", g.weight(width), scaled)

    def split_heads(x: str, count: int) -> str:
        target = g.add("Concat", batch, length, g.ints(count), g.ints(head), axis=0)
        return g.add("Transpose", g.add("Reshape", x, target), perm=[0, 2, 1, 3])

    def rotated(x: str) -> str:
        low = g.add("Slice", x, g.ints(0), g.ints(head // 2), g.ints(3))
        high = g.add("Slice", x, g.ints(head // 2), g.ints(2**62), g.ints(3))
        turned = g.add("Concat", g.add("Neg", high), low, axis=-1)
        return g.add("Add", g.add("Mul", x, sines[0]), g.add("Mul", turned, sines[1]))

    def repeated(x: str) -> str:
        five = g.add("Unsqueeze", x, g.ints(2))
        times = g.add(
            "Concat", batch, g.ints(kv_heads), g.ints(heads // kv_heads), length, g.ints(head),
            axis=0,
        )  # fmt: skip
        joined = g.add("Concat", batch, g.ints(heads), length, g.ints(head), axis=0)
        return g.add("Reshape", g.add("Expand", five, times), joined)

    for _ in range(layers):
        y = norm(x)
        q = rotated(split_heads(g.add("MatMul", y, g.weight(width, width)), heads))
        k = rotated(split_heads(g.add("MatMul", y, g.weight(width, kv_heads * head)), kv_heads))
        v = split_heads(g.add("MatMul", y, g.weight(width, kv_heads * head)), kv_heads)
        k, v = repeated(k), repeated(v)
        scores = g.add("MatMul", q, g.add("Transpose", k, perm=[0, 1, 3, 2]))
        scores = g.add("Add", g.add("Mul", scores, g.constant(head**-0.5, np.float32)), mask)
        mixed = g.add("MatMul", g.add("Softmax", scores, axis=-1), v)
        mixed = g.add("Transpose", mixed, perm=[0, 2, 1, 3])
        flat = g.add("Concat", batch, length, g.ints(-1), axis=0)
        mixed = g.add("Reshape", mixed, flat)
        x = g.add("Add", x, g.add("MatMul", mixed, g.weight(width, width)))
        y = norm(x)
        gate = g.add("MatMul", y, g.weight(width, inner))
        gate = g.add("Mul", gate, g.add("Sigmoid", gate))
        up = g.add("Mul", gate, g.add("MatMul", y, g.weight(width, inner)))
        x = g.add("Add", x, g.add("MatMul", up, g.weight(inner, width)))
    head_weights = g.add("Transpose", table, perm=[1, 0]) if tied else g.weight(width, vocabulary)
    y = g.add("MatMul", norm(x), head_weights)
    return g.save(folder / "decoder.onnx", {"ids": ["b", "s"]}, [y], {"ids": TensorProto.INT64})


def cached(folder: Path, vocabulary: int = 40) -> Path:
    """A decoder with a cache: what it attends to is a past of any length and the new tokens.

    The mask is of all of them, and looked up by places that are computed from sizes; positions are
    counted on from the past's length.
    """
    g = Builder()
    heads, head = 4, 8
    width = heads * head
    table = g.weight(vocabulary, width, scale=1)
    tokens, before = g.add("Shape", "input_ids"), g.add("Shape", "past_key_values.0.key")
    batch, new = (g.add("Gather", tokens, g.ints(i), axis=0) for i in (0, 1))
    past = g.add("Gather", before, g.ints(2), axis=0)
    zero, one = g.constant(0, np.int64), g.constant(1, np.int64)
    first, count = g.add("Squeeze", past), g.add("Squeeze", new)
    total = g.add("Add", first, count)
    places = g.add("Range", first, total, one)
    x = g.add("Add", g.add("Gather", table, "input_ids"),
              g.add("Gather", g.weight(64, width, scale=1), places))  # fmt: skip
    every = g.add("Range", zero, total, one)
    seen = g.add("Gather", "attention_mask", every, axis=1)
    seen = g.add("Cast", g.add("Unsqueeze", seen, g.ints(1, 2)), to=TensorProto.BOOL)
    later = g.add("Greater", every, g.add("Unsqueeze", places, g.ints(1)))
    hidden = g.add("Or", g.add("Not", seen), later)
    results = []
    for layer in range(2):
        parts = []
        for _ in range(3):
            sizes = g.add("Concat", batch, new, g.ints(heads), g.ints(head), axis=0)
            part = g.add("Reshape", g.dense(x, width, width), sizes)
            parts.append(g.add("Transpose", part, perm=[0, 2, 1, 3]))
        q, k, v = parts
        k = g.add("Concat", f"past_key_values.{layer}.key", k, axis=2)
        v = g.add("Concat", f"past_key_values.{layer}.value", v, axis=2)
        results += [k, v]
        scores = g.add("MatMul", q, g.add("Transpose", k, perm=[0, 1, 3, 2]))
        scores = g.add("Where", hidden, g.constant(-1e9, np.float32), scores)
        mixed = g.add("MatMul", g.add("Softmax", scores, axis=-1), v)
        mixed = g.add("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = g.add("Reshape", mixed, g.add("Concat", batch, new, g.ints(width), axis=0))
        x = g.add("Add", x, g.dense(mixed, width, width))
    logits = g.add("MatMul", x, g.weight(width, vocabulary))
    caches = [f"past_key_values.{layer}.{kind}" for layer in (0, 1) for kind in ("key", "value")]
    inputs: dict[str, list[Any]] = {
        "input_ids": ["batch_size", "sequence_length"],
        "attention_mask": ["batch_size", "total_sequence_length"],
        **{name: ["batch_size", heads, "past_sequence_length", head] for name in caches},
    }
    dtypes = dict.fromkeys(("input_ids", "attention_mask"), TensorProto.INT64)
    return g.save(folder / "cached.onnx", inputs, [logits, *results], dtypes)


def cached_inputs(batch: int, new: int, past: int, seed: int = 0) -> dict[str, Array]:
    """Inputs of `cached` of these sizes."""
    random = np.random.default_rng(seed)
    caches = [f"past_key_values.{layer}.{kind}" for layer in (0, 1) for kind in ("key", "value")]
    mask = random.integers(0, 2, (batch, past + new))
    mask[:, -1] = 1
    return {
        "input_ids": random.integers(0, 40, (batch, new)),
        "attention_mask": mask,
        **{n: random.standard_normal((batch, 4, past, 8)).astype(np.float32) for n in caches},
    }


def detector(folder: Path) -> Path:
    """A detector of any height and width: what was halved is doubled, and joined with itself.

    So both are to be even.
    """
    g = Builder()

    def conv(x: str, inside: int, out: int, **more: Any) -> str:
        weights = g.weight(out, inside, 3, 3), g.weight(out)
        return str(g.add("Relu", g.add("Conv", x, *weights, pads=[1] * 4, **more)))

    x = conv("x", 3, 8)
    low = conv(x, 8, 16, strides=[2, 2])
    scales = g.constant([1, 1, 2, 2], np.float32)
    high = g.add("Resize", conv(low, 16, 8), "", scales, mode="nearest")
    y = conv(g.add("Add", x, high), 8, 8)
    y = g.add("Sigmoid", g.add("Conv", y, g.weight(1, 8, 1, 1), g.weight(1)))
    return g.save(folder / "detector.onnx", {"x": ["n", 3, "h", "w"]}, [y])


def convolutions(folder: Path) -> Path:
    """Convolutions, one a channel, pooling, a join of two branches, then a classifier."""
    g = Builder()

    def conv(x: str, inside: int, out: int, kernel: int, group: int = 1) -> str:
        weights = g.weight(out, inside // group, kernel, kernel), g.weight(out)
        return g.add("Conv", x, *weights, group=group, pads=[kernel // 2] * 4)

    x = g.add("Relu", conv("x", 3, 64, 3))
    x = g.add("Relu", conv(x, 64, 64, 3, group=64))
    branches = [conv(x, 64, 64, 1), g.add("MaxPool", x, kernel_shape=[1, 1])]
    x = conv(g.add("Concat", *branches, axis=1), 128, 64, 1)
    x = g.add("GlobalAveragePool", x)
    y = g.add("Gemm", g.add("Flatten", x), g.weight(64, 10), g.weight(10))
    return g.save(folder / "convolutions.onnx", {"x": [2, 3, 12, 12]}, [x, y])


def channels(folder: Path) -> Path:
    """Convolutions alone, of which each rank has channels in multiples of 16 with 2 and 4 ranks."""
    g = Builder()
    x = g.add("Relu", g.add("Conv", "x", g.weight(64, 3, 3, 3), g.weight(64), pads=[1] * 4))
    x = g.add("Relu", g.add("Conv", x, g.weight(64, 1, 3, 3), g.weight(64), pads=[1] * 4, group=64))
    y = g.add("Conv", x, g.weight(64, 64, 1, 1), g.weight(64))
    return g.save(folder / "channels.onnx", {"x": [2, 3, 12, 12]}, [y])


def lstm(folder: Path) -> Path:
    """An LSTM between two products."""
    g = Builder()
    x = g.dense("x", 8, 16)
    y, _, _ = g.add(
        "LSTM", x, g.weight(1, 48, 16), g.weight(1, 48, 12), g.weight(1, 96), outputs=3,
        hidden_size=12,
    )  # fmt: skip
    y = g.dense(g.add("Squeeze", y, g.ints(1)), 12, 8)
    return g.save(folder / "lstm.onnx", {"x": [5, "n", 8]}, [y])


def gathered(folder: Path) -> Path:
    """LSTMs, one way and both, that are large enough for their weights to be divided."""
    g = Builder()
    x = g.dense("x", 8, 64)
    weights = [g.weight(1, 256, 64, scale=0.1), g.weight(1, 256, 64, scale=0.1), g.weight(1, 512)]
    y, _, _ = g.add("LSTM", x, *weights, outputs=3, hidden_size=64)
    weights = [g.weight(2, 256, 64, scale=0.1), g.weight(2, 256, 64, scale=0.1), g.weight(2, 512)]
    y = g.add("Squeeze", y, g.ints(1))
    y, last, _ = g.add("LSTM", y, *weights, outputs=3, hidden_size=64, direction="bidirectional")
    return g.save(folder / "gathered.onnx", {"x": [5, "n", 8]}, [y, last])


def odd(folder: Path) -> Path:
    """Words, columns and groups of numbers that neither 2 nor 4 ranks divide evenly."""
    g = Builder()
    table = g.weight(251, 18)
    h = g.add("Gather", table, g.add("Cast", g.add("Mul", "x", g.constant(3.0, np.float32)), to=7))
    parts = g.add("Split", g.dense(h, 18, 27), g.ints(9, 11, 7), outputs=3, axis=-1)
    h = g.add("Relu", g.add("Concat", *parts, axis=-1))
    h = g.add("Reshape", g.dense(h, 27, 45), g.ints(0, 0, 9, 5))
    h = g.add("Reshape", g.add("ReduceMax", h, axes=[3], keepdims=0), g.ints(0, 0, 9, 1))
    h = g.add("Transpose", h, perm=[0, 2, 1, 3])
    h = g.add("Conv", h, g.weight(18, 1, 1, 1), group=9)
    h = g.dense(g.add("GlobalAveragePool", h), 1, 13)
    return g.save(folder / "odd.onnx", {"x": ["n", 6]}, [h])


def unknown(folder: Path) -> Path:
    """Operators without a rule between divided ones: NonZero, Det, a function, a body of an If."""
    g = Builder()
    x = g.dense("x", 8, 16)
    det = g.add("Det", g.add("Reshape", x, g.ints(-1, 4, 4)))
    places = g.add("Cast", g.add("NonZero", g.add("Greater", x, g.constant(0, np.float32))), to=1)
    rows = g.add("ReduceSum", places, g.ints(1), keepdims=0)
    swish = g.add("Swish2", x, domain="mine")
    branches = [
        helper.make_graph(
            [helper.make_node("Mul", [swish, name], [f"{name}_y"])],
            name,
            [],
            [helper.make_value_info(f"{name}_y", helper.make_tensor_type_proto(1, None))],
            [numpy_helper.from_array(np.float32(value), name)],
        )
        for name, value in (("then", 2.0), ("else", -1.0))
    ]
    is_positive = g.add("Greater", g.add("ReduceSum", x, keepdims=0), g.constant(0, np.float32))
    y = g.add("If", is_positive, then_branch=branches[0], else_branch=branches[1])
    y = g.dense(g.add("Relu", y), 16, 8)
    body = [helper.make_node("Sigmoid", ["a"], ["s"]), helper.make_node("Mul", ["a", "s"], ["y"])]
    function = helper.make_function(
        "mine", "Swish2", ["a"], ["y"], body, [helper.make_opsetid("", 17)]
    )
    return g.save(folder / "unknown.onnx", {"x": [4, 8]}, [y, det, rows], functions=[function])


def quantized(folder: Path) -> Path:
    """int8 weights with a scale for each column, in QDQ form, and a MatMulInteger."""
    g = Builder()
    rng = np.random.default_rng(3)

    def product(x: str, inside: int, out: int) -> str:
        weights = g.constant(rng.integers(-127, 127, (inside, out)), np.int8)
        scales = g.constant(rng.random(out) / 500, np.float32)
        zeros = g.constant(np.zeros(out), np.int8)
        return g.add("MatMul", x, g.add("DequantizeLinear", weights, scales, zeros, axis=1))

    x = product(g.add("Relu", product("x", 8, 16)), 16, 8)
    whole = g.add("QuantizeLinear", x, g.constant(0.05, np.float32), g.constant(128, np.uint8))
    weights = g.constant(rng.integers(-127, 127, (8, 12)), np.int8)
    product_ = g.add("MatMulInteger", whole, weights, g.constant(128, np.uint8))
    return g.save(
        folder / "quantized.onnx", {"x": ["n", 8]}, [x, product_], {product_: TensorProto.INT32}
    )


def shuffled(folder: Path) -> Path:
    """Channels shuffled between grouped convolutions, as ShuffleNet does, and Einsum."""
    g = Builder()
    x = g.add("Conv", "x", g.weight(16, 4, 1, 1), g.weight(16), group=2)
    x = g.add("Reshape", x, g.ints(0, 4, 4, 6, 6))
    x = g.add("Reshape", g.add("Transpose", x, perm=[0, 2, 1, 3, 4]), g.ints(0, 16, 6, 6))
    x = g.add("Conv", x, g.weight(16, 1, 3, 3), g.weight(16), group=16, pads=[1] * 4)
    y = g.add("Einsum", x, g.weight(16, 10), equation="bchw,cd->bdhw")
    return g.save(folder / "shuffled.onnx", {"x": [2, 8, 6, 6]}, [y])


def attention_node(folder: Path, kind: str = "Attention") -> Path:
    """Attention in one node, with the products around it; two heads of keys for four of queries."""
    g = Builder(opset=23)
    heads, kv_heads, head = 4, 4 if kind in ("MultiHeadAttention", "Fused") else 2, 8
    width, length = heads * head, 6
    inputs: dict[str, Sequence[Any]] = {"x": [2, length, width]}
    if kind == "Fused":
        y = g.add(
            "Attention", "x", g.weight(width, 3 * width), g.weight(3 * width),
            num_heads=heads, domain="com.microsoft",
        )  # fmt: skip
    else:
        q = g.dense("x", width, width)
        k, v = (g.dense("x", width, kv_heads * head) for _ in range(2))
        if kind == "Attention":
            y = g.add("Attention", q, k, v, q_num_heads=heads, kv_num_heads=kv_heads)
        elif kind == "MultiHeadAttention":
            bias = g.weight(3 * width)
            y = g.add(kind, q, k, v, bias, num_heads=heads, domain="com.microsoft")
        else:
            lengths = g.constant([length - 1] * 2, np.int32), g.constant(length, np.int32)
            y = g.add(
                kind, q, k, v, "", "", *lengths, num_heads=heads, kv_num_heads=kv_heads,
                domain="com.microsoft",
            )  # fmt: skip
    y = g.dense(y, width, width)
    return g.save(folder / f"{kind}.onnx", inputs, [y])


MODELS: dict[str, Callable[[Path], Path]] = {
    "mlp": mlp,
    "gemms": gemms,
    "column": column,
    "attention": attention,
    "attention_split": lambda folder: attention(folder, "split"),
    "attention_slice": lambda folder: attention(folder, "slice"),
    "attention_gather": lambda folder: attention(folder, "gather"),
    "decoder": decoder,
    "decoder_untied": lambda folder: decoder(folder, tied=False),
    "node_attention": attention_node,
    "node_multi_head": lambda folder: attention_node(folder, "MultiHeadAttention"),
    "node_grouped_query": lambda folder: attention_node(folder, "GroupQueryAttention"),
    "node_fused": lambda folder: attention_node(folder, "Fused"),
    "convolutions": convolutions,
    "channels": channels,
    "lstm": lstm,
    "unknown": unknown,
    "quantized": quantized,
    "shuffled": shuffled,
}
