"""Sizes that cannot be are named with the node at which they meet."""

from __future__ import annotations

import pytest
from graphs import parsed

from engine.formats import ModelFile
from engine.plan.disagreement import disagreement

Shape = tuple[int, ...]


def made(one: str, other: str, op: str) -> ModelFile:
    """y = op(relu(one), other), of inputs that are called so."""
    text = f"meet (float[{one}] one, float[{other}] other) => (float[?,?] y)"
    model = parsed(f"{text} {{ r = Relu(one) [join] y = {op}(r, other) }}")
    return ModelFile.of_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("one", "other", "op", "sizes", "places"),
    [
        ("n,k", "m,l", "Add", ((1, 2), (1, 3)), (1, 1)),
        ("n,k", "k2", "Mul", ((7, 2), (3,)), (1, 0)),
        ("n,k", "m,l", "Concat <axis = 1>", ((2, 5), (3, 6)), (0, 0)),
        ("n,k", "m,l", "Concat <axis = -1>", ((1, 5), (3, 6)), (0, 0)),
        ("n,k", "l,4", "MatMul", ((9, 2), (1, 4)), (1, 0)),
        ("n,k", "m,l", "Add", ((1, 2), (5, 2)), None),  # one of 1 is repeated
        ("n,k", "m,l", "Add", ((4, 2), (4, 2)), None),
        ("n,k", "m,l", "Concat <axis = 1>", ((2, 5), (2, 6)), None),
        ("n,k", "l,m", "MatMul", ((9, 2), (2, 8)), None),
    ],
)
def test_two_axes_that_meet_in_a_node_and_differ_are_named(
    one: str, other: str, op: str, sizes: tuple[Shape, Shape], places: tuple[int, int] | None
) -> None:
    text = disagreement(made(one, other, op)(), {"one": sizes[0], "other": sizes[1]})
    if places is None:
        assert text == ""
        return
    assert text.startswith(
        f"axis {places[0]} of input 'one' is {sizes[0][places[0]]} and axis {places[1]} of input "
        f"'other' {sizes[1][places[1]]}, but "
    )
    assert text.endswith("'join' needs them to be equal")
