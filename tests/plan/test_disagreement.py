"""Sizes that cannot be are named with the node at which they meet."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import TensorProto, helper

from engine.formats import ModelFile
from engine.plan.disagreement import disagreement

Shape = tuple[str | int, ...]


def made(op: str, one: Shape, other: Shape, rank: int, **attributes: Any) -> ModelFile:
    """y = op(relu(one), other), of inputs that are called so."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["one"], ["r"]),
            helper.make_node(op, ["r", "other"], ["y"], name="join", **attributes),
        ],
        "meet",
        [value("one", TensorProto.FLOAT, one), value("other", TensorProto.FLOAT, other)],
        [value("y", TensorProto.FLOAT, [None] * rank)],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets)
    return ModelFile.of_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("file", "sizes", "places"),
    [
        (made("Add", ("n", "k"), ("m", "l"), 2), ((1, 2), (1, 3)), (1, 1)),
        (made("Mul", ("n", "k"), ("k2",), 2), ((7, 2), (3,)), (1, 0)),
        (made("Concat", ("n", "k"), ("m", "l"), 2, axis=1), ((2, 5), (3, 6)), (0, 0)),
        (made("Concat", ("n", "k"), ("m", "l"), 2, axis=-1), ((1, 5), (3, 6)), (0, 0)),
        (made("MatMul", ("n", "k"), ("l", 4), 2), ((9, 2), (1, 4)), (1, 0)),
    ],
)
def test_two_axes_that_meet_in_a_node_are_named(
    file: ModelFile, sizes: tuple[tuple[int, ...], tuple[int, ...]], places: tuple[int, int]
) -> None:
    one, other = sizes
    text = disagreement(file(), {"one": one, "other": other})
    assert text.startswith(
        f"axis {places[0]} of input 'one' is {one[places[0]]} and axis {places[1]} of input "
        f"'other' {other[places[1]]}, but "
    )
    assert text.endswith("'join' needs them to be equal")


@pytest.mark.parametrize(
    ("file", "sizes"),
    [
        (made("Add", ("n", "k"), ("m", "l"), 2), ((1, 2), (5, 2))),  # one of 1 is repeated
        (made("Add", ("n", "k"), ("m", "l"), 2), ((4, 2), (4, 2))),
        (made("Concat", ("n", "k"), ("m", "l"), 2, axis=1), ((2, 5), (2, 6))),
        (made("MatMul", ("n", "k"), ("l", "m"), 2), ((9, 2), (2, 8))),
    ],
)
def test_nothing_is_said_of_sizes_that_can_be(
    file: ModelFile, sizes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    assert disagreement(file(), dict(zip(("one", "other"), sizes, strict=True))) == ""
