"""Nothing stays behind, however often. Emulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine.types import ModelSource

X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize("shape", ["x:2,3", "x:-1,3"])
def test_ten_lives_of_a_model_return_every_handle(
    machine: Any, build: Any, is_affine: Any, make_om: Any, path: Path, shape: str
) -> None:
    om = make_om(path, input_shape=shape)
    for _ in range(10):
        executable = build(om)
        contexts = [executable.open_context() for _ in range(2)]
        for context in contexts:
            is_affine(context, X)
        contexts[0].close()
        executable.close()  # closes the other
        assert machine.live() == {}


def test_a_hundred_models_built_run_and_closed_return_every_handle(
    machine: Any, make_om: Any, path: Path
) -> None:
    om = make_om(path, input_shape="x:2,3")
    used = []
    for _ in range(100):
        with engine.load(om, "ascend") as model:
            np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)
        assert machine.live() == {}
        used.append(machine.memory.used_bytes(0))
    assert set(used) == {0}
    made = ("rt.create_stream", "rt.malloc", "mdl.load_from_mem_with_mem", "mdl.create_desc",
            "mdl.create_dataset", "create_data_buffer")  # fmt: skip
    given_back = ("rt.destroy_stream", "rt.free", "mdl.unload", "mdl.destroy_desc",
                  "mdl.destroy_dataset", "destroy_data_buffer")  # fmt: skip
    for one, other in zip(made, given_back, strict=True):
        assert machine.calls[one] == machine.calls[other] >= 100, one


def test_compiling_over_and_over_returns_every_handle(
    machine: Any, build: Any, is_affine: Any, path: Path
) -> None:
    for _ in range(3):
        executable = build(path)
        is_affine(executable.open_context(), X)
        executable.close()
        assert machine.live() == {}


def test_many_predicts_hold_no_more_than_one(
    machine: Any, build: Any, predict: Any, make_om: Any, path: Path
) -> None:
    context = build(make_om(path, input_shape="x:-1,3")).open_context()
    predict(context, np.ones((4, 3), np.float32))
    before, used = machine.live(), machine.memory.used_bytes(0)
    for count in range(200):
        predict(context, np.ones((1 + count % 4, 3), np.float32))
    assert machine.live() == before
    assert machine.memory.used_bytes(0) == used


def test_a_model_that_was_read_and_not_compiled_holds_nothing_after_close(
    machine: Any, backend: Any, options: Any, make_om: Any, path: Path
) -> None:
    om = make_om(path, input_shape="x:2,3")
    loaded = backend.load(ModelSource(format="om", path=om), options())
    assert [str(spec) for spec in loaded.inputs] == ["float32[2, 3]"]
    loaded.close()
    loaded.close()
    assert machine.live() == {}
