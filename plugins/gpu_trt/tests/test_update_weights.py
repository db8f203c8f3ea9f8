"""Weights that are updated lie on the device (emulated) before a predict uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import Tensor
from engine.backends import forget
from engine.model.model import model_state
from engine_testing import models

X = np.array([[1, 2, 3]], np.float32)


@pytest.mark.parametrize("mode", ["auto", "swap", "rebuild"])
def test_weights_are_updated(tmp_path: Path, mode: str) -> None:
    config = {"common_context": {"variable_weights_mode": mode}}
    path = models.affine(tmp_path)
    with engine.load(path, "gpu", variable_weights=["two", "one"], config=config) as model:
        np.testing.assert_allclose(model(x=X)["y"], 2 * X + 1, rtol=1e-2)
        for number in range(3):
            two = np.array([number], np.float32)
            model.update_weights({"two": Tensor(two, device="gpu") if number % 2 else two})
            np.testing.assert_allclose(model(x=X)["y"], number * X + 1, rtol=1e-2)
        model.update_weights({"one": np.array([5], np.float32)})
        np.testing.assert_allclose(model(x=X)["y"], 2 * X + 5, rtol=1e-2)
        with pytest.raises(engine.InputError, match="'one': expected"):
            model.update_weights({"one": Tensor(X, device="gpu")})
        model.resize(model.get_inputs(), [[1, 3]])
        np.testing.assert_allclose(model(x=X)["y"], 2 * X + 5, rtol=1e-2)


def test_the_engine_is_refitted_without_a_build(tmp_path: Path, emulated: Any) -> None:
    with engine.load(models.affine(tmp_path), "gpu", variable_weights=["two", "one"]) as model:
        assert model_state(model).plan.predict is model_state(model).plan.backend.predict
        with emulated.counting() as counts:
            model.update_weights({"two": np.array([5], np.float32)})
        assert (counts["refits"], counts["builds"]) == (1, 0)
        np.testing.assert_array_equal(model(x=X)["y"], 5 * X + 1)


def test_a_refit_that_fails_refuses_each_later_predict(tmp_path: Path, emulated: Any) -> None:
    with engine.load(models.affine(tmp_path), "gpu", variable_weights=["two", "one"]) as model:
        with (
            emulated.fail("refit"),
            pytest.raises(
                engine.BackendUnavailable, match=r"^update weight failed! .* did not take an update"
            ),
        ):
            model.update_weights({"two": np.array([5], np.float32)})
        with pytest.raises(engine.ModelError, match="build the model again"):
            model(x=X)


def test_where_the_engine_cannot_be_refitted_the_core_holds_the_weights(
    tmp_path: Path, emulated: Any, trt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget("gpu_trt")
    monkeypatch.setattr(trt, "__version__", "11.3.0.50")
    with engine.load(models.affine(tmp_path), "gpu", variable_weights=["two", "one"]) as model:
        with emulated.counting() as counts:
            model.update_weights({"two": np.array([5], np.float32)})
        assert (counts["refits"], counts["builds"]) == (0, 0)
        np.testing.assert_array_equal(model(x=X)["y"], 5 * X + 1)
    forget("gpu_trt")
