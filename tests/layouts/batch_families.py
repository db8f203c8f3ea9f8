"""Models of one node or a few, by what their operators do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from batch_bodies import calls, control
from batch_cases import BOOL, I64, B, Case, F, case, node, one, placed
from onnx import NodeProto, TensorProto

_UNARY = (
    "Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Erf", "Sign", "Softplus", "Elu",
    "Identity", "HardSigmoid", "LeakyRelu", "Ceil", "Round", "IsNaN", "Softsign", "Selu", "Gelu",
    "Mish",
)  # fmt: skip
_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "Greater", "Equal")


def elementwise() -> Iterator[Case]:
    """Unary operators, and binary ones with every kind of broadcasting."""
    for kind in _UNARY:
        yield one(f"{kind} x", {"x": (B, 3)})
    for kind in _BINARY:
        for shape in placed((2, 3, 4)):
            for other in ((), (1,), (4,), (3, 1), (2, 3, 4), (1, 3, 4), (1, 1, 1)):
                weight = np.arange(1, 1 + int(np.prod(other)), dtype=np.float32).reshape(other)
                yield one(f"{kind} x w", {"x": shape}, {"w": weight})
            for other in ((B, 3, 4), (2, B, 4), (B, 1, 1), (B, 4), (B,), (B, 2, 3, 4)):
                yield one(f"{kind} x z", {"x": shape, "z": other})
    for shape in placed((3, 4)):
        yield one("Where c x w", {"c": (BOOL, shape), "x": shape}, {"w": np.float32(2)})
        yield one("Clip x - w", {"x": shape}, {"w": np.float32(0.5)})
        yield one("PRelu x w", {"x": shape}, {"w": np.full(4, 0.5, np.float32)})


def shapes() -> Iterator[Case]:
    """Operators that move elements: every axis of the batch, every way to say a shape."""
    for shape in placed((2, 3, 4)):
        for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (0, 2, 1)):
            yield one("Transpose x", {"x": shape}, perm=order)
        for target in (
            (-1, 12), (-1, 4), (0, 12), (0, -1), (2, -1), (-1,), (1, -1), (3, -1), (6, -1),
            (-1, 2, 2, 3), (0, 0, 2, 2), (-1, 1, 3, 4), (2, -1, 2), (2, -1, 4), (2, 3, -1),
            (-1, 8), (-1, 6), (4, -1), (0, 3, -1),
        ):  # fmt: skip
            yield one("Reshape x s", {"x": shape}, {"s": target})
        for at in range(-3, 4):
            yield one("Flatten x", {"x": shape}, axis=at)
        for pads in ((0,) * 6, (1, 0, 0, 0, 0, 0), (0, 1, 0, 0, 1, 0), (0, 0, 1, 0, 0, 2)):
            yield one("Pad x p", {"x": shape}, {"p": pads})
            yield one("Tile x p", {"x": shape}, {"p": 1 + np.array(pads[:3])})
        for at, (start, end, step) in product(
            range(3), ((0, 2**62, 1), (0, 1, 1), (1, 2**62, 1), (-1, 2**62, 1), (0, 2**62, 2),
                       (-1, -(2**62), -1), (0, -1, 1)),
        ):  # fmt: skip
            yield one(
                "Slice x a b c d", {"x": shape}, {"a": [start], "b": [end], "c": [at], "d": [step]}
            )
        for at in range(-4, 4):
            if at < 3:
                yield one("Concat x x", {"x": shape}, axis=max(at, -3))
            yield one("Unsqueeze x a", {"x": shape}, {"a": [at]})
        for at in range(3):
            yield one("Split x", {"x": shape}, outputs=("y", "z"), axis=at, num_outputs=2)
        yield one("Concat x w", {"x": shape}, {"w": np.ones((2, 3, 1), np.float32)}, axis=2)
        for upper in (0, 1):
            yield one("Trilu x", {"x": shape}, upper=upper)
    for shape in placed((1, 1, 4)):
        yield one("Squeeze x", {"x": shape})
        for at in range(2):
            yield one("Squeeze x a", {"x": shape}, {"a": [at]})
        for target in ((1, 1, 4), (1, 3, 4), (2, 1, 4), (5, 1, 1, 4)):
            yield one("Expand x s", {"x": shape}, {"s": target})


def computed_shapes() -> Iterator[Case]:
    """Shapes that come from Shape, as exporters write them."""
    first = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["b"]),
             node("Unsqueeze", ["b", "axis"], ["b1"])]  # fmt: skip
    base = {"zero": np.array(0), "axis": np.array([0]), "w": np.ones((1, 2), np.float32),
            "minus": np.array([-1]), "two": np.array([2]), "six": np.array([6]),
            "one": np.array([1]), "half": np.array(0.5, np.float32)}  # fmt: skip
    shape = {"x": (B, 3, 4)}
    for parts in (("b1", "minus"), ("b1", "two", "six"), ("b1", "two", "minus"),
                  ("minus", "two", "six"), ("two", "b1", "six"), ("two", "minus"),
                  ("one", "b1", "minus"), ("minus", "b1")):  # fmt: skip
        yield case(
            f"Reshape-to-{parts}",
            [*first, node("Concat", parts, ["t"], axis=0), node("Reshape", ["x", "t"], ["y"])],
            shape, base,
        )  # fmt: skip
    for parts in (("b1", "two"), ("one", "two"), ("two", "b1", "two"), ("b1", "b1")):
        yield case(
            f"Expand-to-{parts}",
            [*first, node("Concat", parts, ["t"], axis=0), node("Expand", ["w", "t"], ["y"])],
            shape, base,
        )  # fmt: skip
        yield case(
            f"ConstantOfShape-{parts}",
            [*first, node("Concat", parts, ["t"], axis=0), node("ConstantOfShape", ["t"], ["y"])],
            shape, base,
        )  # fmt: skip
    tail: dict[str, list[NodeProto]] = {
        "times": [node("Mul", ["b1", "six"], ["t"]), node("Div", ["t", "two"], ["u"]),
                  node("Concat", ["u", "minus"], ["v"], axis=0),
                  node("Reshape", ["x", "v"], ["y"])],
        "half": [node("Div", ["b1", "two"], ["u"]), node("Concat", ["u", "minus"], ["v"], axis=0),
                 node("Reshape", ["x", "v"], ["y"])],
        "data": [node("Cast", ["b"], ["f"], to=F), node("Div", ["x", "f"], ["y"])],
        "count": [node("Cast", ["s"], ["y"], to=F)],
        "where": [node("Equal", ["b1", "minus"], ["e"]), node("Where", ["e", "one", "b1"], ["u"]),
                  node("Concat", ["u", "minus"], ["v"], axis=0),
                  node("Reshape", ["x", "v"], ["y"])],
        "own": [node("Range", ["zero", "b", "one0"], ["i"]), node("Gather", ["x", "i"], ["y"])],
        "next": [node("Range", ["zero", "b", "one0"], ["i"]), node("Sub", ["b", "one0"], ["l"]),
                 node("Sub", ["l", "i"], ["j"]), node("Gather", ["x", "j"], ["y"])],
        "number": [node("Range", ["zero", "b", "one0"], ["i"]), node("Cast", ["i"], ["f"], to=F),
                   node("Unsqueeze", ["f", "axes"], ["g"]), node("Add", ["x", "g"], ["y"])],
        "slice": [node("Slice", ["x", "axis", "b1", "axis"], ["y"])],
        "slice-one": [node("Slice", ["x", "axis", "one", "axis"], ["y"])],
        "position": [node("Gather", ["table", "b"], ["p"]), node("Add", ["x", "p"], ["y"])],
        "size": [node("Size", ["x"], ["n"]), node("Cast", ["n"], ["f"], to=F),
                 node("ReduceSum", ["x"], ["q"], keepdims=0), node("Add", ["x", "f"], ["y"])],
        "topk": [node("TopK", ["x", "b1"], ["y", "i"], axis=1)],
        "tile": [node("Concat", ["b1", "one"], ["t"], axis=0), node("Tile", ["w", "t"], ["y"])],
    }  # fmt: skip
    more = {"one0": np.array(1), "axes": np.array([1, 2]), "table": np.ones((9, 4), np.float32)}
    for name, nodes in tail.items():
        yield case(f"shape-{name}", [*first, *nodes], shape, base | more)
    masks = [
        node("Range", ["zero", "b", "one0"], ["i"]),
        node("Unsqueeze", ["i", "axes"], ["i3"]),
        node("Max", ["i3", "k3"], ["m"]), node("Shape", ["m"], ["t"]),
        node("Expand", ["i3", "t"], ["ie"]), node("Expand", ["k3", "t"], ["ke"]),
        node("Unsqueeze", ["ie", "last"], ["iu"]), node("Unsqueeze", ["ke", "last"], ["ku"]),
    ]  # fmt: skip
    for name, pair in {"own": ["iu", "ku"], "swapped": ["ku", "iu"], "twice": ["iu", "iu"]}.items():
        yield case(
            f"GatherND-{name}",
            [*first, *masks, node("Concat", pair, ["n"], axis=-1),
             node("GatherND", ["x", "n"], ["y"])],
            shape,
            base | more | {"last": np.array([-1]), "k3": np.arange(3).reshape(1, 1, 3)},
        )  # fmt: skip


def indexing() -> Iterator[Case]:
    """Look-ups: in tables, in the samples' own parts, among samples."""
    table = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    for at in range(3):
        for shape in placed((3, 2)):
            yield one("Gather w i", {"i": (I64, shape)}, {"w": table}, high=2, axis=at)
        for shape in placed((2, 3, 4)):
            for ids in (np.array(0), np.array([1, 0]), np.array([[0, 1], [1, 0]])):
                yield one("Gather x i", {"x": shape}, {"i": ids}, axis=at)
            yield one("GatherElements x i", {"x": shape, "i": (I64, shape)}, high=2, axis=at)
            yield one(
                "ScatterElements x i z",
                {"x": shape, "i": (I64, shape), "z": shape},
                high=1,
                axis=at,
            )
            yield one("TopK x k", {"x": shape}, {"k": [1]}, outputs=("y", "i"), axis=at)
            yield one(
                "GatherElements w i",
                {"i": (I64, shape)},
                {"w": np.arange(64, dtype=np.float32).reshape(4, 4, 4)},
                high=2,
                axis=at,
            )
    for batches in range(2):
        yield one(
            "GatherND x i", {"x": (B, 3, 4), "i": (I64, (B, 2, 1))}, high=2, batch_dims=batches
        )
        yield one(
            "GatherND w i",
            {"i": (I64, (B, 2, 1))},
            {"w": np.ones((3, 3), np.float32)},
            high=2,
            batch_dims=batches,
        )
    for shape in placed((2, 3)):
        yield one("GatherND x i", {"x": shape}, {"i": [[0], [1]]})
        for at in range(-1, 3):
            yield one(
                "OneHot i d v",
                {"i": (I64, shape)},
                {"d": 3, "v": np.array([0.0, 1.0], np.float32)},
                axis=at,
            )
    yield one("ScatterND x i z", {"x": (B, 3), "z": (2, 3)}, {"i": [[0], [0]]})
    yield one("ScatterND x i z", {"x": (3, B), "z": (2, B)}, {"i": [[0], [1]]})
    for time, own in ((0, 1), (1, 0)):
        for shape in placed((3, 3)):
            yield one(
                "ReverseSequence x n",
                {"x": shape, "n": (I64, (B,))},
                time_axis=time,
                batch_axis=own,
            )
    yield one("NonZero x", {"x": (B, 3)})
    yield one("Compress x c", {"x": (B, 3)}, {"c": [True]}, axis=0)
    yield one("Unique x", {"x": (B, 3)})


