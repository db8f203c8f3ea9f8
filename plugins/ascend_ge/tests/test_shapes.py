"""The shapes a model is compiled for, from what the model, the core and the user say."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import ModelError
from engine.types import DType, ShapeRange, TensorSpec
from engine_ascend_ge.shapes import Shapes, resolve

X = TensorSpec("x", DType.FLOAT32, ("batch", 3))
Y = TensorSpec("y", DType.FLOAT32, (4, "batch", None))
FIXED = TensorSpec("x", DType.FLOAT32, (2, 3))
SCALAR = TensorSpec("s", DType.FLOAT32, ())


def settle(
    *inputs: TensorSpec,
    shapes: dict[str, ShapeRange] | None = None,
    profiles: tuple[dict[str, ShapeRange], ...] = (),
) -> Shapes:
    return resolve(inputs, shapes or {}, profiles, "m.onnx")


def fixed(*sizes: int) -> ShapeRange:
    return ShapeRange(sizes, sizes, sizes)


def gears(*sizes: int) -> dict[str, Any]:
    """Return the arguments for X with gears of these sizes."""
    ends = ShapeRange((min(sizes), 3), (sizes[0], 3), (max(sizes), 3))
    return {"shapes": {"x": ends}, "profiles": tuple({"x": fixed(size, 3)} for size in sizes)}


def test_a_fixed_model_needs_nothing_said() -> None:
    assert not settle(FIXED, SCALAR).is_given
    assert settle(X, SCALAR).is_given


LOW, HIGH = ShapeRange((1, 3), (2, 3), (4, 3)), ShapeRange((5, 3), (5, 3), (8, 3))


@pytest.mark.parametrize(
    ("inputs", "given", "sizes", "dims"),
    [
        ((X, Y, SCALAR), {}, "x:-1,3;y:4,-1,-1;s:", ""),
        ((X,), {"shapes": {"x": fixed(8, 3)}}, "x:8,3", ""),
        ((X,), {"shapes": {"x": ShapeRange((1, 3), (4, 3), (16, 3))}}, "x:1~16,3", ""),
        ((X,), {"shapes": {"x": ShapeRange((0, 3), (-1, 3), (-1, 3))}}, "x:-1,3", ""),
        ((X,), {"shapes": {"x": ShapeRange((4, 3), (-1, 3), (-1, 3))}}, "x:-1,3", ""),
        ((X, Y), {"shapes": {"x": fixed(8, 3)}}, "x:8,3;y:4,-1,-1", ""),
        ((X,), gears(1, 4), "x:-1,3", "1;4"),
        # A size that is the same in every gear is fixed.
        ((TensorSpec("a", DType.FLOAT32, ("n", "m")),),
         {"shapes": {"a": ShapeRange((1, 5), (1, 5), (2, 5))},
          "profiles": ({"a": fixed(1, 5)}, {"a": fixed(2, 5)})}, "a:-1,5", "1;2"),
        # Profiles of ranges are one range.
        ((X,), {"shapes": {"x": ShapeRange((1, 3), (2, 3), (8, 3))},
                "profiles": ({"x": LOW}, {"x": HIGH})}, "x:1~8,3", ""),
    ],
)  # fmt: skip
def test_what_is_asked_for_is_said_as_atc_wants_it(
    inputs: tuple[TensorSpec, ...], given: dict[str, Any], sizes: str, dims: str
) -> None:
    shapes = settle(*inputs, **given)
    assert (shapes.input_shape(), shapes.dynamic_dims()) == (sizes, dims)


def test_gears_bound_the_sizes() -> None:
    assert settle(X, **gears(2, 8, 4)).axes == {"x": ((2, 8), 3)}


def test_gears_follow_the_models_order_of_inputs() -> None:
    two = (TensorSpec("a", DType.FLOAT32, ("n",)), TensorSpec("b", DType.FLOAT32, ("m", "k")))
    profiles = ({"b": fixed(1, 2), "a": fixed(3)}, {"b": fixed(4, 5), "a": fixed(6)})
    ends = {"b": ShapeRange((1, 2), (1, 2), (4, 5)), "a": ShapeRange((3,), (3,), (6,))}
    assert settle(*two, shapes=ends, profiles=profiles).gears == ((3, 1, 2), (6, 4, 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (gears(1), "expected 2 to 100 gears, all different, got 1"),
        (gears(*range(1, 102)), "expected 2 to 100 gears, all different, got 101"),
        (gears(1, 2, 1), "all different, got 3, of which 2 differ"),
    ],
)
def test_gears_that_atc_refuses_are_a_value_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settle(X, **arguments)


def test_gears_must_size_every_open_axis() -> None:
    with pytest.raises(ValueError, match="dim 0 of input 'n' is open and no gear gives its size"):
        settle(X, TensorSpec("n", DType.FLOAT32, ("m",)), **gears(1, 2))


def test_an_input_without_a_rank_must_be_given_one() -> None:
    unknown = TensorSpec("u", DType.FLOAT32, None)
    with pytest.raises(ModelError, match=r"m\.onnx: input 'u' does not say how many dims"):
        settle(unknown)
    given = ShapeRange((2, 0), (2, -1), (2, -1))
    assert settle(unknown, shapes={"u": given}).input_shape() == "u:2,-1"


def test_a_name_that_atc_cannot_be_told_is_an_error_only_where_it_must_be() -> None:
    open_one = TensorSpec("a;b", DType.FLOAT32, ("n",))
    with pytest.raises(ModelError, match="';'"):
        settle(open_one)
    assert not settle(TensorSpec("a;b", DType.FLOAT32, (3,))).is_given
