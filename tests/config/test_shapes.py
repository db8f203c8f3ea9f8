"""input_shape, dynamic_dims and opt_dims, in the two spellings that MindSpore Lite has."""

from __future__ import annotations

import pytest

from engine.config.shapes import Shapes, read_shapes
from engine.types import DType, ShapeRange, TensorSpec

X = TensorSpec("x", DType.FLOAT32, ("batch", 3))
Y = TensorSpec("y", DType.FLOAT32, (4, "batch", None))
UNKNOWN = TensorSpec("u", DType.FLOAT32, None)


def gpu(*inputs: TensorSpec, **settings: str) -> Shapes:
    return read_shapes(settings, inputs, "gpu")


def ascend(*inputs: TensorSpec, **settings: str) -> Shapes:
    return read_shapes(settings, inputs, "ascend")


def named(**ranks: int) -> list[TensorSpec]:
    return [TensorSpec(name, DType.FLOAT32, (None,) * rank) for name, rank in ranks.items()]


def fixed(*dims: int) -> ShapeRange:
    return ShapeRange(dims, dims, dims)


@pytest.mark.parametrize("device_type", ["gpu", "ascend", "cpu"])
def test_without_settings_there_are_no_shapes(device_type: str) -> None:
    settings = {"input_shape": " ", "precision_mode": "enforce_fp32"}
    assert read_shapes(settings, [X], device_type) == Shapes()


@pytest.mark.parametrize("device_type", ["gpu", "ascend", "openvino"])
def test_input_shape_fixes_dims_by_name_and_symbol(device_type: str) -> None:
    shapes = read_shapes({"input_shape": "x:[8,3]"}, [X, Y], device_type)
    assert shapes.shapes == {
        "x": fixed(8, 3),
        "y": ShapeRange((4, 8, 0), (4, 8, -1), (4, 8, -1)),
    }
    assert shapes.profiles == ()


def test_what_the_model_says_anyway_is_left_out() -> None:
    assert gpu(X, Y, input_shape="x:[-1,3]") == Shapes()
    assert ascend(X, input_shape="x:-1,3") == Shapes()


def test_a_part_left_open_is_said_so() -> None:
    [a] = named(a=2)
    wanted = {"a": ShapeRange((0, 5), (-1, 5), (-1, 5))}
    assert gpu(a, input_shape="a:[-1,5]").shapes == wanted
    assert ascend(a, input_shape="a:[-1,5]").shapes == wanted


def test_names_may_hold_colons_and_ranks_may_be_unknown() -> None:
    colon = TensorSpec("ns:ids", DType.INT64, (None, None))
    assert gpu(colon, input_shape="ns:ids: [-1, 128] ;").shapes["ns:ids"].highest == (-1, 128)
    assert ascend(UNKNOWN, input_shape="u:[2,-1]").shapes["u"].lowest == (2, 0)


def test_a_compiled_form_has_inputs_that_nobody_knows() -> None:
    assert read_shapes({"input_shape": "x:[2]"}, None, "gpu").shapes == {"x": fixed(2)}


# -------------------------------------------------------------------------------- profiles


def test_dynamic_dims_belong_to_the_open_dims_in_order() -> None:
    shapes = gpu(
        *named(a=3, b=2),
        input_shape="a:[-1,3,-1];b:[2,-1]",
        dynamic_dims="[1~8,16~512];[100~200]",
        opt_dims="[4,128];[150]",
    )
    assert shapes.shapes == {
        "a": ShapeRange((1, 3, 16), (4, 3, 128), (8, 3, 512)),
        "b": ShapeRange((2, 100), (2, 150), (2, 200)),
    }
    assert shapes.profiles == ()


def test_without_opt_dims_the_highest_is_usual() -> None:
    shapes = gpu(*named(a=2), input_shape="a:[-1,-1]", dynamic_dims="[1~8,7]").shapes
    assert shapes == {"a": ShapeRange((1, 7), (8, 7), (8, 7))}


def test_several_lists_are_several_profiles_and_shapes_enclose_them() -> None:
    shapes = gpu(
        *named(a=1, fixed=1, b=1),
        input_shape="a:[-1];fixed:[3];b:[-1]",
        dynamic_dims="[1~8],[9~64];;[2],[3~4]",
        opt_dims="[8],[32];;[2],[3]",
    )
    assert shapes.profiles == (
        {"a": ShapeRange((1,), (8,), (8,)), "fixed": fixed(3), "b": fixed(2)},
        {"a": ShapeRange((9,), (32,), (64,)), "fixed": fixed(3), "b": ShapeRange((3,), (3,), (4,))},
    )
    assert shapes.shapes == {
        "a": ShapeRange((1,), (8,), (64,)),
        "fixed": fixed(3),
        "b": ShapeRange((2,), (2,), (4,)),
    }


def test_two_ranges_of_one_symbol_are_what_both_allow() -> None:
    n, also = TensorSpec("x", DType.FLOAT32, ("n",)), TensorSpec("y", DType.FLOAT32, ("n",))
    shapes = gpu(n, also, input_shape="x:[-1];y:[-1]", dynamic_dims="[1~6];[4~9]").shapes
    assert shapes == {name: ShapeRange((4,), (6,), (6,)) for name in "xy"}