def products() -> Iterator[Case]:
    """Products of matrices with the batch at every axis of either side, or both."""
    for a_shape, b_shape in (
        ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((3, 4), (2, 4, 5)),
        ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (1, 4, 5)), ((1, 3, 4), (2, 4, 5)),
    ):  # fmt: skip
        for x, right in product(placed(a_shape), (False, True)):
            other = np.ones(b_shape, np.float32) * np.arange(1, 1 + b_shape[-1], dtype=np.float32)
            yield one("MatMul x w", {"x": x}, {"w": other})
            for z in placed(b_shape) if right else ():
                yield one("MatMul x z", {"x": x, "z": z})
        for z in placed(b_shape):
            yield one("MatMul w z", {"z": z}, {"w": np.ones(a_shape, np.float32)})
    for turn_a, turn_b, x in product((0, 1), (0, 1), placed((4, 4))):
        for bias in ((), (4,), (1, 4), (4, 1), (4, 4)):
            yield one(
                "Gemm x w c",
                {"x": x},
                {"w": np.ones((4, 4), np.float32), "c": np.ones(bias, np.float32)},
                transA=turn_a,
                transB=turn_b,
            )
            yield one(
                "Gemm w x c",
                {"x": x},
                {"w": np.ones((4, 4), np.float32), "c": np.ones(bias, np.float32)},
                transA=turn_a,
                transB=turn_b,
            )
    for equation in ("bij->bij", "bij->bji", "bij->bi", "bij->ij", "bij->b", "ibj->bij", "bij",
                     "...i->...", "...ij->...ji", "i...->..."):  # fmt: skip
        for x in placed((2, 3, 4)):
            yield one("Einsum x", {"x": x}, equation=equation)
    for equation in ("bij,jk->bik", "bij,kj->bik", "bij,jk->ik", "bij,jk", "...ij,jk->...ik"):
        for x in placed((2, 3, 4)):
            yield one("Einsum x w", {"x": x}, {"w": np.ones((4, 4), np.float32)}, equation=equation)
    for equation in ("bij,bjk->bik", "bij,cjk->bcik", "bij,bij->b", "bij,bij->bij", "bij,bij->ij"):
        yield one("Einsum x z", {"x": (B, 4, 4), "z": (B, 4, 4)}, equation=equation)


