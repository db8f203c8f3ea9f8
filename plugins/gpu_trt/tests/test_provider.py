"""Provider tensorrt_rtx: TensorRT for RTX in TensorRT's place; emulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import engine
import engine_gpu_trt as plugin
from engine.errors import BackendUnavailable, CompiledFormError, ModelError
from engine_gpu_trt import vendor
from engine_testing import models
from engine_testing.level import Trial

X = np.float32([[1, 2, 3]])
RTX = {"provider": "tensorrt_rtx"}


def test_a_model_runs_by_it(tmp_path: Path) -> None:
    context = engine.Context()
    context.target = ["gpu"]
    context.gpu.provider = "tensorrt_rtx"
    model = engine.Model()
    model.build_from_file(str(models.affine(tmp_path)), engine.ModelType.MINDIR, context)
    [y] = model.predict([X])
    np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)
    assert {(each.provider, each.reason[:14]) for each in model.placement} == {
        ("tensorrt_rtx", "TensorRT 1.7.1")
    }


def test_a_target_may_name_it(tmp_path: Path) -> None:
    with engine.load(models.affine(tmp_path), target="gpu:tensorrt_rtx") as model:
        np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)
        assert model.placement[0].provider == "tensorrt_rtx"


def test_a_compiled_form_of_one_is_not_used_by_the_other(trial: Trial, form: Path) -> None:
    source = trial.source(models.affine)
    trial.open(source, save_to=form, **RTX)
    keys = [plugin.engine_compiled_key(trial.options(**given)) for given in ({}, RTX)]
    assert {name for name in keys[0] if keys[0][name] != keys[1][name]} == {
        "provider",
        "tensorrt",
    }
    with pytest.raises(CompiledFormError, match="made with provider 'tensorrt_rtx'"):
        trial.open(replace(source, compiled=form))
    np.testing.assert_array_equal(
        trial.open(replace(source, compiled=form), **RTX).predict(X)[0], 2 * X + 1
    )


def test_an_engine_of_one_is_refused_by_the_other(trial: Trial, tmp_path: Path, form: Path) -> None:
    trial.open(models.affine, save_to=form, **RTX)
    path = (form / "engine.plan").rename(tmp_path / "affine.engine")
    with engine.load(str(path), target="gpu:tensorrt_rtx") as model:
        np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)
    with pytest.raises(ModelError, match="compile the model here"):
        engine.load(str(path), target="gpu")


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Hide a package that is installed."""
    find = vendor.find_spec

    def hide(package: str) -> None:
        monkeypatch.setattr(vendor, "find_spec", lambda n: None if n == package else find(n))

    return hide


def test_it_is_enough_by_itself(hide: Callable[[str], None]) -> None:
    hide("tensorrt")
    assert len(plugin.engine_devices().found) == 1
    [check] = [check for check in plugin.engine_diagnose() if check.name == "TensorRT"]
    assert check.detail == "1.7.1.116+emulated (tensorrt_rtx: set provider to it)"


def test_without_it_the_command_is_given(trial: Trial, hide: Callable[[str], None]) -> None:
    hide("tensorrt_rtx")
    with pytest.raises(BackendUnavailable, match="run: pip install tensorrt_rtx"):
        trial.open(models.affine, **RTX)
