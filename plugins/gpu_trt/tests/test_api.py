"""The backend as its users meet it: `target="gpu"`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import engine
from engine.types import DType
from engine_testing import models


def test_the_api_of_mindspore_lite_reaches_the_backend(tmp_path: Path) -> None:
    context = engine.Context()
    context.target = ["gpu"]
    context.gpu.device_id = 0
    context.gpu.provider = "tensorrt"
    context.gpu.precision_mode = "enforce_fp32"
    model = engine.Model()
    model.build_from_file(
        str(models.affine(tmp_path)),
        engine.ModelType.MINDIR,
        context,
        config_dict={"gpu_context": {"batch_range": "1~2~8"}},
    )
    x = np.ones((8, 3), np.float32)
    [y] = model.predict([x])
    np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * x + 1)
    with pytest.raises(engine.InputError, match=r"dim 0 is 9, outside 1\.\.8"):
        model.predict([np.ones((9, 3), np.float32)])
    model.resize(model.get_inputs(), [[4, 3]])
    assert model.get_inputs()[0].shape == [4, 3]
    assert {(each.backend, each.device) for each in model.placement} == {("gpu_trt", "gpu:0")}
    model.close()


def test_a_model_that_the_gpu_cannot_run_goes_to_the_cpu_when_that_is_listed(
    tmp_path: Path,
) -> None:
    path = str(models.doubled(tmp_path, DType.FLOAT64))
    with pytest.raises(engine.ModelError, match="is float64"):
        engine.load(path, target="gpu")
    x = np.float64([1, 2, 3])
    with engine.load(path, target=["gpu", "cpu"]) as model:
        np.testing.assert_array_equal(model(x=x)["y"], 2 * x)
        assert "float64" in model.placement[0].reason
