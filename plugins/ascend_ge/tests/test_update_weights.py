"""Weights that are updated lie on the device (emulated) before a predict uses them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import engine
from engine import Tensor
from engine_testing import models

pytestmark = pytest.mark.usefixtures("machine")

X = np.array([[1, 2, 3]], np.float32)


@pytest.mark.parametrize("mode", ["swap", "rebuild"])
def test_weights_are_updated(tmp_path: Path, mode: str) -> None:
    config = {"common_context": {"variable_weights_mode": mode}}
    path = models.affine(tmp_path)
    with engine.load(path, "ascend", variable_weights=["two", "one"], config=config) as model:
        np.testing.assert_allclose(model(x=X)["y"], 2 * X + 1, rtol=1e-2)
        for number in range(3):
            two = np.array([number], np.float32)
            model.update_weights({"two": Tensor(two, device="ascend") if number % 2 else two})
            np.testing.assert_allclose(model(x=X)["y"], number * X + 1, rtol=1e-2)
        model.update_weights({"one": np.array([5], np.float32)})
        np.testing.assert_allclose(model(x=X)["y"], 2 * X + 5, rtol=1e-2)
        with pytest.raises(engine.InputError, match="'one': expected"):
            model.update_weights({"one": Tensor(X, device="ascend")})
        model.resize(model.get_inputs(), [[1, 3]])
        np.testing.assert_allclose(model(x=X)["y"], 2 * X + 5, rtol=1e-2)
