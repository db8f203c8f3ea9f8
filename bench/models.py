"""The models that the benchmarks run, made here with random weights: speed does not read them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17

os.environ.setdefault("ENGINE_CACHE", "off")  # a benchmark that wants the cache says so


class Graph:
    """Collects nodes and weights; `add` returns the name of a node's first output."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(seed)

    def add(self, op_type: str, inputs: list[str], **attributes: object) -> str:
        name = f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        """A random weight scaled so that activations neither grow nor fade."""
        fan_in = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        array = self._random.standard_normal(shape) * (2 / max(fan_in, 1)) ** 0.5
        return self.constant(array.astype(np.float32))

    def constant(self, array: np.ndarray) -> str:
        name = f"w_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def save(
        self,
        path: Path,
        inputs: dict[str, tuple[int, list[int | str]]],
        outputs: dict[str, list[int | str]],
    ) -> Path:
        """Write the model; the outputs are float32 and named as nodes' outputs are."""
        graph = helper.make_graph(
            self.nodes,
            path.stem,
            [helper.make_tensor_value_info(n, t, dims) for n, (t, dims) in inputs.items()],
            [
                helper.make_tensor_value_info(n, TensorProto.FLOAT, dims)
                for n, dims in outputs.items()
            ],
            self.weights,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8
        )
        path.write_bytes(model.SerializeToString())
        return path


def layers(folder: Path, width: int, count: int) -> Path:
    """MatMul and Relu, `count` times, on rows of `width`; the batch is open."""
    g, y = Graph(), "x"
    for _ in range(count):
        y = g.add("Relu", [g.add("MatMul", [y, g.weight(width, width)])])
    return g.save(
        folder / f"layers-{width}-{count}.onnx", {"x": (1, ["b", width])}, {y: ["b", width]}
    )


def tiny(folder: Path) -> Path:
    """Two 16x16 layers with ReLU: next to nothing but the cost of a call."""
    g = Graph()
    x = "x"
    for _ in range(2):
        x = g.add("Relu", [g.add("Gemm", [x, g.weight(16, 16)])])
    return g.save(folder / "tiny.onnx", {"x": (TensorProto.FLOAT, [1, 16])}, {x: [1, 16]})


def many(folder: Path) -> Path:
    """Eight inputs, eight outputs, one small operator between each pair."""
    g = Graph()
    names = [g.add("Relu", [f"x{i}"]) for i in range(8)]
    inputs = {f"x{i}": (TensorProto.FLOAT, [1, 16]) for i in range(8)}
    return g.save(folder / "many.onnx", inputs, {name: [1, 16] for name in names})


