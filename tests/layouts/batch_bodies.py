"""Models with bodies, and calls of functions, for the proof that samples do not meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from batch_cases import BOOL, I64, B, Case, F, case, node, one, placed
from onnx import helper


def _graph(name: str, nodes: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    values = [[onnx.ValueInfoProto(name=one) for one in names] for names in (inputs, outputs)]
    for value in values[0]:
        value.type.tensor_type.elem_type = F
    return helper.make_graph(nodes, name, values[0], values[1])


def _loop(nodes: Any, makes: Sequence[str]) -> Any:
    """Return a body that has s, and whether to go on as c and then as d."""
    value = helper.make_tensor_value_info
    given = [value("i", I64, []), value("c", BOOL, []), *_graph("", [], ["s"], []).input]
    made = [value("d", BOOL, []), *_graph("", [], makes, []).input]
    return helper.make_graph(nodes, "body", given, made)


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
        going = [node("Identity", ["c"], ["d"]), node("Identity", ["o"], ["r"])]
        body = _loop([*steps, *going], ["o", "r"])
        yield one(
            "Loop three true x",
            {"x": (B, 3) if name != "late" else (*(B, B)[:1], 3)},
            base,
            outputs=("f", "y"),
            body=body,
        )
    until = _loop(
        [node("Add", ["s", "s"], ["o"]), node("ReduceMax", ["o"], ["q"], keepdims=0),
         node("Less", ["q", "five"], ["d"])], ["o"],
    )  # fmt: skip
    yield one("Loop three true x", {"x": (B, 3)}, base, body=until)
    trips = [node("Shape", ["x"], ["n"], end=1), node("Squeeze", ["n"], ["n0"])]
    forward = _loop([node("Add", ["s", "x"], ["o"]), node("Identity", ["c"], ["d"])], ["o"])
    yield case(
        "Loop-over-batch", [*trips, node("Loop", ["n0", "true", "x"], ["y"], body=forward)],
        {"x": (B, 3)}, base,
    )  # fmt: skip
    step = _graph(
        "step", [node("Add", ["s", "v"], ["o"]), node("Identity", ["o"], ["r"])], ["s", "v"],
        ["o", "r"],
    )  # fmt: skip
    for x in placed((3, 3)):
        for at in (0, 1):
            yield one(
                "Scan z x",
                {"x": x, "z": (B,)},
                outputs=("f", "y"),
                body=step,
                num_scan_inputs=1,
                scan_input_axes=[at],
                scan_output_axes=[at],
            )
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
        for x in placed((2, 3, 4)):
            yield case(
                f"call-{version}-{at}-{x.index(B)}",
                [node("Own", ["c", "x"], ["y"], domain="local", at=at)],
                {"x": x},
                {"c": np.array(True)},
                functions=[function],
            )
