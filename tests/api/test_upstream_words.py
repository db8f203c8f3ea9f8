"""Module paths, types of exceptions and words that MindSpore Lite's own tests look for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import Context, Model, ModelParallelRunner, ModelType, Tensor
from engine_testing import models

X = np.ones((2, 3), np.float32)


MODULES = {
    "model": ("Model", "ModelType", "ModelParallelRunner", "ModelGroup", "ModelGroupFlag",
              "MultiModelRunner", "ModelExecutor"),
    "converter": ("Converter", "FmkType"),
    "context": ("Context",),
    "tensor": ("Tensor", "TensorMeta", "DataType", "Format"),
}  # fmt: skip


def test_the_names_of_its_modules_are_those_of_the_package():
    of_the_package = ["import engine as mslite"]
    for module, names in MODULES.items():
        of_the_package += [f"assert mslite.{module}.{name} is mslite.{name}" for name in names]
        of_the_package.append(f"from engine.{module} import {', '.join(names)}")
    # And a module may be imported before the package is used.
    alone = [
        [f"from engine.{module} import {', '.join(names)}"] for module, names in MODULES.items()
    ]
    children = [
        subprocess.Popen([sys.executable, "-c", "\n".join(program)])
        for program in (of_the_package, *alone)
    ]
    assert [child.wait(60) for child in children] == [0] * len(children)


def test_a_module_has_no_other_names():
    with pytest.raises(AttributeError, match=r"module 'engine\.model' has no attribute 'Runner'"):
        engine.model.Runner  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("build", ["file", "buffer", "runner"])
def test_a_wrong_setting_is_both_errors_and_names_the_method(
    build, null_context, null_backend, tmp_path
):
    path = models.affine(tmp_path)
    config = {f"{null_backend}_context": {"input_shape": "x:[a,b]"}}
    words = "build_from_file failed! Error is "
    with pytest.raises(engine.SettingError) as caught:  # noqa: PT012
        if build == "file":
            Model().build_from_file(str(path), ModelType.MINDIR, null_context, config_dict=config)
        elif build == "buffer":
            words = "build_from_buffer failed! Error is "
            Model().build_from_buffer(path.read_bytes(), context=null_context, config_dict=config)
        else:
            words = "ModelParallelRunner's build from file failed! Error is "
            null_context.parallel.config_info = config
            ModelParallelRunner().build_from_file(str(path), null_context)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith(f"{words}input_shape must be 'name:[1,3,96,96];...'")
    assert str(caught.value).count("failed!") == 1


@pytest.fixture(params=["model", "runner"])
def predict(request: Any, null_context: Context, tmp_path: Path) -> Any:
    path = str(models.affine(tmp_path))
    if request.param == "model":
        model = Model()
        model.build_from_file(path, ModelType.MINDIR, null_context)
        return model.predict
    runner = ModelParallelRunner()
    runner.build_from_file(path, null_context)
    return runner.predict


@pytest.mark.parametrize("item", ["input", b"input", None, object(), {"a": X}])
def test_what_is_no_array_among_the_inputs_is_a_type_error(predict, item):
    with pytest.raises(TypeError, match="inputs element must be Tensor") as caught:
        predict([item])
    assert "input 'x': expected float32[batch, 3], got" in str(caught.value)


@pytest.mark.parametrize("inputs", [[], [X, X]])
def test_a_wrong_number_of_inputs_says_both_words(predict, inputs):
    wanted = rf"model input len:1 not equal input len:{len(inputs)}!.*\(predict failed!\)"
    with pytest.raises(RuntimeError, match=wanted):
        predict(inputs)


@pytest.mark.parametrize(("workers", "threads", "count"), [(2, 2, 4), (4, 1, 4), (2, 2, 2)])
def test_a_runner_takes_one_core_for_each_thread_of_all_workers(
    workers, threads, count, null_context, tmp_path
):
    cores = [number % (os.cpu_count() or 1) for number in range(count)]
    null_context.cpu.thread_num, null_context.cpu.thread_affinity_core_list = threads, cores
    null_context.parallel.workers_num = workers
    runner = ModelParallelRunner()
    runner.build_from_file(str(models.affine(tmp_path)), null_context)
    [y] = runner.predict([X])
    np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)
    assert null_context.cpu.thread_affinity_core_list == cores


def test_a_runner_refuses_another_number_of_cores(null_context, tmp_path):
    null_context.cpu.thread_num, null_context.cpu.thread_affinity_core_list = 2, [0, 0, 0]
    null_context.parallel.workers_num = 2
    with pytest.raises(RuntimeError, match="names 3 cores for 2 workers of 2 threads; expected 4"):
        ModelParallelRunner().build_from_file(str(models.affine(tmp_path)), null_context)


def test_an_update_of_no_model_says_that_there_is_no_session():
    with pytest.raises(RuntimeError) as caught:
        Model().update_weights([[Tensor(X)]])
    assert str(caught.value).startswith("update weight failed! Error is the model is not built")
    assert "Session is null, please build model first!" in str(caught.value)
