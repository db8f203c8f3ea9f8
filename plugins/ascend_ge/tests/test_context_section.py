"""[ascend_context] as a user writes it: sizes, ranges and gears reach ATC through the core."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine_testing import models

pytestmark = pytest.mark.usefixtures("machine")


def load(path: Path, **settings: str) -> engine.Model:
    config: Any = {"ascend_context": settings}
    return engine.load(path, target="ascend", config=config)


def takes(model: engine.Model, count: int) -> bool:
    x = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
    try:
        y = model(x=x)["y"]
    except engine.InputError:
        return False
    np.testing.assert_array_equal(y, 2 * x + 1)
    return True


def test_a_fixed_shape_is_the_models(tmp_path: Path) -> None:
    with load(models.affine(tmp_path), input_shape="x:[4,3]") as model:
        assert model.get_inputs()[0].shape == [4, 3]
        assert [takes(model, count) for count in (3, 4, 5)] == [False, True, False]


@pytest.mark.parametrize("text", ["x:[2~8,3]", "x:2~8,3"])
def test_a_range_is_what_the_model_takes(tmp_path: Path, text: str) -> None:
    with load(models.affine(tmp_path), input_shape=text) as model:
        assert [count for count in (1, 2, 5, 8, 9) if takes(model, count)] == [2, 5, 8]
        with pytest.raises(engine.InputError, match=r"'x': dim 0 is 9, outside 2\.\.8"):
            model(x=np.zeros((9, 3), np.float32))


@pytest.mark.parametrize(
    ("text", "counts"), [("x:[-1,3]", (1, 7, 0, 300)), ("x:[4~-1,3]", (4, 300))]
)
def test_an_open_end_takes_what_comes(tmp_path: Path, text: str, counts: tuple[int, ...]) -> None:
    with load(models.affine(tmp_path), input_shape=text) as model:
        assert all(takes(model, count) for count in counts)


@pytest.mark.parametrize("gears", ["[1],[4],[16]", "1;4;16"])
def test_gears_take_their_own_sizes_only(machine: Any, tmp_path: Path, gears: str) -> None:
    with load(models.affine(tmp_path), input_shape="x:[-1,3]", dynamic_dims=gears) as model:
        for count in (4, 1, 16, 4, 4):
            assert takes(model, count)
        assert machine.calls["mdl.set_input_dynamic_dims"] == 4, "once for each change"
        with pytest.raises(engine.InputError, match=r"compiled for the gears \[1\], \[4\], \[16"):
            model(x=np.zeros((3, 3), np.float32))
        assert takes(model, 4)


def test_gears_of_two_inputs_follow_the_order_of_input_shape(tmp_path: Path) -> None:
    settings = {"input_shape": "right:[-1,2];left:[-1,-1]", "dynamic_dims": "[3,1,3],[5,4,5]"}
    with load(models.shared_dims(tmp_path), **settings) as model:
        for n, common in ((1, 3), (4, 5)):
            y = model(left=np.ones((n, common), np.float32), right=np.ones((common, 2), np.float32))
            np.testing.assert_array_equal(y["y"], np.full((n, 2), common, np.float32))
        with pytest.raises(engine.InputError, match="compiled for the gears"):
            model(left=np.ones((1, 5), np.float32), right=np.ones((5, 2), np.float32))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"input_shape": "z:[1,3]"}, "the model has no input 'z'; it has: 'x'"),
        ({"input_shape": "x:[1,4]"}, "so a dim must stay 3, got 4"),
        ({"input_shape": "x:[1]"}, r"input 'x' has 2 dims .* got 1"),
        ({"input_shape": "x:[-1,3]", "dynamic_dims": "[1],[1]"}, "dynamic_dims"),
        ({"input_shape": "x:[-1,3]", "opt_dims": "[1]"}, "gears have no usual size"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(models.affine(tmp_path), **settings)


def test_keys_that_nothing_serves_yet_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.backends.doors._warned", set())
    with caplog.at_level(logging.WARNING, "engine"):
        for _ in range(2):
            load(models.affine(tmp_path), model_cache_mode="1").close()
    said = "configuration key [ascend_context] model_cache_mode has no effect yet"
    assert caplog.messages == [said]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x:[4,3]", "'x', and it has float32[2, 3]"),
        ("x:[1~8,3]", "'x', and it has float32[2, 3]"),
        ("x:[2,3,1]", "'x', and it has float32[2, 3]"),
        ("image:[2,3]", "'image', and it has no such input"),
        ("x:[2,3]", ""),
    ],
)
def test_sizes_for_a_compiled_model_that_it_does_not_have_are_told(
    make_om: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, says: str
) -> None:
    path = make_om(models.affine(tmp_path), input_shape="x:2,3")
    with caplog.at_level(logging.WARNING, "engine"), load(path, input_shape=text) as model:
        assert [takes(model, count) for count in (2, 4)] == [True, False]
    if says:
        [message] = caplog.messages
        assert message.startswith(f"{path}: was compiled before it was loaded")
        assert says in message
    else:
        assert not caplog.messages


def test_gears_for_a_model_that_was_compiled_for_them_are_no_warning(
    make_om: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_om(models.affine(tmp_path), input_shape="x:-1,3", dynamic_dims="1;4")
    with (
        caplog.at_level(logging.WARNING, "engine"),
        load(path, input_shape="x:[-1,3]", dynamic_dims="[1],[4]") as model,
    ):
        assert takes(model, 4)
    assert not caplog.messages
