"""Models of one node or a few, with the batch at each axis, and what running them shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
B = "B"
"""Stands for the batch in a shape."""
F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


class Case(NamedTuple):
    """A model. inputs: dtype and shape by name; high: values of integer inputs are below it."""

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, tuple[int, tuple[Any, ...]]]
    high: int = 3

    def axes(self) -> dict[str, int | None]:
        """Return the batch axis of each input."""
        return {
            name: shape.index(B) if B in shape else None for name, (_, shape) in self.inputs.items()
        }

    def values(self, batch: int, chance: np.random.Generator, kind: int) -> dict[str, Array]:
        """Return inputs: ordinary ones, large ones, windows of values, and extremes."""
        made = {}
        for name, (dtype, shape) in self.inputs.items():
            sizes = [batch if size == B else size for size in shape]
            if dtype == F:
                array = chance.standard_normal(sizes).astype(np.float32)
                if kind == 1:
                    array = chance.uniform(5, 100, sizes).astype(np.float32)
                elif kind == 2:
                    rows = chance.choice([-1e4, 1e4, 0, 3e38, 1], sizes)
                    array = rows.astype(np.float32)
                made[name] = array
            elif dtype == BOOL:
                made[name] = chance.integers(0, 2, sizes).astype(bool)
            else:
                high = self.high if kind else 2
                made[name] = chance.integers(0, high, sizes).astype(
                    helper.tensor_dtype_to_np_dtype(dtype)
                )
        return made


def case(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    weights: Mapping[str, Any] | None = None,
    *,
    opset: int = 22,
    outputs: Sequence[str] = ("y",),
    high: int = 3,
    functions: Sequence[onnx.FunctionProto] = (),
) -> Case:
    """Make a case. inputs: a shape, or a dtype and a shape."""
    typed = {
        key: spec if isinstance(spec[0] if spec else 0, int) and _is_typed(spec) else (F, spec)
        for key, spec in inputs.items()
    }
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(key, dtype, shape) for key, (dtype, shape) in typed.items()],
        [onnx.ValueInfoProto(name=key) for key in outputs],
        [numpy_helper.from_array(np.asarray(array), key) for key, array in (weights or {}).items()],
    )
    domains = {one.domain for one in nodes} | {"", "com.microsoft", "ai.onnx.ml", "local"}
    versions = {"": opset, "com.microsoft": 1, "ai.onnx.ml": 3, "local": 1}
    opsets = [helper.make_opsetid(domain, versions[domain]) for domain in sorted(domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)
    inferred = onnx.shape_inference.infer_shapes(model)
    for value, found in zip(model.graph.output, inferred.graph.output):
        value.CopyFrom(found)
        if not value.type.tensor_type.elem_type:
            value.type.tensor_type.elem_type = F
        value.type.tensor_type.ClearField("shape")
    return Case(name, model, typed, high)


def _is_typed(spec: Any) -> bool:
    return len(spec) == 2 and isinstance(spec[1], tuple)


def placed(shape: Sequence[int]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield a shape with the batch in place of each of its sizes."""
    for axis in range(len(shape)):
        yield axis, (*shape[:axis], B, *shape[axis + 1 :])


def opened(model: onnx.ModelProto) -> Callable[[Mapping[str, Array]], list[Any]]:
    """Open a model with onnxruntime where that is, else with onnx's evaluator."""
    try:
        import onnxruntime
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(model)
        return lambda feeds: list(evaluator.run(None, dict(feeds)))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda feeds: list(session.run(None, dict(feeds)))


_UNARY = (
    "Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Erf", "Sign", "Softplus", "Elu",
    "Identity", "HardSigmoid", "LeakyRelu", "Ceil", "Round", "IsNaN", "Softsign", "Selu", "Gelu",
    "Mish",
)  # fmt: skip
_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "Greater", "Equal")


