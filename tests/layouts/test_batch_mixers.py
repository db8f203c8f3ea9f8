"""Models whose samples meet in ways that are easily overlooked: none is proven."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from batch_cases import I64, B, Case, case, opened
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from engine.layouts.batch import prove

node = helper.make_node
SIZE = [node("Shape", ["x"], ["n"], start=0, end=1)]
WIDTH = [node("Shape", ["x"], ["q"], start=1, end=2)]
NUMBERS = [*SIZE, node("Squeeze", ["n"], ["n0"]), node("Range", ["i0", "n0", "i1"], ["numbers"])]
X = {"x": (B, 4)}
WEIGHTS: dict[str, Any] = {
    "i0": 0, "i1": 1, "none": np.zeros(0, np.int64), "zero": [0], "one": [1], "two": [2],
    "ten": [10], "minus": [-1], "far": [-100], "first": [-(2**63)], "last": [2**63 - 1],
    "0,1": [0, 1], "rows": [-1, 1], "hundred": [100], "257": [257], "2049": [2049],
    "ramp": np.arange(1, 11, dtype=np.float32), "row": np.ones((1, 1, 4), np.float32),
    "a": np.float32([2]), "b": np.float32([3]), "2049.7": np.float32([2049.7]),
    "image": np.arange(1, 11, dtype=np.float32).reshape(1, 1, 10), "twice": np.float32([1, 2]),
    "twice3": np.float32([1, 1, 2]), "twice4": np.float32([1, 1, 2, 1]),
    "byte": np.int8([100]), "large": [2**32],
}  # fmt: skip


def made(name: str, nodes: Sequence[NodeProto], inputs: Any = None, **options: Any) -> Case:
    """Make a case with those of the weights that its nodes read."""
    read = {name for one in nodes for name in one.input}
    weights = {key: np.asarray(value) for key, value in WEIGHTS.items() if key in read}
    return case(name, nodes, inputs or X, weights, **options)


def by_size() -> Iterator[Case]:
    """Whole tensors of which the size of the batch takes a part, added to each sample."""
    add = [node("ReduceSum", ["p"], ["t"], keepdims=0), node("Add", ["x", "t"], ["y"])]
    yield made(
        "one unknown element or another",
        [*SIZE, node("Greater", ["n", "one"], ["c"]), node("Add", ["a", "b"], ["u"]),
         node("Mul", ["a", "b"], ["v"]), node("Where", ["c", "u", "v"], ["p"]), *add],
    )  # fmt: skip
    yield made(
        "sizes of pieces",
        [*SIZE, node("Sub", ["ten", "n"], ["r"]), node("Concat", ["n", "r"], ["s"], axis=0),
         node("Split", ["ramp", "s"], ["p", "o"], axis=0), *add],
    )  # fmt: skip
    yield made("steps", [*SIZE, node("Slice", ["ramp", "zero", "ten", "zero", "n"], ["p"]), *add])
    for name, size in {"size": [], "divided": [node("Div", ["ten", "n"], ["m"])]}.items():
        resize = node("Resize", ["image", "", "", "m" if size else "n"], ["p"], axes=[2])
        yield made(f"size of an image, {name}", [*SIZE, *size, resize, *add])
    yield made(
        "size of each image",
        [*SIZE, node("Div", ["ten", "n"], ["m"]), node("Resize", ["u", "", "", "m"], ["r"],
         axes=[2]), node("ReduceSum", ["r"], ["y"])], {"x": (B, 4), "u": (B, 1, 4)},
    )  # fmt: skip


def beside() -> Iterator[Case]:
    """Samples that are beside each other on an axis that is interpolated, with weight 0."""
    for mode in ("linear", "cubic"):
        yield made(f"2 axes, {mode}", [node("Resize", ["x", "", "twice"], ["y"], mode=mode)])
        around = [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("Unsqueeze", ["t", "0,1"],
                  ["u"]), node("Resize", ["u", "", "twice4"], ["r"], mode=mode),
                  node("Squeeze", ["r", "0,1"], ["v"]),
                  node("Transpose", ["v"], ["y"])]  # fmt: skip
        yield made(f"last axis, {mode}", around)
    resize = node("Resize", ["x", "", "twice3"], ["y"], mode="linear")
    yield made("3 axes", [resize], {"x": (B, 2, 4)})


def other_sizes() -> Iterator[Case]:
    """Axes of other sizes than they seem to have, so that numbers of samples count others."""
    look = [node("Gather", ["g", "numbers"], ["h"]), node("Add", ["x", "h"], ["y"])]
    yield made(
        "a step back from before the first",
        [*NUMBERS, node("Slice", ["x", "far", "first", "one", "minus"], ["u"]),
         node("Slice", ["x", "zero", "one", "one"], ["v"]),
         node("Concat", ["u", "v"], ["r"], axis=1), node("Reshape", ["r", "rows"], ["g"]), *look],
    )  # fmt: skip
    yield made(
        "a step back to the last",
        [*NUMBERS, node("Slice", ["x", "zero", "last", "one", "minus"], ["u"]),
         node("Slice", ["x", "zero", "one", "one"], ["v"]),
         node("Concat", ["u", "v"], ["r"], axis=1), node("Reshape", ["r", "rows"], ["g"]), *look],
    )  # fmt: skip
    yield made(
        "a range that ends before it begins",
        [*NUMBERS, *WIDTH, node("Sub", ["q", "ten"], ["m"]), node("Squeeze", ["m"], ["m0"]),
         node("Range", ["i0", "m0", "i1"], ["k"]), node("Cast", ["k"], ["f"], to=1),
         node("Concat", ["f", "ramp"], ["w"], axis=0), node("Add", ["x", "w"], ["v"]),
         node("Concat", ["minus", "q"], ["s"], axis=0), node("Reshape", ["v", "s"], ["g"]), *look],
        {"x": (B, "q")},
    )  # fmt: skip
    yield made(
        "no axes, which are all of size 1",
        [node("Squeeze", ["x", "none"], ["s"]), node("Add", ["s", "row"], ["y"])],
        {"x": (B, 1, 4)},
    )


def numbers() -> Iterator[Case]:
    """Integers that wrap, are negative, or are rounded, and choose what mixes."""
    to64 = node("Cast", ["u"], ["v"], to=I64)
    narrow = [(kind, node("Cast", ["w"], [kind], to=getattr(TensorProto, kind)),
               node("Cast", [kind], [f"{kind}.64"], to=I64))
              for kind in ("INT8", "INT16")]  # fmt: skip
    chosen = {
        "a negative quotient": [*WIDTH, node("Neg", ["q"], ["u"]), node("Div", ["u", "two"], ["v"]),
                                node("Less", ["v", "zero"], ["c"])],
        "a negative without sign": [node("Cast", ["minus"], ["u"], to=TensorProto.UINT32), to64,
                                    node("Less", ["v", "zero"], ["c"])],
        "a sum of bytes": [node("Add", ["byte", "byte"], ["u"]), to64,
                           node("Less", ["v", "zero"], ["c"])],
        "a product": [node("Mul", ["large", "large"], ["v"]), node("Equal", ["v", "zero"], ["c"])],
        "narrow sizes": [*WIDTH, node("Mul", ["q", "hundred"], ["w"]),
                         *(one for _, *casts in narrow for one in casts),
                         node("Equal", ["INT8.64", "INT16.64"], ["c"])],
        "half floats": [node("Cast", ["2049.7"], ["u"], to=TensorProto.FLOAT16), to64,
                        node("Equal", ["v", "2049"], ["c"])],
        "short floats": [node("Cast", ["257"], ["u"], to=TensorProto.BFLOAT16), to64,
                         node("Equal", ["v", "257"], ["c"])],
    }  # fmt: skip
    for name, nodes in chosen.items():
        alone = [node("Identity", ["x"], ["kept"])]
        mixing = [node("ReduceSum", ["x"], ["all"]), node("Add", ["x", "all"], ["mixed"])]
        branches = [
            helper.make_graph(body, "g", [], [ValueInfoProto(name=body[-1].output[0])])
            for body in (alone, mixing)
        ]
        for first in (0, 1):
            one, other = branches[first], branches[1 - first]
            choice = node("If", ["c"], ["y"], then_branch=one, else_branch=other)
            yield made(f"{name} {first}", [*nodes, choice], {"x": (B, "q")})


def functions() -> Iterator[Case]:
    """Functions by the names of operators, which run in their place."""
    for op_type, inputs in {"ReduceSum": ["x", "zero"], "NonZero": ["x"]}.items():
        names = [f"input{place}" for place in range(len(inputs))]
        body = [node("Identity", names[:1], ["output"])]
        opsets = [helper.make_opsetid("", 22)]
        function = helper.make_function("", op_type, names, ["output"], body, opsets)
        yield made(op_type, [node(op_type, inputs, ["y"])], functions=[function])


CASES = [one for family in (by_size, beside, other_sizes, numbers, functions) for one in family()]


def mixes(found: Case) -> bool:
    """Return whether running a sample alone gives other results than in a batch."""
    run = opened(found.model)
    for width in (1, 4):
        inputs = {
            name: (dtype, tuple(width if size == "q" else size for size in shape))
            for name, (dtype, shape) in found.inputs.items()
        }
        for count, is_number in ((3, True), (3, False)):
            feeds = found._replace(inputs=inputs).values(count, np.random.default_rng(0), 1)
            if not is_number:
                for array in feeds.values():
                    array[-1] = np.nan
            [together] = run(feeds)
            for place in range(count):
                [alone] = run({key: array[place : place + 1] for key, array in feeds.items()})
                own = together[place : place + 1]
                if alone.shape != own.shape or not np.allclose(alone, own, equal_nan=True):
                    return True
    return False


@pytest.mark.parametrize("found", CASES, ids=lambda found: found.name)
def test_a_model_whose_samples_meet_is_not_proven(found: Case) -> None:
    assert prove(found.model, found.axes()).reason


def test_the_samples_of_these_models_meet() -> None:
    pytest.importorskip("onnxruntime")
    names = {one.name.removesuffix(" 0").removesuffix(" 1") for one in CASES}
    assert {one.name.removesuffix(" 0").removesuffix(" 1") for one in CASES if mixes(one)} == names


def test_a_size_of_minus_one_in_a_model_is_open() -> None:
    nodes = [*WIDTH, node("Equal", ["q", "minus"], ["c"]), node("If", ["c"], ["y"])]
    alone = [node("Identity", ["x"], ["kept"])]
    mixing = [node("ReduceSum", ["x"], ["all"]), node("Add", ["x", "all"], ["mixed"])]
    for name, body in {"then_branch": alone, "else_branch": mixing}.items():
        graph = helper.make_graph(body, "g", [], [ValueInfoProto(name=body[-1].output[0])])
        nodes[-1].attribute.append(helper.make_attribute(name, graph))
    model = made("minus one", nodes).model
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -1
    assert prove(model, {"x": 0}).reason


def test_images_are_resized_each_by_itself() -> None:
    scales = {"s": np.float32([1, 1, 2, 0.7])}
    for mode in ("nearest", "linear", "cubic"):
        resize = node("Resize", ["x", "", "s"], ["y"], mode=mode)
        found = case(mode, [resize], {"x": (B, 2, 10, 10)}, scales)
        assert not prove(found.model, found.axes()).reason


def test_an_output_that_grows_with_the_batch_is_not_made_of_what_does_not() -> None:
    nodes = [*SIZE, node("Concat", ["n", "0,1"], ["s"], axis=0),
             node("AffineGrid", ["v", "s"], ["y"])]  # fmt: skip
    found = case(
        "grid", nodes, X, {"0,1": np.array([1, 2, 2]), "v": np.ones((1, 2, 3), np.float32)}
    )
    assert "grows with the batch" in prove(found.model, found.axes()).reason