def along() -> Iterator[Case]:
    """Reductions, normalisations and scans, along every axis with the batch at every axis."""
    for x, at in product(placed((2, 3, 4)), range(-3, 3)):
        for kind in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp"):
            for keeps in (0, 1):
                yield one(f"{kind} x a", {"x": x}, {"a": [at]}, keepdims=keeps)
                yield one(f"{kind} x", {"x": x}, opset=12, keepdims=keeps, axes=[at])
        for kind in ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"):
            yield one(f"{kind} x", {"x": x}, axis=at)
            if kind != "LpNormalization":
                yield one(f"{kind} x", {"x": x}, opset=11, axis=at)
        for kind in ("ArgMax", "ArgMin"):
            yield one(f"{kind} x", {"x": x}, axis=at, keepdims=at % 2)
        for more in ({}, {"exclusive": 1}, {"reverse": 1}):
            yield one("CumSum x a", {"x": x}, {"a": at}, **more)
        yield one("MeanVarianceNormalization x", {"x": x}, axes=[at])
        size = [2, 3, 4][at:]
        yield one("LayerNormalization x w", {"x": x}, {"w": np.ones(size, np.float32)}, axis=at)
    for kind in ("ReduceSum", "ReduceMax"):
        yield one(f"{kind} x", {"x": (B, 3)})
        yield one(f"{kind} x", {"x": (B, 3)}, noop_with_empty_axes=1)
    for x in placed((2, 3, 4, 4)):
        ones = {"s": np.ones(3, np.float32), "b": np.zeros(3, np.float32)}
        yield one("BatchNormalization x s b b s", {"x": x}, ones)
        yield one("InstanceNormalization x s b", {"x": x}, ones)
        yield one("GroupNormalization x s b", {"x": x}, ones, num_groups=3)
        yield one("LRN x", {"x": x}, size=3)
        yield one("Det x", {"x": x})
    yield case(
        "DynamicQuantizeLinear",
        [node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
         node("DequantizeLinear", ["q", "s", "z"], ["y"])], {"x": (B, 3)},
    )  # fmt: skip
    for x in placed((3, 3)):
        for scale in ((), (1,), (3,)):
            for at in (0, 1):
                yield case(
                    f"QuantizeLinear-{x.index(B)}-{scale}-{at}",
                    [node("QuantizeLinear", ["x", "s"], ["q"], axis=at),
                     node("DequantizeLinear", ["q", "s"], ["y"], axis=at)],
                    {"x": x}, {"s": np.linspace(0.1, 1, int(np.prod(scale)),
                                                dtype=np.float32).reshape(scale)},
                )  # fmt: skip
    for x in placed((2, 6, 1)):
        yield one("DFT x", {"x": x}, opset=17, axis=1)