def elementwise() -> Iterator[Case]:
    """Unary operators, and binary ones with every kind of broadcasting."""
    for kind in _UNARY:
        yield case(kind, [node(kind, ["x"], ["y"])], {"x": (B, 3)})
    for kind in _BINARY:
        for axis, shape in placed((2, 3, 4)):
            for other in ((), (1,), (4,), (3, 1), (2, 3, 4), (1, 3, 4), (1, 1, 1)):
                weight = np.arange(1, 1 + int(np.prod(other)), dtype=np.float32).reshape(other)
                yield case(
                    f"{kind}-{axis}-{other}", [node(kind, ["x", "w"], ["y"])], {"x": shape},
                    {"w": weight},
                )  # fmt: skip
            for other in ((B, 3, 4), (2, B, 4), (B, 1, 1), (B, 4), (B,), (B, 2, 3, 4)):
                yield case(
                    f"{kind}-{axis}-{other}", [node(kind, ["x", "z"], ["y"])],
                    {"x": shape, "z": other},
                )  # fmt: skip
    for axis, shape in placed((3, 4)):
        yield case(
            f"Where-{axis}", [node("Where", ["c", "x", "w"], ["y"])],
            {"c": (BOOL, shape), "x": shape}, {"w": np.float32(2)},
        )  # fmt: skip
        yield case(
            f"Clip-{axis}", [node("Clip", ["x", "", "w"], ["y"])], {"x": shape},
            {"w": np.float32(0.5)},
        )  # fmt: skip
        yield case(
            f"PRelu-{axis}", [node("PRelu", ["x", "w"], ["y"])], {"x": shape},
            {"w": np.full(4, 0.5, np.float32)},
        )  # fmt: skip


