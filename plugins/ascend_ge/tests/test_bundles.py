"""Several models in one .om file: MultiModelRunner. Emulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import ModelExecutor, ModelType, MultiModelRunner
from engine_testing import models

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


@pytest.fixture
def bundle(machine: Any, make_om: Any, tmp_path: Path) -> Path:
    """y = 2x + 1, and y = (2x + 1) of another width."""
    from emulated_ascend.omfile import write_bundle

    parts = []
    for number, shape in enumerate(("x:2,3", "x:4,3")):
        folder = tmp_path / str(number)
        folder.mkdir()
        parts.append(make_om(models.affine(folder), input_shape=shape).read_bytes())
    path = tmp_path / "bundle.om"
    path.write_bytes(write_bundle(parts))
    return path


def context() -> engine.Context:
    made = engine.Context()
    made.target = ["ascend"]
    return made


def test_every_model_of_a_bundle_has_an_executor(machine: Any, bundle: Path) -> None:
    with MultiModelRunner() as runner:
        assert runner.get_model_executor() == []
        runner.build_from_file(str(bundle), ModelType.MINDIR, context())
        first, second = runner.get_model_ececutor()  # as upstream's documentation spells it
        assert all(isinstance(each, ModelExecutor) for each in runner.get_runner_exec())
        assert [t.shape for t in first.get_inputs()] == [[2, 3]]
        assert [meta.shape for meta in second.get_outputs()] == [[4, 3]]
        tensors = first.get_inputs()
        tensors[0].set_data_from_numpy(X)
        [y] = first.predict(tensors)
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)
        wide = np.concatenate([X, X])
        [y] = second.predict([wide])
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * wide + 1)
        assert machine.calls["mdl.bundle_load_from_file"] == 1, "its models are loaded together"
        assert str(runner) == f"model_path: {bundle}."
    assert machine.calls["mdl.bundle_unload"] == 1
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        first.predict([X])


def test_threads_take_turns_with_a_model_of_a_bundle(machine: Any, bundle: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with MultiModelRunner() as runner, ThreadPoolExecutor(4) as pool:
        runner.build_from_file(str(bundle), ModelType.MINDIR, context())
        first = runner.get_model_executor()[0]
        for [y] in pool.map(lambda n: first.predict([n * X]), range(20)):
            assert y.get_data_to_numpy().shape == (2, 3)
    assert not machine.faults


def test_a_model_by_itself_is_the_first_of_the_bundle(bundle: Path) -> None:
    with engine.load(bundle, "ascend") as model:
        np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)


def test_a_file_of_one_model_has_one_executor(machine: Any, tmp_path: Path) -> None:
    with MultiModelRunner() as runner:
        runner.build_from_file(str(models.affine(tmp_path)), ModelType.MINDIR, context())
        [only] = runner.get_model_executor()
        [y] = only.predict([X])
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)


def test_a_bundle_that_cannot_be_loaded_leaves_nothing(machine: Any, bundle: Path) -> None:
    for name in ("mdl.bundle_load_from_file", "mdl.bundle_get_model_num", "mdl.bundle_get_model_id",
                 "rt.create_stream", "mdl.get_desc"):  # fmt: skip
        machine.fail(name, 500002, times=1)
        with pytest.raises(RuntimeError, match="500002"):
            MultiModelRunner().build_from_file(str(bundle), ModelType.MINDIR, context())
        machine.heal()
        assert machine.live() == {}, name
    bundle.write_bytes(bundle.read_bytes()[:200])
    with pytest.raises(engine.ModelError, match=r"the bundle is invalid.*; the file is damaged or"):
        MultiModelRunner().build_from_file(str(bundle), ModelType.MINDIR, context())


def test_a_second_model_that_fails_closes_the_first(machine: Any, bundle: Path) -> None:
    machine.fail("mdl.get_desc", 500002, after=1)
    with pytest.raises(engine.ModelError, match="500002"):
        MultiModelRunner().build_from_file(str(bundle), ModelType.MINDIR, context())
    assert machine.live() == {}
