"""Nothing stays behind, however often. Emulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.testing import models


@pytest.mark.parametrize("shape", ["x:2,3", "x:-1,3"])
def test_a_hundred_lives_of_a_model_return_every_handle(
    machine: Any, build: Any, predict: Any, make_om: Any, tmp_path: Path, shape: str
) -> None:
    om = make_om(models.affine(tmp_path), input_shape=shape)
    x = np.ones((2, 3), np.float32)
    for _ in range(100):
        executable = build(om)
        contexts = [executable.open_context() for _ in range(2)]
        for context in contexts:
            np.testing.assert_array_equal(predict(context, x)[0], 2 * x + 1)
        contexts[0].close()
        executable.close()  # closes the other
        assert machine.live() == {}


def test_compiling_over_and_over_returns_every_handle(
    machine: Any, build: Any, predict: Any, tmp_path: Path
) -> None:
    path = models.affine(tmp_path)
    x = np.ones((2, 3), np.float32)
    for _ in range(5):
        executable = build(path)
        np.testing.assert_array_equal(predict(executable.open_context(), x)[0], 2 * x + 1)
        executable.close()
        assert machine.live() == {}


def test_a_thousand_predicts_hold_no_more_than_one(
    machine: Any, build: Any, predict: Any, make_om: Any, tmp_path: Path
) -> None:
    context = build(make_om(models.affine(tmp_path), input_shape="x:-1,3")).open_context()
    predict(context, np.ones((4, 3), np.float32))
    before, used = machine.live(), machine.memory.used_bytes(0)
    for count in range(1000):
        predict(context, np.ones((1 + count % 4, 3), np.float32))
    assert machine.live() == before
    assert machine.memory.used_bytes(0) == used


def test_a_model_that_was_read_and_not_compiled_holds_nothing_after_close(
    machine: Any, backend: Any, options: Any, make_om: Any, tmp_path: Path
) -> None:
    from engine.types import ModelSource

    om = make_om(models.affine(tmp_path), input_shape="x:2,3")
    loaded = backend.load(ModelSource(format="om", path=om), options())
    assert [str(spec) for spec in loaded.inputs] == ["float32[2, 3]"]
    loaded.close()
    loaded.close()
    assert machine.live() == {}