def shapes() -> Iterator[Case]:
    """Operators that move elements: every axis of the batch, every way to say a shape."""
    for axis, shape in placed((2, 3, 4)):
        for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (0, 2, 1)):
            yield case(
                f"Transpose-{axis}-{order}", [node("Transpose", ["x"], ["y"], perm=order)],
                {"x": shape},
            )  # fmt: skip
        for target in (
            (-1, 12), (-1, 4), (0, 12), (0, -1), (2, -1), (-1,), (1, -1), (3, -1), (6, -1),
            (-1, 2, 2, 3), (0, 0, 2, 2), (-1, 1, 3, 4), (2, -1, 2), (2, -1, 4), (2, 3, -1),
            (-1, 8), (-1, 6), (4, -1), (0, 3, -1),
        ):  # fmt: skip
            yield case(
                f"Reshape-{axis}-{target}", [node("Reshape", ["x", "s"], ["y"])], {"x": shape},
                {"s": np.array(target)},
            )  # fmt: skip
        for at in range(-3, 4):
            yield case(
                f"Flatten-{axis}-{at}", [node("Flatten", ["x"], ["y"], axis=at)], {"x": shape}
            )
        for pads in (
            (0, 0, 0, 0, 0, 0),
            (1, 0, 0, 0, 0, 0),
            (0, 1, 0, 0, 1, 0),
            (0, 0, 1, 0, 0, 2),
        ):
            yield case(
                f"Pad-{axis}-{pads}", [node("Pad", ["x", "p"], ["y"])], {"x": shape},
                {"p": np.array(pads)},
            )  # fmt: skip
            yield case(
                f"Tile-{axis}-{pads}", [node("Tile", ["x", "p"], ["y"])], {"x": shape},
                {"p": 1 + np.array(pads[:3])},
            )  # fmt: skip
        for at, (start, end, step) in product(
            range(3), ((0, 2**62, 1), (0, 1, 1), (1, 2**62, 1), (-1, 2**62, 1), (0, 2**62, 2),
                       (-1, -(2**62), -1), (0, -1, 1)),
        ):  # fmt: skip
            yield case(
                f"Slice-{axis}-{at}-{start}:{end}:{step}",
                [node("Slice", ["x", "a", "b", "c", "d"], ["y"])], {"x": shape},
                {"a": np.array([start]), "b": np.array([end]), "c": np.array([at]),
                 "d": np.array([step])},
            )  # fmt: skip
        for at in range(-4, 4):
            if at < 3:
                yield case(
                    f"Concat-{axis}-{at}",
                    [node("Concat", ["x", "x"], ["y"], axis=max(at, -3))], {"x": shape},
                )  # fmt: skip
            yield case(
                f"Unsqueeze-{axis}-{at}", [node("Unsqueeze", ["x", "a"], ["y"])], {"x": shape},
                {"a": np.array([at])},
            )  # fmt: skip
        for at in range(3):
            yield case(
                f"Split-{axis}-{at}", [node("Split", ["x"], ["y", "z"], axis=at, num_outputs=2)],
                {"x": shape}, outputs=("y", "z"),
            )  # fmt: skip
        yield case(
            f"Concat-const-{axis}", [node("Concat", ["x", "w"], ["y"], axis=2)], {"x": shape},
            {"w": np.ones((2, 3, 1), np.float32)},
        )  # fmt: skip
        for upper in (0, 1):
            yield case(
                f"Trilu-{axis}-{upper}", [node("Trilu", ["x"], ["y"], upper=upper)], {"x": shape}
            )
    for axis, shape in placed((1, 1, 4)):
        yield case(f"Squeeze-all-{axis}", [node("Squeeze", ["x"], ["y"])], {"x": shape})
        for at in range(2):
            yield case(
                f"Squeeze-{axis}-{at}", [node("Squeeze", ["x", "a"], ["y"])], {"x": shape},
                {"a": np.array([at])},
            )  # fmt: skip
        for target in ((1, 1, 4), (1, 3, 4), (2, 1, 4), (5, 1, 1, 4)):
            yield case(
                f"Expand-{axis}-{target}", [node("Expand", ["x", "s"], ["y"])], {"x": shape},
                {"s": np.array(target)},
            )  # fmt: skip


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
    tail: dict[str, list[onnx.NodeProto]] = {
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
        for axis, shape in placed((3, 2)):
            yield case(
                f"Gather-table-{at}-{axis}", [node("Gather", ["w", "i"], ["y"], axis=at)],
                {"i": (I64, shape)}, {"w": table}, high=2,
            )  # fmt: skip
        for axis, shape in placed((2, 3, 4)):
            for ids in (np.array(0), np.array([1, 0]), np.array([[0, 1], [1, 0]])):
                yield case(
                    f"Gather-{at}-{axis}-{ids.ndim}",
                    [node("Gather", ["x", "i"], ["y"], axis=at)], {"x": shape}, {"i": ids},
                )  # fmt: skip
            yield case(
                f"GatherElements-{at}-{axis}",
                [node("GatherElements", ["x", "i"], ["y"], axis=at)],
                {"x": shape, "i": (I64, shape)}, high=2,
            )  # fmt: skip
            yield case(
                f"ScatterElements-{at}-{axis}",
                [node("ScatterElements", ["x", "i", "z"], ["y"], axis=at)],
                {"x": shape, "i": (I64, shape), "z": shape}, high=1,
            )  # fmt: skip
            yield case(
                f"TopK-{at}-{axis}", [node("TopK", ["x", "k"], ["y", "i"], axis=at)],
                {"x": shape}, {"k": np.array([1])}, outputs=("y", "i"),
            )  # fmt: skip
            yield case(
                f"GatherElements-table-{at}-{axis}",
                [node("GatherElements", ["w", "i"], ["y"], axis=at)],
                {"i": (I64, shape)}, {"w": np.arange(64, dtype=np.float32).reshape(4, 4, 4)},
                high=2,
            )  # fmt: skip
    for batches in range(2):
        yield case(
            f"GatherND-{batches}", [node("GatherND", ["x", "i"], ["y"], batch_dims=batches)],
            {"x": (B, 3, 4), "i": (I64, (B, 2, 1))}, high=2,
        )  # fmt: skip
        yield case(
            f"GatherND-table-{batches}", [node("GatherND", ["w", "i"], ["y"], batch_dims=batches)],
            {"i": (I64, (B, 2, 1))}, {"w": np.ones((3, 3), np.float32)}, high=2,
        )  # fmt: skip
    for axis, shape in placed((2, 3)):
        yield case(
            f"GatherND-whole-{axis}", [node("GatherND", ["x", "i"], ["y"])], {"x": shape},
            {"i": np.array([[0], [1]])},
        )  # fmt: skip
        for at in range(-1, 3):
            yield case(
                f"OneHot-{axis}-{at}", [node("OneHot", ["i", "d", "v"], ["y"], axis=at)],
                {"i": (I64, shape)}, {"d": np.array(3), "v": np.array([0.0, 1.0], np.float32)},
            )  # fmt: skip
    yield case(
        "ScatterND", [node("ScatterND", ["x", "i", "z"], ["y"])], {"x": (B, 3), "z": (2, 3)},
        {"i": np.array([[0], [0]])},
    )  # fmt: skip
    yield case(
        "ScatterND-tail", [node("ScatterND", ["x", "i", "z"], ["y"])], {"x": (3, B), "z": (2, B)},
        {"i": np.array([[0], [1]])},
    )  # fmt: skip
    for time, own in ((0, 1), (1, 0)):
        for axis, shape in placed((3, 3)):
            yield case(
                f"ReverseSequence-{time}-{axis}",
                [node("ReverseSequence", ["x", "n"], ["y"], time_axis=time, batch_axis=own)],
                {"x": shape, "n": (I64, (B,))},
            )  # fmt: skip
    yield case("NonZero", [node("NonZero", ["x"], ["y"])], {"x": (B, 3)})
    yield case(
        "Compress", [node("Compress", ["x", "c"], ["y"], axis=0)], {"x": (B, 3)},
        {"c": np.array([True])},
    )  # fmt: skip
    yield case("Unique", [node("Unique", ["x"], ["y"])], {"x": (B, 3)})


def products() -> Iterator[Case]:
    """Products of matrices with the batch at every axis of either side, or both."""
    for a_shape, b_shape in (
        ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((3, 4), (2, 4, 5)),
        ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (1, 4, 5)), ((1, 3, 4), (2, 4, 5)),
    ):  # fmt: skip
        for (axis, x), right in product(placed(a_shape), (False, True)):
            other = np.ones(b_shape, np.float32) * np.arange(1, 1 + b_shape[-1], dtype=np.float32)
            yield case(
                f"MatMul-{a_shape}-{b_shape}-{axis}", [node("MatMul", ["x", "w"], ["y"])],
                {"x": x}, {"w": other},
            )  # fmt: skip
            for at, z in placed(b_shape) if right else ():
                yield case(
                    f"MatMul-both-{a_shape}-{b_shape}-{axis}-{at}",
                    [node("MatMul", ["x", "z"], ["y"])], {"x": x, "z": z},
                )  # fmt: skip
        for at, z in placed(b_shape):
            yield case(
                f"MatMul-right-{a_shape}-{b_shape}-{at}", [node("MatMul", ["w", "z"], ["y"])],
                {"z": z}, {"w": np.ones(a_shape, np.float32)},
            )  # fmt: skip
    for turn_a, turn_b, (axis, x) in product((0, 1), (0, 1), placed((4, 4))):
        for bias in ((), (4,), (1, 4), (4, 1), (4, 4)):
            yield case(
                f"Gemm-{turn_a}-{turn_b}-{axis}-{bias}",
                [node("Gemm", ["x", "w", "c"], ["y"], transA=turn_a, transB=turn_b)], {"x": x},
                {"w": np.ones((4, 4), np.float32), "c": np.ones(bias, np.float32)},
            )  # fmt: skip
            yield case(
                f"Gemm-right-{turn_a}-{turn_b}-{axis}-{bias}",
                [node("Gemm", ["w", "x", "c"], ["y"], transA=turn_a, transB=turn_b)], {"x": x},
                {"w": np.ones((4, 4), np.float32), "c": np.ones(bias, np.float32)},
            )  # fmt: skip
    for equation in ("bij->bij", "bij->bji", "bij->bi", "bij->ij", "bij->b", "ibj->bij", "bij",
                     "...i->...", "...ij->...ji", "i...->..."):  # fmt: skip
        for axis, x in placed((2, 3, 4)):
            yield case(
                f"Einsum-{equation}-{axis}", [node("Einsum", ["x"], ["y"], equation=equation)],
                {"x": x},
            )  # fmt: skip
    for equation in ("bij,jk->bik", "bij,kj->bik", "bij,jk->ik", "bij,jk", "...ij,jk->...ik"):
        for axis, x in placed((2, 3, 4)):
            yield case(
                f"Einsum-{equation}-{axis}", [node("Einsum", ["x", "w"], ["y"], equation=equation)],
                {"x": x}, {"w": np.ones((4, 4), np.float32)},
            )  # fmt: skip
    for equation in ("bij,bjk->bik", "bij,cjk->bcik", "bij,bij->b", "bij,bij->bij", "bij,bij->ij"):
        yield case(
            f"Einsum-two-{equation}", [node("Einsum", ["x", "z"], ["y"], equation=equation)],
            {"x": (B, 4, 4), "z": (B, 4, 4)},
        )  # fmt: skip


