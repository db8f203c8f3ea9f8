"""Weights that are exchanged in an engine, by an emulated Refitter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine_gpu_trt as plugin
from engine.errors import BackendUnavailable, InputError, ModelError
from engine.types import Device, DType
from engine_testing import models
from engine_testing.level import Running, Trial

Make = Callable[..., Any]
X = np.float32([[1, 2, 3]])
BOTH = ("two", "one")


def update(running: Running, additive: bool = False, **weights: Any) -> None:
    assert plugin.engine_update_weights(running.executable, weights, additive)


def linear(model: Make) -> Any:
    """y = x w + b, which TensorRT keeps in one piece."""
    return model(
        [("Gemm", ["x", "w", "b"], ["y"])],
        [("x", ["n", 3])],
        [("y", ["n", 2])],
        {"w": np.ones((3, 2), np.float32), "b": np.float32([1, 2])},
    )


def test_what_is_joined_with_a_weight_is_supplied(trial: Trial, model: Make, emulated: Any) -> None:
    running = trial.open(linear(model), variable_weights=("w", "b"))
    with emulated.counting() as counts:
        update(running, w=np.full((3, 2), 2, np.float32))
    assert (counts["refits"], counts["builds"]) == (1, 0)
    np.testing.assert_array_equal(running.predict(X)[0], [[13, 14]])  # the bias as loaded
    update(running, b=np.float32([0, 0]))
    np.testing.assert_array_equal(running.predict(X)[0], [[12, 12]])  # the weight as updated
    update(running, additive=True, b=np.float32([10, 20]))
    np.testing.assert_array_equal(running.predict(X)[0], [[23, 34]])  # added to it as loaded


def test_only_declared_weights_can_be_exchanged(trial: Trial) -> None:
    running = trial.open(models.affine, variable_weights=("two",))
    with pytest.raises(InputError, match="'one': expected no weight"):
        update(running, one=np.float32([1]))
    fixed = trial.open(models.affine)
    with pytest.raises(InputError, match=r"no weight of this model is variable, .*'one'"):
        update(fixed, one=np.float32([1]))


def test_a_name_that_is_no_weight_is_named_at_compile(trial: Trial) -> None:
    with pytest.raises(ModelError, match="no weight 'three' to exchange in place"):
        trial.open(models.affine, variable_weights=("three",))


def test_a_weight_may_come_from_the_device(trial: Trial) -> None:
    running = trial.open(models.affine, variable_weights=BOTH)
    buffer = plugin.engine_buffer(Device("gpu"), DType.FLOAT32, (1,), False)
    plugin.engine_copy(np.float32([5]), buffer, None)
    update(running, two=buffer)
    np.testing.assert_array_equal(running.predict(X)[0], 5 * X + 1)


def test_an_update_waits_for_what_is_queued(trial: Trial) -> None:
    """A predict whose result stays on the device returns before it is done."""
    running = trial.open(models.affine, variable_weights=BOTH)
    source = plugin.engine_buffer(Device("gpu"), DType.FLOAT32, (1, 3), False)
    plugin.engine_copy(X, source, None)
    wanted: Any = [Device("gpu")]
    [before] = trial.backend.predict(running.context, [source], wanted, None)
    update(running, two=np.float32([7]))
    [after] = trial.backend.predict(running.context, [source], wanted, None)
    for buffer, factor in ((before, 2), (after, 7)):
        y = np.zeros((1, 3), np.float32)
        plugin.engine_copy(buffer, y, None)
        np.testing.assert_array_equal(y, factor * X + 1)


def test_a_compiled_form_can_be_updated_too(trial: Trial, form: Path) -> None:
    source = trial.source(models.affine)
    cold = trial.open(source, variable_weights=BOTH, save_to=form)
    update(cold, two=np.float32([9]))
    warm = trial.open(replace(source, compiled=form), variable_weights=BOTH)
    np.testing.assert_array_equal(warm.predict(X)[0], 2 * X + 1)
    update(warm, additive=True, one=np.float32([2]))
    np.testing.assert_array_equal(warm.predict(X)[0], 2 * X + 3)


def test_a_form_without_variable_weights_is_another_one(trial: Trial) -> None:
    keys = [
        plugin.engine_compiled_key(trial.options(variable_weights=names)) for names in ((), BOTH)
    ]
    assert keys[0] != keys[1]
    assert {name for name in keys[0] if keys[0][name] != keys[1][name]} == {"variable_weights"}


def test_a_refit_that_fails_leaves_an_error_and_not_half_an_update(
    trial: Trial, emulated: Any
) -> None:
    running = trial.open(models.affine, variable_weights=BOTH)
    with (
        emulated.fail("refit"),
        pytest.raises(BackendUnavailable, match=r"did not take an update .* build"),
    ):
        update(running, two=np.float32([3]))
    with pytest.raises(ModelError, match="build the model again"):
        running.predict(X)


def test_a_tensorrt_that_spoils_refittable_engines_does_not_offer_it(
    monkeypatch: pytest.MonkeyPatch, trt: Any
) -> None:
    assert all("update_weights" not in device.lacks for device in plugin.engine_devices().found)
    monkeypatch.setattr(trt, "__version__", "11.3.0.50")
    [device] = plugin.engine_devices().found
    assert "may drop a bias" in device.lacks["update_weights"]
