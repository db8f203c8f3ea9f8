"""[gpu_context] as a user writes it: shapes and profiles reach TensorRT through the core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import engine
from engine_testing import making

DECLARED = tuple[str | int | None, ...]


def load(path: Path, **settings: str) -> engine.Model:
    config: Any = {"gpu_context": settings}
    return engine.load(path, target="gpu", config=config)


def relu(folder: Path, dims: DECLARED) -> Path:
    """y = relu(x)."""
    x, y = ([making.tensor(name, dims)] for name in "xy")
    return making.write(folder, "relu", x, y, [helper.make_node("Relu", ["x"], ["y"])])


def takes(model: engine.Model, *shape: int) -> bool:
    x = np.linspace(-5, 5, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    try:
        y = model(x=x)["y"]
    except engine.InputError:
        return False
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    return True


def test_a_fixed_shape_is_the_models(tmp_path: Path) -> None:
    with load(relu(tmp_path, ("n", 3)), input_shape="x:[4,3]") as model:
        assert model.get_inputs()[0].shape == [4, 3]
        assert [takes(model, n, 3) for n in (3, 4, 5)] == [False, True, False]


def test_a_range_is_what_the_model_takes(tmp_path: Path) -> None:
    settings = {"input_shape": "x:[-1,3]", "dynamic_dims": "[2~8]", "opt_dims": "[4]"}
    with load(relu(tmp_path, ("n", 3)), **settings) as model:
        assert [takes(model, n, 3) for n in (1, 2, 5, 8, 9)] == [False, True, True, True, False]
        with pytest.raises(engine.InputError, match=r"'x': dim 0 is 9, outside 2\.\.8"):
            model(x=np.zeros((9, 3), np.float32))


def test_a_shape_between_two_profiles_is_refused(tmp_path: Path) -> None:
    settings = {
        "input_shape": "x:[-1,-1]",
        "dynamic_dims": "[1~2,8],[16~32,4~6]",
        "opt_dims": "[2,8],[20,5]",
    }
    with load(relu(tmp_path, ("n", "m")), **settings) as model:
        for shape in ((1, 8), (2, 8), (16, 4), (32, 6), (2, 8)):
            assert takes(model, *shape)
        for shape in ((2, 6), (8, 8), (16, 8), (33, 6)):
            assert not takes(model, *shape)


@pytest.mark.parametrize("dims", [("n", "m"), (None, None)])
def test_dims_left_open_have_the_default_ranges(tmp_path: Path, dims: DECLARED) -> None:
    # Nothing is said of the first dim: the second one's size must not take its default away.
    settings = {"input_shape": "x:[-1,5]", "batch_range": "1~2~4", "dim_range": "1~2~3"}
    with load(relu(tmp_path, dims), **settings) as model:
        assert takes(model, 1, 5)
        assert takes(model, 4, 5)
        assert not takes(model, 5, 5)
        assert not takes(model, 4, 3)
        assert model.get_inputs()[0].shape == [-1, 5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"input_shape": "z:[1,3]"}, r"input_shape names 'z', but the inputs are \['x'\]"),
        ({"input_shape": "x:[1,4]"}, "'x': dim 1 is 3 in the model, but the settings say 4"),
        ({"input_shape": "x:[1]"}, "input_shape gives 1 dims for input 'x'"),
        ({"dynamic_dims": "[1~2]"}, "input_shape must be given with dynamic_dims"),
        ({"input_shape": "x:[-1,3]", "dynamic_dims": "[8~2]"}, "dynamic_dims"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(relu(tmp_path, ("n", 3)), **settings)