def along() -> Iterator[Case]:
    """Reductions, normalisations and scans, along every axis with the batch at every axis."""
    for (axis, x), at in product(placed((2, 3, 4)), range(-3, 3)):
        for kind in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp"):
            for keeps in (0, 1):
                yield case(
                    f"{kind}-{axis}-{at}-{keeps}",
                    [node(kind, ["x", "a"], ["y"], keepdims=keeps)], {"x": x},
                    {"a": np.array([at])},
                )  # fmt: skip
                yield case(
                    f"{kind}-old-{axis}-{at}-{keeps}",
                    [node(kind, ["x"], ["y"], keepdims=keeps, axes=[at])], {"x": x},
                    opset=12,
                )  # fmt: skip
        for kind in ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"):
            yield case(f"{kind}-{axis}-{at}", [node(kind, ["x"], ["y"], axis=at)], {"x": x})
            if kind != "LpNormalization":
                yield case(
                    f"{kind}-old-{axis}-{at}", [node(kind, ["x"], ["y"], axis=at)], {"x": x},
                    opset=11,
                )  # fmt: skip
        for kind in ("ArgMax", "ArgMin"):
            yield case(
                f"{kind}-{axis}-{at}", [node(kind, ["x"], ["y"], axis=at, keepdims=at % 2)],
                {"x": x},
            )  # fmt: skip
        for more in ({}, {"exclusive": 1}, {"reverse": 1}):
            yield case(
                f"CumSum-{axis}-{at}-{more}", [node("CumSum", ["x", "a"], ["y"], **more)],
                {"x": x}, {"a": np.array(at)},
            )  # fmt: skip
        yield case(
            f"MeanVarianceNormalization-{axis}-{at}",
            [node("MeanVarianceNormalization", ["x"], ["y"], axes=[at])], {"x": x},
        )  # fmt: skip
        size = [2, 3, 4][at:]
        yield case(
            f"LayerNormalization-{axis}-{at}",
            [node("LayerNormalization", ["x", "w"], ["y"], axis=at)], {"x": x},
            {"w": np.ones(size, np.float32)},
        )  # fmt: skip
    for kind in ("ReduceSum", "ReduceMax"):
        yield case(f"{kind}-all", [node(kind, ["x"], ["y"])], {"x": (B, 3)})
        yield case(
            f"{kind}-none", [node(kind, ["x"], ["y"], noop_with_empty_axes=1)], {"x": (B, 3)}
        )
    for axis, x in placed((2, 3, 4, 4)):
        ones = {"s": np.ones(3, np.float32), "b": np.zeros(3, np.float32)}
        yield case(
            f"BatchNormalization-{axis}",
            [node("BatchNormalization", ["x", "s", "b", "b", "s"], ["y"])], {"x": x}, ones,
        )  # fmt: skip
        yield case(
            f"InstanceNormalization-{axis}",
            [node("InstanceNormalization", ["x", "s", "b"], ["y"])], {"x": x}, ones,
        )  # fmt: skip
        yield case(
            f"GroupNormalization-{axis}",
            [node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=3)], {"x": x}, ones,
        )  # fmt: skip
        yield case(f"LRN-{axis}", [node("LRN", ["x"], ["y"], size=3)], {"x": x})
        yield case(f"Det-{axis}", [node("Det", ["x"], ["y"])], {"x": x})
    yield case(
        "DynamicQuantizeLinear",
        [node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
         node("DequantizeLinear", ["q", "s", "z"], ["y"])], {"x": (B, 3)},
    )  # fmt: skip
    for axis, x in placed((3, 3)):
        for scale in ((), (1,), (3,)):
            for at in (0, 1):
                yield case(
                    f"QuantizeLinear-{axis}-{scale}-{at}",
                    [node("QuantizeLinear", ["x", "s"], ["q"], axis=at),
                     node("DequantizeLinear", ["q", "s"], ["y"], axis=at)],
                    {"x": x}, {"s": np.linspace(0.1, 1, int(np.prod(scale)),
                                                dtype=np.float32).reshape(scale)},
                )  # fmt: skip
    for axis, x in placed((2, 6, 1)):
        yield case(f"DFT-{axis}", [node("DFT", ["x"], ["y"], axis=1)], {"x": x}, opset=17)