def spatial() -> Iterator[Case]:
    """Convolutions, pooling, resizing, grids."""
    w = np.linspace(-1, 1, 4 * 3 * 3 * 3, dtype=np.float32).reshape(4, 3, 3, 3)
    for x in placed((2, 3, 6, 6)):
        for options in (
            {},
            {"pads": [1, 1, 1, 1]},
            {"strides": [2, 2]},
            {"auto_pad": "SAME_UPPER"},
        ):
            yield one("Conv x w", {"x": x}, {"w": w}, **options)
            if "auto_pad" in options:
                continue
            yield one("MaxPool x", {"x": x}, kernel_shape=[3, 3], **options)
            yield one("AveragePool x", {"x": x}, kernel_shape=[3, 3], **options)
        yield one("MaxPool x", {"x": x}, outputs=("y", "i"), kernel_shape=[2, 2])
        yield one("GlobalAveragePool x", {"x": x})
        yield one("GlobalMaxPool x", {"x": x})
        yield one(
            "ConvTranspose x w", {"x": x}, {"w": np.ones((3, 2, 2, 2), np.float32)}, strides=[2, 2]
        )
        for scales in ((1, 1, 2, 2), (1, 1, 0.5, 0.5), (2, 1, 1, 1), (1, 2, 1, 1)):
            yield one("Resize x - s", {"x": x}, {"s": np.array(scales, np.float32)})
        yield case(
            f"Resize-sizes-{x.index(B)}",
            [node("Shape", ["x"], ["n"], end=2), node("Concat", ["n", "m"], ["s"], axis=0),
             node("Resize", ["x", "", "", "s"], ["y"], mode="linear")], {"x": x},
            {"m": np.array([3, 9])},
        )  # fmt: skip
        yield one("SpaceToDepth x", {"x": x}, blocksize=2)
    for x in placed((2, 4, 2, 2)):
        yield one("DepthToSpace x", {"x": x}, blocksize=2)
    yield one("Conv w x", {"x": (B, 3, 3, 3)}, {"w": np.ones((2, 3, 6, 6), np.float32)})
    yield one("GridSample x g", {"x": (B, 2, 4, 4), "g": (B, 3, 3, 2)})
    yield case(
        "flat head",
        [node("Conv", ["x", "w"], ["c"]), node("Reshape", ["c", "s"], ["y"])],
        {"x": (B, 3, 6, 6)}, {"w": w, "s": np.array([-1, 64])},
    )  # fmt: skip
    yield case(
        "flat head that joins",
        [node("Conv", ["x", "w"], ["c"]), node("Reshape", ["c", "s"], ["y"])],
        {"x": (B, 3, 6, 6)}, {"w": w, "s": np.array([-1, 128])},
    )  # fmt: skip


