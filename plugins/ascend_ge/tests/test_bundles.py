"""Several models in one .om file: MultiModelRunner. Emulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import ModelExecutor, ModelType, MultiModelRunner

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


@pytest.fixture
def bundle(make_om: Any, path: Path, tmp_path: Path) -> Path:
    """y = 2x + 1, and y = (2x + 1) of another width."""
    from emulated_ascend.omfile import write_bundle

    parts = [make_om(path, input_shape=shape).read_bytes() for shape in ("x:2,3", "x:4,3")]
    bundle = tmp_path / "bundle.om"
    bundle.write_bytes(write_bundle(parts))
    return bundle


def test_every_model_of_a_bundle_has_an_executor(machine: Any, ascend: Any, bundle: Path) -> None:
    with MultiModelRunner() as runner:
        assert runner.get_model_executor() == []
        runner.build_from_file(str(bundle), ModelType.MINDIR, ascend)
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


def test_a_model_by_itself_is_the_first_of_the_bundle(bundle: Path) -> None:
    with engine.load(bundle, "ascend") as model:
        np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)


def test_a_file_of_one_model_has_one_executor(machine: Any, ascend: Any, path: Path) -> None:
    with MultiModelRunner() as runner:
        runner.build_from_file(str(path), ModelType.MINDIR, ascend)
        [only] = runner.get_model_executor()
        [y] = only.predict([X])
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)


def test_a_bundle_that_cannot_be_loaded_leaves_nothing(
    machine: Any, ascend: Any, bundle: Path
) -> None:
    for name, after in (
        ("mdl.bundle_load_from_file", 0), ("mdl.bundle_get_model_num", 0),
        ("mdl.bundle_get_model_id", 0), ("rt.create_stream", 0), ("mdl.get_desc", 0),
        ("mdl.get_desc", 1),
    ):  # fmt: skip
        machine.fail(name, 500002, after=after)
        with pytest.raises(RuntimeError, match="500002"):
            MultiModelRunner().build_from_file(str(bundle), ModelType.MINDIR, ascend)
        machine.heal()
        assert machine.live() == {}, name
    bundle.write_bytes(bundle.read_bytes()[:200])
    with pytest.raises(engine.ModelError, match=r"the bundle is invalid.*; the file is damaged or"):
        MultiModelRunner().build_from_file(str(bundle), ModelType.MINDIR, ascend)