def spatial() -> Iterator[Case]:
    """Convolutions, pooling, resizing, grids."""
    w = np.linspace(-1, 1, 4 * 3 * 3 * 3, dtype=np.float32).reshape(4, 3, 3, 3)
    for axis, x in placed((2, 3, 6, 6)):
        for options in (
            {},
            {"pads": [1, 1, 1, 1]},
            {"strides": [2, 2]},
            {"auto_pad": "SAME_UPPER"},
        ):
            yield case(
                f"Conv-{axis}-{options}", [node("Conv", ["x", "w"], ["y"], **options)], {"x": x},
                {"w": w},
            )  # fmt: skip
            if "auto_pad" in options:
                continue
            yield case(
                f"MaxPool-{axis}-{options}",
                [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], **options)], {"x": x},
            )  # fmt: skip
            yield case(
                f"AveragePool-{axis}-{options}",
                [node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], **options)], {"x": x},
            )  # fmt: skip
        yield case(
            f"MaxPool-places-{axis}",
            [node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2])], {"x": x},
            outputs=("y", "i"),
        )  # fmt: skip
        yield case(f"GlobalAveragePool-{axis}", [node("GlobalAveragePool", ["x"], ["y"])], {"x": x})
        yield case(f"GlobalMaxPool-{axis}", [node("GlobalMaxPool", ["x"], ["y"])], {"x": x})
        yield case(
            f"ConvTranspose-{axis}", [node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])],
            {"x": x}, {"w": np.ones((3, 2, 2, 2), np.float32)},
        )  # fmt: skip
        for scales in ((1, 1, 2, 2), (1, 1, 0.5, 0.5), (2, 1, 1, 1), (1, 2, 1, 1)):
            yield case(
                f"Resize-{axis}-{scales}", [node("Resize", ["x", "", "s"], ["y"])], {"x": x},
                {"s": np.array(scales, np.float32)},
            )  # fmt: skip
        yield case(
            f"Resize-sizes-{axis}",
            [node("Shape", ["x"], ["n"], end=2), node("Concat", ["n", "m"], ["s"], axis=0),
             node("Resize", ["x", "", "", "s"], ["y"], mode="linear")], {"x": x},
            {"m": np.array([3, 9])},
        )  # fmt: skip
        yield case(
            f"SpaceToDepth-{axis}", [node("SpaceToDepth", ["x"], ["y"], blocksize=2)], {"x": x}
        )
    for axis, x in placed((2, 4, 2, 2)):
        yield case(
            f"DepthToSpace-{axis}", [node("DepthToSpace", ["x"], ["y"], blocksize=2)], {"x": x}
        )
    yield case(
        "Conv-weights", [node("Conv", ["w", "x"], ["y"])], {"x": (B, 3, 3, 3)},
        {"w": np.ones((2, 3, 6, 6), np.float32)},
    )  # fmt: skip
    yield case(
        "GridSample", [node("GridSample", ["x", "g"], ["y"])],
        {"x": (B, 2, 4, 4), "g": (B, 3, 3, 2)},
    )  # fmt: skip
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
        for axis, x in placed((3, 3, 4)):
            yield case(
                f"{kind}-{axis}", [node(kind, ["x", "w", "r"], ["y", "h"], hidden_size=2)],
                {"x": x}, weights, outputs=("y", "h"),
            )  # fmt: skip
        yield case(
            f"{kind}-states",
            [node(kind, ["x", "w", "r", "", "n", "i"], ["y", "h"], hidden_size=2)],
            {"x": (3, B, 4), "n": (TensorProto.INT32, (B,)), "i": (1, B, 2)}, weights,
            outputs=("y", "h"),
        )  # fmt: skip


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
    yield case(
        "Attention-heads", [node("Attention", ["q", "k", "v"], ["y"])],
        dict.fromkeys("qkv", (1, B, 3, 4)), opset=23,
    )  # fmt: skip
    yield case(
        "Attention-rows", [node("Attention", ["q", "k", "v"], ["y"])],
        dict.fromkeys("qkv", (1, 2, B, 4)), opset=23,
    )  # fmt: skip
    yield case(
        "MultiHeadAttention",
        [node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=2)],
        dict.fromkeys("qkv", (B, 3, 4)),
    )  # fmt: skip
    yield case(
        "fused Attention",
        [node("Attention", ["x", "w", "b"], ["y"], domain="com.microsoft", num_heads=2)],
        {"x": (B, 3, 4)}, {"w": np.ones((4, 12), np.float32), "b": np.ones(12, np.float32)},
    )  # fmt: skip
    for rows in ((B, 3, 4), (3, 4)):
        yield case(
            f"SkipLayerNormalization-{rows}",
            [node("SkipLayerNormalization", ["x", "s", "g"], ["y"], domain="com.microsoft")],
            {"x": (B, 3, 4), "s": rows}, {"g": np.ones(4, np.float32)},
        )  # fmt: skip
    # Written out over [samples, features], where samples attend to each other.
    yield case(
        "self attention over rows",
        [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["s"]),
         node("Softmax", ["s"], ["p"], axis=-1), node("MatMul", ["p", "x"], ["y"])],
        {"x": (B, 4)},
    )  # fmt: skip