def recurrent() -> Iterator[Case]:
    """LSTM, GRU and RNN; the batch along the samples, and along time."""
    for kind, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        weights = {
            "w": np.full((1, gates * 2, 4), 0.3, np.float32),
            "r": np.full((1, gates * 2, 2), 0.2, np.float32),
        }
        for x in placed((3, 3, 4)):
            yield one(f"{kind} x w r", {"x": x}, weights, outputs=("y", "h"), hidden_size=2)
        yield one(
            f"{kind} x w r - n i",
            {"x": (3, B, 4), "n": (TensorProto.INT32, (B,)), "i": (1, B, 2)},
            weights,
            outputs=("y", "h"),
            hidden_size=2,
        )


def attention() -> Iterator[Case]:
    """Attention of ONNX and of com.microsoft, with masks."""
    for mask in (None, (3, 3), (1, 1, 3, 3), (B, 1, 3, 3), (2, 3, 3)):
        inputs: dict[str, Any] = dict.fromkeys("qkv", (B, 2, 3, 4))
        names = ["q", "k", "v"]
        weights = {}
        if mask and B in mask:
            inputs["m"] = mask
        elif mask:
            weights["m"] = np.tril(np.ones(mask, np.float32))
        yield case(
            f"Attention-{mask}",
            [node("Attention", names + (["m"] if mask else []), ["y"])], inputs, weights, opset=23,
        )  # fmt: skip
    yield one("Attention q k v", dict.fromkeys("qkv", (1, B, 3, 4)), opset=23)
    yield one("Attention q k v", dict.fromkeys("qkv", (1, 2, B, 4)), opset=23)
    yield one(
        "MultiHeadAttention q k v",
        dict.fromkeys("qkv", (B, 3, 4)),
        domain="com.microsoft",
        num_heads=2,
    )
    yield one(
        "Attention x w b",
        {"x": (B, 3, 4)},
        {"w": np.ones((4, 12), np.float32), "b": np.ones(12, np.float32)},
        domain="com.microsoft",
        num_heads=2,
    )
    for rows in ((B, 3, 4), (3, 4)):
        yield one(
            "SkipLayerNormalization x s g",
            {"x": (B, 3, 4), "s": rows},
            {"g": np.ones(4, np.float32)},
            domain="com.microsoft",
        )
    # Written out over [samples, features], where samples attend to each other.
    yield case(
        "self attention over rows",
        [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["s"]),
         node("Softmax", ["s"], ["p"], axis=-1), node("MatMul", ["p", "x"], ["y"])],
        {"x": (B, 4)},
    )  # fmt: skip


