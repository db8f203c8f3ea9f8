"""The shapes that a model is compiled for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.types import DType, ShapeRange, TensorSpec
from engine_gpu_trt.options import Settings
from engine_gpu_trt.profiles import bounded, fits, shape_profiles


def spec(name: str, *dims: int | str | None) -> TensorSpec:
    return TensorSpec(name, DType.FLOAT32, dims)


def test_fixed_shapes_need_nothing() -> None:
    [profile] = shape_profiles([spec("x", 2, 3)], {}, (), Settings())
    assert profile == {"x": ShapeRange((2, 3), (2, 3), (2, 3))}


def test_an_open_first_axis_is_a_batch_and_others_are_not() -> None:
    [profile] = shape_profiles([spec("x", "batch", 3, None)], {}, (), Settings())
    assert profile["x"] == ShapeRange((1, 3, 1), (1, 3, 64), (32, 3, 512))


def test_one_symbol_has_one_range_wherever_it_stands() -> None:
    # TensorRT's builder refuses axes that must be equal and have different ranges.
    inputs = [spec("left", "rows", "common"), spec("right", "common", "columns")]
    [profile] = shape_profiles(inputs, {}, (), Settings())
    assert profile["left"].highest[1] == profile["right"].highest[0] == 512
    assert profile["left"].usual[1] == profile["right"].usual[0] == 64


def test_a_range_given_for_one_input_holds_for_its_symbols_elsewhere() -> None:
    inputs = [spec("x", "n", 3), spec("y", "n")]
    [profile] = shape_profiles(inputs, {"x": ShapeRange((2, 3), (4, 3), (8, 3))}, (), Settings())
    assert profile["y"] == ShapeRange((2,), (4,), (8,))


def test_two_ranges_of_one_symbol_are_what_both_allow() -> None:
    inputs = [spec("x", "n"), spec("y", "n")]
    given = {"x": ShapeRange((1,), (1,), (8,)), "y": ShapeRange((2,), (4,), (16,))}
    [profile] = shape_profiles(inputs, given, (), Settings())
    assert profile["x"] == profile["y"] == ShapeRange((2,), (2,), (8,))


def test_ranges_of_one_symbol_that_exclude_each_other_are_named() -> None:
    inputs = [spec("x", "n"), spec("y", "n")]
    given = {"x": ShapeRange((1,), (1,), (2,)), "y": ShapeRange((3,), (3,), (4,))}
    with pytest.raises(ValueError, match="'y': 'n' is 3 to 4, but 1 to 2 in another input"):
        shape_profiles(inputs, given, (), Settings())


def test_what_comes_with_the_compile_counts_more_than_the_default_ranges() -> None:
    settings = Settings(batch_range=(1, 1, 2))
    asked = {"x": ShapeRange((5, 5), (6, 6), (7, 7))}
    [profile] = shape_profiles([spec("x", "a", "b"), spec("y", "c")], asked, (), settings)
    assert profile == {"x": asked["x"], "y": ShapeRange((1,), (1,), (2,))}


def test_an_axis_left_open_gets_the_default_range() -> None:
    settings = Settings(batch_range=(1, 2, 4), dim_range=(3, 5, 7))
    asked = {"x": ShapeRange((0, 0, 8), (-1, -1, 8), (-1, -1, 8))}
    for dims in (("a", "b", "c"), (None, None, None)):
        [profile] = shape_profiles([spec("x", *dims)], asked, (), settings)
        assert profile["x"] == ShapeRange((1, 3, 8), (2, 5, 8), (4, 7, 8))


def test_a_fixed_axis_may_be_left_open() -> None:
    asked = {"x": ShapeRange((0, 0), (-1, -1), (-1, -1))}
    [profile] = shape_profiles([spec("x", 2, "n")], asked, (), Settings(dim_range=(1, 2, 3)))
    assert profile["x"] == ShapeRange((2, 1), (2, 2), (2, 3))


@pytest.mark.parametrize("dim", ["n", None])
def test_a_range_without_a_highest_size_ends_where_the_default_does(dim: str | None) -> None:
    asked = {"x": ShapeRange((4,), (-1,), (-1,))}
    for default, expected in (
        ((1, 2, 8), (4, 4, 8)),
        ((1, 6, 8), (4, 6, 8)),
        ((1, 1, 4), (4,) * 3),
    ):
        [profile] = shape_profiles([spec("x", dim)], asked, (), Settings(batch_range=default))
        assert (profile["x"].lowest + profile["x"].usual + profile["x"].highest) == expected
    message = "input 'x': dim 0 is at least 4, but batch_range ends at 3; give the dim a highest"
    with pytest.raises(ValueError, match=message):
        shape_profiles([spec("x", dim)], asked, (), Settings(batch_range=(1, 2, 3)))


def test_a_symbol_without_a_highest_size_ends_where_another_input_says() -> None:
    inputs = [spec("x", "n"), spec("y", "n"), spec("z", "n")]
    given = {
        "x": ShapeRange((4,), (-1,), (-1,)),
        "y": ShapeRange((1,), (2,), (99,)),
        "z": ShapeRange((0,), (-1,), (-1,)),
    }
    for names in ("xyz", "zyx", "yxz"):
        ordered = {name: given[name] for name in names}
        [profile] = shape_profiles(inputs, ordered, (), Settings())
        assert profile["x"] == profile["y"] == profile["z"] == ShapeRange((4,), (4,), (99,))
    given["y"] = ShapeRange((1,), (1,), (3,))
    with pytest.raises(ValueError, match="'n' is 1 to 3, but at least 4 in another input"):
        shape_profiles(inputs, given, (), Settings())


def test_an_open_dim_may_be_fixed() -> None:
    asked = {"x": ShapeRange((4, 3), (4, 3), (4, 3))}
    [profile] = shape_profiles([spec("x", "a", 3)], asked, (), Settings())
    assert bounded(spec("x", "a", 3), [profile["x"]]) == spec("x", 4, 3)


def test_bounds_are_the_hull_of_all_profiles() -> None:
    given = [{"x": ShapeRange((1,), (2,), (4,))}, {"x": ShapeRange((8,), (8,), (16,))}]
    hull = {"x": ShapeRange((1,), (2,), (16,))}
    profiles = shape_profiles([spec("x", "n")], hull, given, Settings())
    assert profiles == given
    both = bounded(spec("x", "n"), [profile["x"] for profile in profiles])
    assert (both.shape, both.bounds) == (("n",), ((1, 16),))


@pytest.mark.parametrize(
    ("dims", "name", "asked", "message"),
    [
        ((2,), "x", ((3,), (3,), (3,)), "dim 0 is 2 in the model, but the settings say 3"),
        (("n",), "q", ((1,), (1,), (1,)), r"names 'q', but the inputs are \['x'\]"),
        (("n",), "x", ((), (), ()), "expected 1 dims"),
        (("n",), "x", ((3,), (2,), (4,)), "lowest <= usual <= highest"),
        (("n",), "x", ((-1,), (2,), (4,)), "lowest <= usual <= highest"),
        (("n",), "x", ((-1,), (-1,), (-1,)), "lowest <= usual <= highest"),
        ((2,), "x", ((4,), (-1,), (-1,)), "but the settings say at least 4"),
    ],
)
def test_shapes_that_do_not_fit_the_model_are_named(
    dims: tuple[int | str, ...], name: str, asked: Any, message: str
) -> None:
    given = {name: ShapeRange(*asked)}
    for shapes, profiles in ((given, ()), ({}, (given,))):
        with pytest.raises(ValueError, match=message):
            shape_profiles([spec("x", *dims)], shapes, profiles, Settings())


ends = st.lists(st.integers(0, 9), min_size=3, max_size=3).map(sorted)


@settings(max_examples=50)
@given(st.lists(ends, min_size=1, max_size=4))
def test_every_profile_allows_its_own_ends(axes: list[list[int]]) -> None:
    columns = [tuple(axis[end] for axis in axes) for end in range(3)]
    asked = ShapeRange(*columns)
    inputs = [spec("x", *(f"d{i}" for i in range(len(axes))))]
    [profile] = shape_profiles(inputs, {"x": asked}, (), Settings())
    assert profile["x"] == asked
    assert all(fits(column, profile["x"]) for column in columns)
    assert not fits(tuple(dim + 10 for dim in columns[2]), profile["x"])
