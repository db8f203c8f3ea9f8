"""The shapes a model is compiled for, from what the model, the core and the user say."""

from __future__ import annotations

import pytest

from engine.errors import ModelError
from engine.types import DType, ShapeRange, TensorSpec
from engine_ascend_ge.shapes import Shapes, parse_gears, parse_input_shape, resolve

X = TensorSpec("x", DType.FLOAT32, ("batch", 3))
Y = TensorSpec("y", DType.FLOAT32, (4, "batch", None))
FIXED = TensorSpec("x", DType.FLOAT32, (2, 3))
SCALAR = TensorSpec("s", DType.FLOAT32, ())


def settle(
    *inputs: TensorSpec,
    shape: str = "",
    gears: str = "",
    ranges: dict[str, ShapeRange] | None = None,
) -> Shapes:
    return resolve(inputs, ranges or {}, shape, gears, "m.onnx")


@pytest.mark.parametrize(
    "text", ["x:[1,3];y:[-1,1~8]", "x:1,3;y:-1,1~8", " x : [1, 3] ; y:[-1, 1 ~ 8];"]
)
def test_input_shape_is_read_in_both_spellings(text: str) -> None:
    assert parse_input_shape(text) == {"x": (1, 3), "y": ((0, None), (1, 8))}


def test_an_input_name_may_hold_colons() -> None:
    assert parse_input_shape("a:0:[2]") == {"a:0": (2,)}


@pytest.mark.parametrize(
    ("text", "gears"),
    [
        ("[1~4],[8],[16]", [(1,), (2,), (3,), (4,), (8,), (16,)]),
        ("1;2;4", [(1,), (2,), (4,)]),
        ("1,64;2,128;", [(1, 64), (2, 128)]),
        ("[1~2,64],[4,32]", [(1, 64), (2, 64), (4, 32)]),
    ],
)
def test_gears_are_read_in_both_spellings(text: str, gears: list[tuple[int, ...]]) -> None:
    assert parse_gears(text) == gears


def test_a_fixed_model_needs_nothing_said() -> None:
    assert not settle(FIXED, SCALAR).is_given


def test_symbolic_sizes_are_left_open() -> None:
    shapes = settle(X, Y, SCALAR)
    assert shapes.is_given
    assert shapes.input_shape() == "x:-1,3;y:4,-1,-1;s:"


def test_a_size_fixed_for_one_input_is_fixed_for_its_symbol() -> None:
    assert settle(X, Y, shape="x:[8,3]").input_shape() == "x:8,3;y:4,8,-1"


def test_ranges_of_the_core_are_compiled_for() -> None:
    ranges = {"x": ShapeRange((1, 3), (4, 3), (16, 3))}
    assert settle(X, ranges=ranges).input_shape() == "x:1~16,3"


def test_one_size_given_by_the_core_is_fixed() -> None:
    ranges = {"x": ShapeRange((5, 3), (5, 3), (5, 3))}
    assert settle(X, ranges=ranges).axes == {"x": (5, 3)}


def test_gears_keep_their_sizes_open_for_atc() -> None:
    shapes = settle(X, gears="[1],[4]")
    assert (shapes.input_shape(), shapes.dynamic_dims()) == ("x:-1,3", "1;4")


def test_gears_bound_the_sizes() -> None:
    assert settle(X, gears="[2],[8],[4]").axes == {"x": ((2, 8), 3)}


def test_gears_follow_the_order_of_input_shape_and_become_the_models() -> None:
    two = (TensorSpec("a", DType.FLOAT32, ("n",)), TensorSpec("b", DType.FLOAT32, ("m", "k")))
    shapes = settle(*two, shape="b:[-1,-1];a:[-1]", gears="[1,2,3],[4,5,6]")
    assert shapes.gears == ((3, 1, 2), (6, 4, 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": "z:[1]"}, "the model has no input 'z'; it has: 'x'"),
        ({"shape": "x:[1]"}, "input 'x' has 2 dims"),
        ({"shape": "x:[1,4]"}, "a dim must stay 3, got 4"),
        ({"shape": "x"}, "expected 'name:"),
        ({"shape": "x:[0,3]"}, "expected a size above 0"),
        ({"shape": "x:[8~1,3]"}, "expected a size above 0"),
        ({"gears": "[1]"}, "expected 2 to 100 gears, got 1"),
        ({"gears": "[1~101]"}, "expected 2 to 100 gears, got more than 100"),
        ({"gears": "[1~999999999,1~999999999]"}, "gears, got more than 100"),
        ({"gears": "[1,2],[3,4]"}, r"expected 1 sizes in each gear, one for each -1 \(x\[0\]\)"),
        ({"gears": "[1],[2],[1]"}, "a gear comes twice"),
        ({"gears": "[0],[2]"}, "expected sizes above 0"),
        ({"gears": "[a],[2]"}, "expected sizes above 0"),
        ({"shape": "x:[1~8,3]", "gears": "[1],[2]"}, "excludes ranges"),
        ({"shape": "x:[8,3]", "gears": "[1],[2]"}, "no size is open"),
    ],
)
def test_what_does_not_fit_is_a_value_error(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settle(X, **arguments)


def test_an_input_without_a_rank_must_be_given_one() -> None:
    unknown = TensorSpec("u", DType.FLOAT32, None)
    with pytest.raises(ModelError, match=r"m\.onnx: input 'u' does not say how many dims"):
        settle(unknown)
    assert settle(unknown, shape="u:[2,-1]").input_shape() == "u:2,-1"


def test_a_name_that_atc_cannot_be_told_is_an_error_only_where_it_must_be() -> None:
    open_one = TensorSpec("a;b", DType.FLOAT32, ("n",))
    with pytest.raises(ModelError, match="';'"):
        settle(open_one)
    assert not settle(TensorSpec("a;b", DType.FLOAT32, (3,))).is_given