# ----------------------------------------------------------------------------------- gears


@pytest.mark.parametrize("text", ["[1~4],[8],[16]", "1;2;3;4;8;16"])
def test_gears_are_profiles_of_one_size(text: str) -> None:
    shapes = ascend(X, dynamic_dims=text)
    assert shapes.profiles == tuple({"x": fixed(n, 3)} for n in (1, 2, 3, 4, 8, 16))
    assert shapes.shapes == {"x": ShapeRange((1, 3), (1, 3), (16, 3))}


def test_gears_follow_the_order_of_input_shape() -> None:
    two = (TensorSpec("a", DType.FLOAT32, ("n",)), TensorSpec("b", DType.FLOAT32, ("m", "k")))
    shapes = ascend(*two, input_shape="b:[-1,-1];a:[-1]", dynamic_dims="[1,2,3],[4,5,6]")
    assert shapes.profiles == (
        {"a": fixed(3), "b": fixed(1, 2)},
        {"a": fixed(6), "b": fixed(4, 5)},
    )


def test_ranges_may_have_no_highest() -> None:
    shapes = ascend(*named(y=3), input_shape="y:-1,1~8,4~-1").shapes
    assert shapes == {"y": ShapeRange((0, 1, 4), (-1, 8, -1), (-1, 8, -1))}


# --------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"input_shape": "z:[1,3]"}, r"input_shape names 'z', but the inputs are \['x'\]"),
        ({"input_shape": "x:[1]"}, "input_shape gives 1 dims for input 'x', expected float32"),
        ({"input_shape": "x:[1,4]"}, "dim 1 is 3 in the model, but the settings say 4 to 4"),
        (
            {"input_shape": "x:[-1,-1]", "dynamic_dims": "[1~2,3~4]"},
            "dim 1 is 3 in the model, but the settings say 3 to 4",
        ),
        ({"input_shape": "x:1,3"}, "input_shape must be 'name:"),
        ({"input_shape": "x:[1,3];x:[1,3]"}, "names 'x' twice"),
        ({"input_shape": "x:[-2,3]"}, "whole number of at least -1"),
        ({"input_shape": f"x:[{2**31},3]"}, "is more than"),
        ({"dynamic_dims": "[1~2]"}, "input_shape must be given with dynamic_dims"),
        ({"input_shape": "x:[-1,3]", "opt_dims": "[1]"}, "dynamic_dims must be given"),
        ({"input_shape": "x:[-1,3]", "dynamic_dims": "[1~2];[3]"}, "has 2 inputs, but input_sha"),
        ({"input_shape": "x:[-1,3]", "dynamic_dims": "[1,2]"}, "gives 2 dims for input 'x'"),
        ({"input_shape": "x:[-1,3]", "dynamic_dims": "1~2"}, "dynamic_dims must be "),
        ({"input_shape": "x:[-1,3]", "dynamic_dims": "[2~1]"}, "ends are swapped in"),
        (
            {"input_shape": "x:[-1,3]", "dynamic_dims": "[1~2]", "opt_dims": "[3]"},
            "opt_dims 3 is outside dynamic_dims '1~2'",
        ),
    ],
)
def test_a_mistake_in_the_gpus_words(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpu(X, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"input_shape": "z:[1]"}, "the model has no input 'z'; it has: 'x'"),
        ({"input_shape": "x:[1]"}, "input 'x' has 2 dims"),
        ({"input_shape": "x:[1,4]"}, "a dim must stay 3, got 4"),
        ({"input_shape": "x:[1,-1]"}, "a dim must stay 3, got -1"),
        ({"input_shape": "x"}, "expected 'name:"),
        ({"input_shape": "x:[0,3]"}, "expected a size above 0"),
        ({"input_shape": "x:[8~1,3]"}, "expected a size above 0"),
        ({"dynamic_dims": "[1]"}, "expected 2 to 100 gears, got 1"),
        ({"dynamic_dims": "[1~101]"}, "expected 2 to 100 gears, got more than 100"),
        ({"dynamic_dims": "[1~999999999,1~999999999]"}, "gears, got more than 100"),
        ({"dynamic_dims": "[1,2],[3,4]"}, r"expected 1 sizes in each gear.*\(x\[0\]\)"),
        ({"dynamic_dims": "[1],[2],[1]"}, "a gear comes twice"),
        ({"dynamic_dims": "[0],[2]"}, "expected sizes above 0"),
        ({"dynamic_dims": "[a],[2]"}, "expected sizes above 0"),
        ({"input_shape": "x:[1~8,3]", "dynamic_dims": "[1],[2]"}, "excludes ranges"),
        ({"input_shape": "x:[8,3]", "dynamic_dims": "[1],[2]"}, "no size is open"),
        ({"opt_dims": "[1]"}, "gears have no usual size"),
    ],
)
def test_a_mistake_in_ascends_words(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ascend(X, **settings)


@pytest.mark.parametrize("device_type", ["gpu", "ascend"])
def test_equal_symbols_are_equal_sizes(device_type: str) -> None:
    with pytest.raises(ValueError, match="'y': 'batch' is 3 to 3, but 2 to 2 in another input"):
        read_shapes({"input_shape": "x:[2,3];y:[4,3,1]"}, [X, Y], device_type)