def tables() -> Iterator[Case]:
    """Operators of ai.onnx.ml on rows of a table."""
    for x in placed((3, 3)):
        yield one(
            "Scaler x", {"x": x}, domain="ai.onnx.ml", offset=[0.0, 1.0, 2.0], scale=[1.0, 2.0, 3.0]
        )
        yield one("Normalizer x", {"x": x}, domain="ai.onnx.ml", norm="L2")
        yield one(
            "LinearRegressor x",
            {"x": x},
            domain="ai.onnx.ml",
            coefficients=[1.0, 2.0, 3.0],
            intercepts=[1.0],
        )
        yield one("ArrayFeatureExtractor x i", {"x": x}, {"i": [0, 2]}, domain="ai.onnx.ml")


def blocks() -> Iterator[Case]:
    """Time and batch made one axis, and taken apart again."""
    w = {"w": np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4), "s": np.array([-1, 4]),
         "t": np.array([3, -1, 4]), "u": np.array([-1, 3, 4]), "axis": np.array([0])}  # fmt: skip
    start = [node("Transpose", ["x"], ["a"], perm=[1, 0, 2]), node("Reshape", ["a", "s"], ["b"])]
    tails = {
        "back": [node("Gemm", ["b", "w"], ["c"]), node("Reshape", ["c", "t"], ["d"]),
                 node("Transpose", ["d"], ["y"], perm=[1, 0, 2])],
        "wrong": [node("Gemm", ["b", "w"], ["c"]), node("Reshape", ["c", "u"], ["y"])],
        "kept": [node("Relu", ["b"], ["y"])],
        "softmax": [node("Softmax", ["b"], ["c"], axis=0), node("Reshape", ["c", "t"], ["d"]),
                    node("Transpose", ["d"], ["y"], perm=[1, 0, 2])],
        "other": [node("Reshape", ["x", "s"], ["o"]), node("Add", ["b", "o"], ["c"]),
                  node("Reshape", ["c", "t"], ["d"]),
                  node("Transpose", ["d"], ["y"], perm=[1, 0, 2])],
    }  # fmt: skip
    for name, tail in tails.items():
        yield case(f"blocks-{name}", [*start, *tail], {"x": (B, 3, 4)}, w)


FAMILIES = {
    "elementwise": elementwise, "shapes": shapes, "computed_shapes": computed_shapes,
    "indexing": indexing, "products": products, "along": along, "spatial": spatial,
    "recurrent": recurrent, "attention": attention, "control": control, "calls": calls,
    "tables": tables, "blocks": blocks,
}  # fmt: skip
