"""Which shapes a model is compiled for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.types import DType, ShapeRange, TensorSpec
from engine_gpu_trt.options import Settings
from engine_gpu_trt.profiles import bounded, fits, shape_profiles


def spec(name: str, *dims: int | str | None) -> TensorSpec:
    return TensorSpec(name, DType.FLOAT32, dims)


def test_fixed_shapes_need_nothing() -> None:
    [profile] = shape_profiles([spec("x", 2, 3)], {}, Settings())
    assert profile == {"x": ShapeRange((2, 3), (2, 3), (2, 3))}


def test_an_open_first_axis_is_a_batch_and_others_are_not() -> None:
    [profile] = shape_profiles([spec("x", "batch", 3, None)], {}, Settings())
    assert profile["x"] == ShapeRange((1, 3, 1), (1, 3, 64), (32, 3, 512))


def test_one_symbol_has_one_range_wherever_it_stands() -> None:
    # TensorRT's builder refuses axes that must be equal and have different ranges.
    inputs = [spec("left", "rows", "common"), spec("right", "common", "columns")]
    [profile] = shape_profiles(inputs, {}, Settings())
    assert profile["left"].highest[1] == profile["right"].highest[0] == 512
    assert profile["left"].usual[1] == profile["right"].usual[0] == 64


def test_a_range_given_for_one_input_holds_for_its_symbols_elsewhere() -> None:
    inputs = [spec("x", "n", 3), spec("y", "n")]
    [profile] = shape_profiles(inputs, {"x": ShapeRange((2, 3), (4, 3), (8, 3))}, Settings())
    assert profile["y"] == ShapeRange((2,), (4,), (8,))


def test_two_ranges_of_one_symbol_are_what_both_allow() -> None:
    inputs = [spec("x", "n"), spec("y", "n")]
    given = {"x": ShapeRange((1,), (1,), (8,)), "y": ShapeRange((2,), (4,), (16,))}
    [profile] = shape_profiles(inputs, given, Settings())
    assert profile["x"] == profile["y"] == ShapeRange((2,), (2,), (8,))


def test_ranges_of_one_symbol_that_exclude_each_other_are_named() -> None:
    inputs = [spec("x", "n"), spec("y", "n")]
    given = {"x": ShapeRange((1,), (1,), (2,)), "y": ShapeRange((3,), (3,), (4,))}
    with pytest.raises(ValueError, match="'y': 'n' is 3 to 4, but 1 to 2 in another input"):
        shape_profiles(inputs, given, Settings())


def test_the_configuration_counts_more_than_the_compile_and_that_more_than_defaults() -> None:
    settings = Settings(shapes={"x": (-1, -1, -1)}, ranges=({"x": ((1, 2, 3),)},))
    asked = {"x": ShapeRange((5, 5, 5), (6, 6, 6), (7, 7, 7))}
    [profile] = shape_profiles([spec("x", "a", "b", "c")], asked, settings)
    assert profile["x"] == ShapeRange((1, 5, 5), (2, 6, 6), (3, 7, 7))


def test_input_shape_may_fix_an_open_dim() -> None:
    [profile] = shape_profiles([spec("x", "a", 3)], {}, Settings(shapes={"x": (4, 3)}))
    assert profile["x"] == ShapeRange((4, 3), (4, 3), (4, 3))
    assert bounded(spec("x", "a", 3), [profile["x"]]) == spec("x", 4, 3)


def test_bounds_are_the_hull_of_all_profiles() -> None:
    settings = Settings(shapes={"x": (-1,)}, ranges=({"x": ((1, 2, 4),)}, {"x": ((8, 8, 16),)}))
    profiles = shape_profiles([spec("x", "n")], {}, settings)
    found = bounded(spec("x", "n"), [each["x"] for each in profiles])
    assert (found.shape, found.bounds) == (("n",), ((1, 16),))


@pytest.mark.parametrize(
    ("dims", "settings", "asked", "message"),
    [
        ((2,), Settings(shapes={"x": (3,)}), {}, "dim 0 is 2 in the model, but the settings say 3"),
        ((2,), Settings(shapes={"x": (2, 2)}), {}, "gives 2 dims for input 'x', expected float32"),
        ((2,), Settings(shapes={"q": (2,)}), {}, r"names 'q', but the inputs are \['x'\]"),
        (("n",), Settings(), {"q": ShapeRange((1,), (1,), (1,))}, "shapes names 'q'"),
        (("n",), Settings(), {"x": ShapeRange((), (), ())}, "expected 1 dims"),
        (("n",), Settings(), {"x": ShapeRange((3,), (2,), (4,))}, "lowest <= usual <= highest"),
        (("n",), Settings(), {"x": ShapeRange((-1,), (2,), (4,))}, "lowest <= usual <= highest"),
    ],
)
def test_settings_that_do_not_fit_the_model_are_named(
    dims: tuple[int | str, ...], settings: Settings, asked: dict[str, ShapeRange], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        shape_profiles([spec("x", *dims)], asked, settings)


ends = st.lists(st.integers(0, 9), min_size=3, max_size=3).map(sorted)


@settings(max_examples=50, deadline=None)
@given(st.lists(ends, min_size=1, max_size=4))
def test_every_profile_allows_its_own_ends(axes: list[list[int]]) -> None:
    columns = [tuple(axis[end] for axis in axes) for end in range(3)]
    asked = ShapeRange(*columns)
    inputs = [spec("x", *(f"d{i}" for i in range(len(axes))))]
    [profile] = shape_profiles(inputs, {"x": asked}, Settings())
    assert profile["x"] == asked
    assert all(fits(column, profile["x"]) for column in columns)
    assert not fits(tuple(dim + 10 for dim in columns[2]), profile["x"])