def _graph(name: str, nodes: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    values = [[onnx.ValueInfoProto(name=one) for one in names] for names in (inputs, outputs)]
    for value in values[0]:
        value.type.tensor_type.elem_type = F
    return helper.make_graph(nodes, name, values[0], values[1])


def control() -> Iterator[Case]:
    """Branches, loops, scans, functions: what they read, what decides, what they keep."""
    double = _graph("then", [node("Add", ["x", "x"], ["t"])], [], ["t"])
    negate = _graph("else", [node("Neg", ["x"], ["e"])], [], ["e"])
    sums = _graph(
        "else",
        [node("ReduceSum", ["x", "zero1"], ["q"]), node("Add", ["x", "q"], ["e"])], [], ["e"],
    )  # fmt: skip
    base = {"zero1": np.array([0]), "five": np.array(5, np.float32), "true": np.array(True),
            "three": np.array(3), "big": np.array(3, np.float32)}  # fmt: skip
    sum_all = node("ReduceSum", ["x"], ["a"], keepdims=0)
    for name, (nodes, condition) in {
        "whole": ([node("Greater", ["big", "five"], ["c"])], "c"),
        "data": ([sum_all, node("Greater", ["a", "five"], ["c"])], "c"),
        "size": ([node("Size", ["x"], ["n"]), node("Greater", ["n", "three"], ["c"])], "c"),
    }.items():
        for other in (negate, sums):
            yield case(
                f"If-{name}-{'sum' if other is sums else 'neg'}",
                [*nodes, node("If", [condition], ["y"], then_branch=double, else_branch=other)],
                {"x": (B, 3)}, base,
            )  # fmt: skip
    for name, steps in {
        "rows": [node("Add", ["s", "x"], ["o"])],
        "mix": [node("ReduceSum", ["s", "zero1"], ["q"]), node("Add", ["s", "q"], ["o"])],
        "late": [node("Transpose", ["s"], ["o"], perm=[1, 0])],
    }.items():
        body = helper.make_graph(
            [*steps, node("Identity", ["c"], ["d"]), node("Identity", ["o"], ["r"])], "body",
            [helper.make_tensor_value_info("i", I64, []),
             helper.make_tensor_value_info("c", BOOL, []), *_graph("", [], ["s"], []).input],
            [helper.make_tensor_value_info("d", BOOL, []),
             *_graph("", [], ["o", "r"], []).input],
        )  # fmt: skip
        yield case(
            f"Loop-{name}",
            [node("Loop", ["three", "true", "x"], ["f", "y"], body=body)],
            {"x": (B, 3) if name != "late" else (*(B, B)[:1], 3)}, base, outputs=("f", "y"),
        )  # fmt: skip
    until = helper.make_graph(
        [node("Add", ["s", "s"], ["o"]), node("ReduceMax", ["o"], ["q"], keepdims=0),
         node("Less", ["q", "five"], ["d"])], "body",
        [helper.make_tensor_value_info("i", I64, []),
         helper.make_tensor_value_info("c", BOOL, []), *_graph("", [], ["s"], []).input],
        [helper.make_tensor_value_info("d", BOOL, []), *_graph("", [], ["o"], []).input],
    )  # fmt: skip
    yield case(
        "Loop-until", [node("Loop", ["three", "true", "x"], ["y"], body=until)], {"x": (B, 3)}, base
    )
    trips = [node("Shape", ["x"], ["n"], end=1), node("Squeeze", ["n"], ["n0"])]
    forward = helper.make_graph(
        [node("Add", ["s", "x"], ["o"]), node("Identity", ["c"], ["d"])], "body",
        [helper.make_tensor_value_info("i", I64, []),
         helper.make_tensor_value_info("c", BOOL, []), *_graph("", [], ["s"], []).input],
        [helper.make_tensor_value_info("d", BOOL, []), *_graph("", [], ["o"], []).input],
    )  # fmt: skip
    yield case(
        "Loop-over-batch", [*trips, node("Loop", ["n0", "true", "x"], ["y"], body=forward)],
        {"x": (B, 3)}, base,
    )  # fmt: skip
    step = _graph(
        "step", [node("Add", ["s", "v"], ["o"]), node("Identity", ["o"], ["r"])], ["s", "v"],
        ["o", "r"],
    )  # fmt: skip
    for axis, x in placed((3, 3)):
        for at in (0, 1):
            yield case(
                f"Scan-{axis}-{at}",
                [node("Scan", ["z", "x"], ["f", "y"], body=step, num_scan_inputs=1,
                      scan_input_axes=[at], scan_output_axes=[at])],
                {"x": x, "z": (B,)}, outputs=("f", "y"),
            )  # fmt: skip
    for name, inner in {
        "rows": [node("Relu", ["a"], ["r"])],
        "mix": [node("Softmax", ["a"], ["r"], axis=0)],
    }.items():
        function = helper.make_function(
            "local", "Own", ["a"], ["r"], inner, [helper.make_opsetid("", 22)]
        )
        yield case(
            f"function-{name}", [node("Own", ["x"], ["y"], domain="local")], {"x": (B, 3)},
            functions=[function],
        )  # fmt: skip
    referring = node("Softmax", ["a"], ["r"])
    referring.attribute.append(
        onnx.AttributeProto(name="axis", ref_attr_name="at", type=onnx.AttributeProto.INT)
    )
    function = helper.make_function(
        "local", "Own", ["a"], ["r"], [referring], [helper.make_opsetid("", 22)], ["at"]
    )
    for at in (0, 1):
        yield case(
            f"function-attribute-{at}", [node("Own", ["x"], ["y"], domain="local", at=at)],
            {"x": (B, 3)}, functions=[function],
        )  # fmt: skip


def calls() -> Iterator[Case]:
    """Bodies in functions: by the function's operator set, and with the attributes of its call."""
    # Before operator set 13 a Softmax joins all axes from its own on; then it has no other.
    for version, at in ((11, 0), (11, 1), (13, 1), (13, 2)):
        inner = node("Softmax", ["a"], ["t"])
        inner.attribute.append(
            onnx.AttributeProto(name="axis", ref_attr_name="at", type=onnx.AttributeProto.INT)
        )
        branches = [
            helper.make_graph([one], name, [], [helper.make_tensor_value_info(out, F, None)])
            for name, one, out in (
                ("then", inner, "t"),
                ("else", node("Neg", ["a"], ["e"]), "e"),
            )
        ]
        function = helper.make_function(
            "local",
            "Own",
            ["c", "a"],
            ["r"],
            [node("If", ["c"], ["r"], then_branch=branches[0], else_branch=branches[1])],
            [helper.make_opsetid("", version)],
            ["at"],
        )
        for axis, x in placed((2, 3, 4)):
            yield case(
                f"call-{version}-{at}-{axis}",
                [node("Own", ["c", "x"], ["y"], domain="local", at=at)],
                {"x": x},
                {"c": np.array(True)},
                functions=[function],
            )


def tables() -> Iterator[Case]:
    """Operators of ai.onnx.ml on rows of a table."""
    for axis, x in placed((3, 3)):
        yield case(
            f"Scaler-{axis}",
            [node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[0.0, 1.0, 2.0],
                  scale=[1.0, 2.0, 3.0])], {"x": x},
        )  # fmt: skip
        yield case(
            f"Normalizer-{axis}",
            [node("Normalizer", ["x"], ["y"], domain="ai.onnx.ml", norm="L2")], {"x": x},
        )  # fmt: skip
        yield case(
            f"LinearRegressor-{axis}",
            [node("LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml",
                  coefficients=[1.0, 2.0, 3.0], intercepts=[1.0])], {"x": x},
        )  # fmt: skip
        yield case(
            f"ArrayFeatureExtractor-{axis}",
            [node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain="ai.onnx.ml")], {"x": x},
            {"i": np.array([0, 2])},
        )  # fmt: skip


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