def classifier(folder: Path, classes: int = 3, features: int = 4) -> Path:
    """A classifier as scikit-learn exports it: a label, and a map of probabilities for each row."""
    domain, labels = "ai.onnx.ml", list(range(classes))
    weights = np.random.default_rng(0).standard_normal(classes * features)
    linear = helper.make_node(
        "LinearClassifier", ["x"], ["label", "scores"], domain=domain,
        coefficients=weights.tolist(), intercepts=[0.0] * classes, classlabels_ints=labels,
        multi_class=1, post_transform="SOFTMAX",
    )  # fmt: skip
    named = helper.make_node(
        "ZipMap", ["scores"], ["probabilities"], domain=domain, classlabels_int64s=labels
    )
    of_row = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, ())
    )
    graph = helper.make_graph(
        [linear, named],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, features])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, [1]),
            helper.make_value_info("probabilities", helper.make_sequence_type_proto(of_row)),
        ],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(domain, 1)]
    path = folder / "classifier.onnx"
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def mobilenet_v2(folder: Path) -> Path:
    """MobileNetV2 at 224x224 (Sandler et al. 2018, table 2), normalisation folded into biases."""
    g = Graph()

    def conv(x: str, inside: int, out: int, kernel: int, stride: int, group: int = 1) -> str:
        weights = [
            x,
            g.weight(out, inside // group, kernel, kernel),
            g.constant(np.zeros(out, "f")),
        ]
        pad = kernel // 2
        return g.add(
            "Conv",
            weights,
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
            group=group,
        )

    low, high = g.constant(np.float32(0)), g.constant(np.float32(6))

    def relu6(x: str) -> str:
        return g.add("Clip", [x, low, high])

    x, width = relu6(conv("x", 3, 32, 3, 2)), 32
    for expand, out, repeat, first in [
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]:  # fmt: skip
        for index in range(repeat):
            stride = first if index == 0 else 1
            inner, y = width * expand, x
            if expand != 1:
                y = relu6(conv(y, width, inner, 1, 1))
            y = conv(relu6(conv(y, inner, inner, 3, stride, inner)), inner, out, 1, 1)
            x = g.add("Add", [x, y]) if stride == 1 and width == out else y
            width = out
    x = g.add("GlobalAveragePool", [relu6(conv(x, width, 1280, 1, 1))])
    x = g.add(
        "Gemm", [g.add("Flatten", [x]), g.weight(1280, 1000), g.constant(np.zeros(1000, "f"))]
    )
    return g.save(
        folder / "mobilenet_v2.onnx", {"x": (TensorProto.FLOAT, [1, 3, 224, 224])}, {x: [1, 1000]}
    )


def bert_like(
    folder: Path, layers: int = 6, hidden: int = 384, heads: int = 12, length: int = 128
) -> Path:
    """An encoder of BERT's shape (post-norm, GELU by Erf) over embedded tokens, batch 1."""
    g = Graph()
    head = hidden // heads
    split = g.constant(np.array([1, length, heads, head], np.int64))
    join = g.constant(np.array([1, length, hidden], np.int64))
    scale = g.constant(np.float32(head**-0.5))
    half, one, root = (g.constant(np.float32(v)) for v in (0.5, 1.0, 2**-0.5))

    def dense(x: str, inside: int, out: int) -> str:
        product = g.add("MatMul", [x, g.weight(inside, out)])
        return g.add("Add", [product, g.constant(np.zeros(out, "f"))])

    def norm(x: str) -> str:
        gain, bias = np.ones(hidden, "f"), np.zeros(hidden, "f")
        return g.add("LayerNormalization", [x, g.constant(gain), g.constant(bias)], axis=-1)

    x = "x"
    for _ in range(layers):
        q, k, v = (g.add("Reshape", [dense(x, hidden, hidden), split]) for _ in range(3))
        q, v = (g.add("Transpose", [t], perm=[0, 2, 1, 3]) for t in (q, v))
        scores = g.add("MatMul", [q, g.add("Transpose", [k], perm=[0, 2, 3, 1])])
        weights = g.add("Softmax", [g.add("Mul", [scores, scale])], axis=-1)
        mixed = g.add("Transpose", [g.add("MatMul", [weights, v])], perm=[0, 2, 1, 3])
        x = norm(g.add("Add", [x, dense(g.add("Reshape", [mixed, join]), hidden, hidden)]))
        inner = dense(x, hidden, 4 * hidden)
        gate = g.add("Add", [g.add("Erf", [g.add("Mul", [inner, root])]), one])
        inner = g.add("Mul", [g.add("Mul", [inner, gate]), half])
        x = norm(g.add("Add", [x, dense(inner, 4 * hidden, hidden)]))
    return g.save(
        folder / "bert_like.onnx",
        {"x": (TensorProto.FLOAT, [1, length, hidden])},
        {x: [1, length, hidden]},
    )


def resnet50(folder: Path) -> Path:
    """ResNet-50 at 224x224 (He et al. 2016, table 1), normalisation folded into biases."""
    g = Graph()

    def conv(x: str, inside: int, out: int, kernel: int, stride: int = 1) -> str:
        weights = [g.weight(out, inside, kernel, kernel), g.constant(np.zeros(out, "f"))]
        return g.add("Conv", [x, *weights], strides=[stride] * 2, pads=[kernel // 2] * 4)

    x = g.add("Relu", [conv("x", 3, 64, 7, 2)])
    x = g.add("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width = 64
    for inner, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and inner > 64 else 1
            y = g.add("Relu", [conv(x, width, inner, 1)])
            y = conv(g.add("Relu", [conv(y, inner, inner, 3, stride)]), inner, 4 * inner, 1)
            half = g.constant(np.float32(0.5))  # keeps the sums of random blocks from growing
            short = conv(x, width, 4 * inner, 1, stride) if block == 0 else x
            x = g.add("Relu", [g.add("Mul", [g.add("Add", [short, y]), half])])
            width = 4 * inner
    x = g.add("Flatten", [g.add("GlobalAveragePool", [x])])
    x = g.add("Gemm", [x, g.weight(2048, 1000), g.constant(np.zeros(1000, "f"))])
    return g.save(
        folder / "resnet50.onnx", {"x": (TensorProto.FLOAT, [1, 3, 224, 224])}, {x: [1, 1000]}
    )


def decoder(
    folder: Path, layers: int = 6, hidden: int = 768, heads: int = 12, past: int = 128
) -> Path:
    """One step of a decoder (pre-norm, GELU by Erf): a token beside `past` keys and values."""
    g = Graph()
    head = hidden // heads
    split = g.constant(np.array([1, heads, 1, head], np.int64))
    join = g.constant(np.array([1, 1, hidden], np.int64))
    scale = g.constant(np.float32(head**-0.5))
    half, one, root = (g.constant(np.float32(v)) for v in (0.5, 1.0, 2**-0.5))
    gain, bias = g.constant(np.ones(hidden, "f")), g.constant(np.zeros(hidden, "f"))
    caches: dict[str, tuple[int, list[int | str]]] = {}
    kept: dict[str, list[int | str]] = {}

    def dense(x: str, inside: int, out: int) -> str:
        product = g.add("MatMul", [x, g.weight(inside, out)])
        return g.add("Add", [product, g.constant(np.zeros(out, "f"))])

    def longer(x: str, name: str) -> str:
        caches[name] = (TensorProto.FLOAT, [1, heads, past, head])
        whole = g.add("Concat", [name, g.add("Reshape", [x, split])], axis=2)
        kept[whole] = [1, heads, past + 1, head]
        return whole

    x = "x"
    for layer in range(layers):
        normed = g.add("LayerNormalization", [x, gain, bias], axis=-1)
        q, k, v = (dense(normed, hidden, hidden) for _ in range(3))
        keys, values = longer(k, f"k{layer}"), longer(v, f"v{layer}")
        turned = g.add("Transpose", [keys], perm=[0, 1, 3, 2])
        scores = g.add("Mul", [g.add("MatMul", [g.add("Reshape", [q, split]), turned]), scale])
        mixed = g.add("MatMul", [g.add("Softmax", [scores], axis=-1), values])
        x = g.add("Add", [x, dense(g.add("Reshape", [mixed, join]), hidden, hidden)])
        inner = dense(g.add("LayerNormalization", [x, gain, bias], axis=-1), hidden, 4 * hidden)
        gate = g.add("Add", [g.add("Erf", [g.add("Mul", [inner, root])]), one])
        inner = g.add("Mul", [g.add("Mul", [inner, gate]), half])
        x = g.add("Add", [x, dense(inner, 4 * hidden, hidden)])
    x = g.add("LayerNormalization", [x, gain, bias], axis=-1)
    return g.save(
        folder / "decoder.onnx",
        {"x": (TensorProto.FLOAT, [1, 1, hidden]), **caches},
        {x: [1, 1, hidden], **kept},
    )


MODELS: dict[str, Callable[[Path], Path]] = {
    "tiny": tiny,
    "many": many,
    "mobilenet_v2": mobilenet_v2,
    "bert_like": bert_like,
}
