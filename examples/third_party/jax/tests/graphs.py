"""Models with random weights, built node by node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Graph:
    """Collects nodes and weights; `add` returns the name of a node's first output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.random = np.random.default_rng(26)

    def add(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        names = [f"{op_type}_{len(self.nodes)}_{at}" for at in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, names[0], **attributes))
        return names[0]

    def constant(self, value: Any, dtype: str = "float32") -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        inner = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        return self.constant(self.random.standard_normal(shape) / np.sqrt(inner))

    def conv(self, x: str, inside: int, out: int, size: int = 3, stride: int = 1) -> str:
        pads, bias = [size // 2] * 4, self.constant(np.zeros(out))
        weight = self.weight(out, inside, size, size)
        return self.add("Conv", x, weight, bias, pads=pads, strides=[stride] * 2)

    def dense(self, x: str, inside: int, out: int) -> str:
        product = self.add("MatMul", x, self.weight(inside, out))
        return self.add("Add", product, self.weight(1, out))

    def save(self, path: Path, inputs: dict[str, Any], outputs: dict[str, int]) -> Path:
        values = [
            helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()
        ]
        results = [
            helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()
        ]
        graph = helper.make_graph(self.nodes, path.stem, values, results, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)
        return path


def unet(folder: Path, width: int = 32) -> Path:
    """A denoiser: residual blocks with group norm and SiLU, attention, a time that is embedded."""
    g = Graph()

    def norm(x: str, channels: int) -> str:
        ones, zeros = g.constant(np.ones(channels)), g.constant(np.zeros(channels))
        return g.add("GroupNormalization", x, ones, zeros, num_groups=8)

    def silu(x: str) -> str:
        return g.add("Mul", x, g.add("Sigmoid", x))

    def block(x: str, inside: int, out: int) -> str:
        y = g.conv(silu(norm(x, inside)), inside, out)
        shift = g.add("Unsqueeze", g.dense(time, 64, out), g.constant([2, 3], "int64"))
        y = g.conv(silu(norm(g.add("Add", y, shift), out)), out, out)
        return g.add("Add", y, x if inside == out else g.conv(x, inside, out, 1))

    def attention(x: str, channels: int) -> str:
        flat = g.add("Flatten", norm(x, channels), axis=2)
        shape = g.add("Shape", x)
        rows = g.add("Reshape", flat, g.constant([0, channels, -1], "int64"))
        rows = g.add("Transpose", rows, perm=[0, 2, 1])
        q, k, v = (g.dense(rows, channels, channels) for _ in range(3))
        scores = g.add("MatMul", q, g.add("Transpose", k, perm=[0, 2, 1]))
        mixed = g.add("MatMul", g.add("Softmax", g.add("Mul", scores, g.constant(0.1))), v)
        back = g.add("Transpose", g.dense(mixed, channels, channels), perm=[0, 2, 1])
        return g.add("Add", x, g.add("Reshape", back, shape))

    angle = g.add("Mul", "t", g.constant(10 ** np.linspace(0, -4, 32)[None]))
    time = silu(g.dense(g.add("Concat", g.add("Sin", angle), g.add("Cos", angle), axis=1), 64, 64))
    x, skips = g.conv("x", 4, width), []
    for inside, out in ((width, width), (width, 2 * width)):
        x = block(x, inside, out)
        skips.append((x, out))
        x = g.conv(x, out, out, stride=2)
    x = block(attention(block(x, 2 * width, 2 * width), 2 * width), 2 * width, 2 * width)
    inside = 2 * width
    for skip, out in reversed(skips):
        x = g.add("Resize", x, "", g.constant([1, 1, 2, 2]), mode="nearest",
                  coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
        x = block(g.add("Concat", g.conv(x, inside, out), skip, axis=1), 2 * out, out)
        inside = out
    y = g.conv(silu(norm(x, width)), width, 4)
    kinds = {"x": (TensorProto.FLOAT, ["n", 4, 32, 32]), "t": (TensorProto.FLOAT, ["n", 1])}
    return g.save(folder / "unet.onnx", kinds, {y: TensorProto.FLOAT})


def bert(folder: Path, layers: int = 4, hidden: int = 128, heads: int = 4) -> Path:
    """An encoder of tokens as exporters write it: embeddings, a mask, shapes that are computed."""
    g, head = Graph(), hidden // heads

    def norm(x: str) -> str:
        ones, zeros = g.constant(np.ones(hidden)), g.constant(np.zeros(hidden))
        return g.add("LayerNormalization", x, ones, zeros, axis=-1, epsilon=1e-12)

    shape = g.add("Shape", "tokens")
    length = g.add("Gather", shape, g.constant(1, "int64"))
    places = g.add("Range", g.constant(0, "int64"), length, g.constant(1, "int64"))
    words = g.add("Gather", g.weight(1000, hidden), "tokens")
    x = norm(g.add("Add", words, g.add("Gather", g.weight(128, hidden), places)))
    visible = g.add("Cast", g.add("Unsqueeze", "mask", g.constant([1, 2], "int64")), to=1)
    hides = g.add("Mul", g.add("Sub", g.constant(1.0), visible), g.constant(-1e4))
    split = g.add("Concat", shape, g.constant([heads, head], "int64"), axis=0)
    join = g.add("Concat", shape, g.constant([hidden], "int64"), axis=0)
    for _ in range(layers):
        parts = [g.add("Reshape", g.dense(x, hidden, hidden), split) for _ in range(3)]
        orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        q, k, v = (g.add("Transpose", part, perm=order) for part, order in zip(parts, orders))
        scores = g.add("Div", g.add("MatMul", q, k), g.constant(head**0.5))
        weights = g.add("Softmax", g.add("Add", scores, hides), axis=-1)
        mixed = g.add("Transpose", g.add("MatMul", weights, v), perm=[0, 2, 1, 3])
        x = norm(g.add("Add", x, g.dense(g.add("Reshape", mixed, join), hidden, hidden)))
        inner = g.dense(x, hidden, 4 * hidden)
        gate = g.add("Add", g.add("Erf", g.add("Div", inner, g.constant(2**0.5))), g.constant(1.0))
        inner = g.add("Mul", g.add("Mul", inner, gate), g.constant(0.5))
        x = norm(g.add("Add", x, g.dense(inner, 4 * hidden, hidden)))
    first = g.add("Gather", x, g.constant(0, "int64"), axis=1)
    pooled = g.add("Tanh", g.dense(first, hidden, hidden))
    kinds = {name: (TensorProto.INT64, ["n", "length"]) for name in ("tokens", "mask")}
    return g.save(folder / "bert.onnx", kinds, {x: TensorProto.FLOAT, pooled: TensorProto.FLOAT})


def detector(folder: Path) -> Path:
    """A detection head: boxes and scores of two scales, sorted out by NonMaxSuppression."""
    g, boxes, scores, x, inside = Graph(), [], [], "x", 3
    for out, stride in ((16, 4), (32, 2)):
        x = g.add("LeakyRelu", g.conv(x, inside, out, stride=stride), alpha=0.1)
        x = g.add("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
        inside = out
        for found, width in ((boxes, 4), (scores, 5)):
            rows = g.add("Transpose", g.conv(x, out, width, 1), perm=[0, 2, 3, 1])
            found.append(g.add("Reshape", rows, g.constant([0, -1, width], "int64")))
    box, score = g.add("Concat", *boxes, axis=1), g.add("Concat", *scores, axis=1)
    box = g.add("Sigmoid", box)
    score = g.add("Transpose", g.add("Sigmoid", score), perm=[0, 2, 1])
    kept = g.add("NonMaxSuppression", box, score, g.constant([20], "int64"),
                 g.constant([0.5]), g.constant([0.4]))  # fmt: skip
    outputs = {box: TensorProto.FLOAT, score: TensorProto.FLOAT, kept: TensorProto.INT64}
    return g.save(folder / "detector.onnx", {"x": (TensorProto.FLOAT, [1, 3, 64, 64])}, outputs)


def resnet(folder: Path) -> Path:
    """A residual network with batch norm, as a converter writes it."""
    g = Graph()

    def conv(x: str, inside: int, out: int, stride: int = 1) -> str:
        y, ones, zeros = g.conv(x, inside, out, stride=stride), np.ones(out), np.zeros(out)
        values = [g.constant(each) for each in (ones, zeros, 0.1 * ones, 2 * ones)]
        return g.add("BatchNormalization", y, *values)

    x, inside = g.add("Relu", conv("x", 3, 16, 2)), 16
    for out, stride in ((16, 1), (32, 2), (64, 2)):
        y = conv(g.add("Relu", conv(x, inside, out, stride)), out, out)
        short = x if inside == out else conv(x, inside, out, stride)
        x, inside = g.add("Relu", g.add("Add", y, short)), out
    x = g.add("Flatten", g.add("GlobalAveragePool", x))
    y = g.add("Softmax", g.add("Gemm", x, g.weight(10, 64), g.weight(1, 10), transB=1))
    kinds = {"x": (TensorProto.FLOAT, ["n", 3, 64, 64])}
    return g.save(folder / "resnet.onnx", kinds, {y: TensorProto.FLOAT})


def small_weights(folder: Path) -> Path:
    """A perceptron whose weights are stored as int8, for each column with its own scale."""
    g, x, inside = Graph(), "x", 64
    for out in (256, 256, 10):
        stored = g.constant(g.random.integers(-127, 128, (inside, out)), "int8")
        scale = g.constant(g.random.uniform(0.5, 1, out) / 127 / np.sqrt(inside))
        weight = g.add("DequantizeLinear", stored, scale, g.constant(np.zeros(out), "int8"), axis=1)
        x = g.add("Add", g.add("MatMul", x, weight), g.weight(1, out))
        x, inside = (x if out == 10 else g.add("Gelu", x)), out
    cast = g.add("Cast", g.constant(g.random.integers(-127, 128, (10, 5)), "int8"), to=1)
    x = g.add("MatMul", x, g.add("Mul", cast, g.constant(0.01)))
    kinds = {"x": (TensorProto.FLOAT, ["n", 64])}
    return g.save(folder / "small_weights.onnx", kinds, {x: TensorProto.FLOAT})


def upscaler(folder: Path) -> Path:
    """An image to image network: transposed convolutions, linear resizing, pixels from depth."""
    g = Graph()
    x = g.add("PRelu", g.conv("x", 3, 16), g.constant(np.full((16, 1, 1), 0.2)))
    up = g.add("ConvTranspose", x, g.weight(16, 8, 4, 4), strides=[2, 2], pads=[1] * 4)
    x = g.add("InstanceNormalization", up, g.constant(np.ones(8)), g.constant(np.zeros(8)))
    x = g.add("Pad", x, g.constant([0, 0, 1, 1, 0, 0, 1, 1], "int64"), mode="reflect")
    x = g.add("AveragePool", x, kernel_shape=[3, 3])
    x = g.add("DepthToSpace", g.conv(x, 8, 12), blocksize=2)
    small = g.add("Resize", "x", "", g.constant([1, 1, 4, 4]), mode="linear")
    y = g.add("Clip", g.add("Add", x, small), g.constant(-2.0), g.constant(2.0))
    kinds = {"x": (TensorProto.FLOAT, ["n", 3, 24, 24])}
    return g.save(folder / "upscaler.onnx", kinds, {y: TensorProto.FLOAT})


BUILT = (unet, bert, detector, resnet, small_weights, upscaler)
