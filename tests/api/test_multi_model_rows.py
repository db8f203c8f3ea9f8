"""MultiModelRunner and ModelExecutor, row by row of MindSpore Lite's interface."""

from __future__ import annotations

import numpy as np
import pytest

import engine
from engine import ModelExecutor, ModelType, MultiModelRunner
from engine_testing import models


def test_a_file_of_one_model_has_one_executor(null_context, tmp_path):
    x = np.array([[1, 2, 3]], np.float32)
    with MultiModelRunner() as runner:
        runner.build_from_file(str(models.affine(tmp_path)), ModelType.MINDIR, null_context)
        for name in ("get_model_executor", "get_model_ececutor", "get_runner_exec"):
            [executor] = getattr(runner, name)()
            assert isinstance(executor, ModelExecutor)
            [y] = executor.predict([x])
            np.testing.assert_allclose(y.get_data_to_numpy(), 2 * x + 1, rtol=1e-6)
        [tensor], [meta] = executor.get_inputs(), executor.get_outputs()
        assert (tensor.name, meta.name) == ("x", "y")
        tensor.shape = [1, 3]
        tensor.set_data_from_numpy(x)
        [y] = executor.predict([tensor])
        np.testing.assert_allclose(y.get_data_to_numpy(), 2 * x + 1, rtol=1e-6)
        with pytest.raises(engine.ModelStateError, match="already built"):
            runner.build_from_file(str(models.affine(tmp_path)), ModelType.MINDIR, null_context)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((1, ModelType.MINDIR), TypeError, "model_path must be str, but got"),
        (("m", 0), TypeError, "model_type must be ModelType, but got"),
        (("m", ModelType.MINDIR, "cpu"), TypeError, "context must be Context, but got"),
        (("m", ModelType.MINDIR, None, 3), TypeError, "config_path must be str, but got"),
        (("m", ModelType.MINDIR_LITE), RuntimeError,
         "build_from_file failed, model_type only support MINDIR!"),
        (("no such file", ModelType.MINDIR), RuntimeError,
         "build_from_file failed, model_path does not exist!"),
    ],
)  # fmt: skip
def test_wrong_arguments_get_upstreams_words(arguments, kind, message):
    with pytest.raises(kind, match=message):
        MultiModelRunner().build_from_file(*arguments)


def test_an_executor_of_nothing_runs_nothing():
    executor = ModelExecutor()
    assert executor.get_inputs() == executor.get_outputs() == []
    with pytest.raises(RuntimeError, match="the model is not built"):
        executor.predict([])
