"""Executions recorded as CUDA graphs; emulated."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import engine_gpu_trt as plugin
from engine.errors import BackendUnavailable
from engine.types import Device, DType, ShapeRange
from engine_testing import models
from engine_testing.level import Running, Trial

WIDE = {"x": ShapeRange((0, 3), (4, 3), (64, 3))}
ON = {"cuda_graphs": "on"}


def rows(count: int, start: int = 0) -> np.ndarray[Any, Any]:
    return np.arange(start, start + 3 * count, dtype=np.float32).reshape(count, 3)


def predict(running: Running, count: int, start: int = 0) -> Counter[str]:
    """Predict, check the numbers, and return what was counted."""
    from emulated_gpu import counting

    with counting() as counts:
        [y] = running.predict(rows(count, start))
    np.testing.assert_array_equal(y, 2 * rows(count, start) + 1)
    return counts


def test_a_shape_that_comes_again_is_launched_as_recorded(trial: Trial) -> None:
    running = trial.open(models.affine, shapes=WIDE, options=ON)
    launches = [predict(running, 4, start)["graph launches"] for start in range(6)]
    assert launches == [0, 1, 1, 1, 1, 1]


def test_another_shape_ends_a_recording(trial: Trial, emulated: Any) -> None:
    running = trial.open(models.affine, shapes=WIDE, options=ON)
    for _ in range(3):
        predict(running, 4)
    assert predict(running, 8)["graph launches"] == 0
    assert "executable graphs" not in emulated.live()
    launches = [predict(running, 8)["graph launches"] for _ in range(3)]
    assert launches == [0, 1, 1], "one that was recorded in vain makes it wait longer"


def test_shapes_in_turn_are_not_recorded_over_and_over(trial: Trial) -> None:
    running = trial.open(models.affine, shapes=WIDE, options=ON)
    for _ in range(10):
        for count in (4, 4, 4, 8, 8, 8):
            predict(running, count)
    launches = sum(predict(running, count)["graph launches"] for count in (4, 4, 4, 8, 8, 8))
    assert launches == 0


def test_another_address_is_not_launched_as_recorded(trial: Trial) -> None:
    running = trial.open(models.affine, shapes=WIDE, options=ON)
    gpu = Device("gpu")
    buffers = [plugin.engine_buffer(gpu, DType.FLOAT32, (4, 3), False) for _ in range(2)]
    for number, buffer in enumerate(buffers):
        plugin.engine_copy(rows(4, number), buffer, None)
    for place in (0, 0, 0, 1, 0, 1, 1, 1, 1):
        [y] = trial.backend.predict(running.context, [buffers[place]], None, None)
        np.testing.assert_array_equal(y, 2 * rows(4, place) + 1)


def test_outputs_that_depend_on_the_data_are_not_recorded(trial: Trial, emulated: Any) -> None:
    running = trial.open(models.nonzero, options={**ON, "batch_range": "1~4~64"})
    with emulated.counting() as counts:
        for values in ([0, 1, 0, 2], [1, 1, 1, 1], [0, 0, 0, 0]):
            [y] = running.predict(np.float32(values))
            np.testing.assert_array_equal(y, np.flatnonzero(values)[None])
    assert counts["graph launches"] == 0


@pytest.mark.parametrize(
    "call", ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate"]
)
def test_what_cannot_be_recorded_runs_without(trial: Trial, call: str, emulated: Any) -> None:
    running = trial.open(models.affine, shapes=WIDE, options=ON)
    with emulated.fail(call):
        launches = [predict(running, 4, start)["graph launches"] for start in range(4)]
    assert launches == [0] * 4


def test_a_launch_that_fails_is_said_and_survived(trial: Trial, emulated: Any) -> None:
    running = trial.open(models.affine, shapes=WIDE, options=ON)
    predict(running, 4)
    with (
        emulated.fail("cuGraphLaunch"),
        pytest.raises(BackendUnavailable, match="cuda_graphs = off"),
    ):
        running.predict(rows(4))
    predict(running, 4)


def test_updated_weights_are_in_the_next_launch(trial: Trial) -> None:
    running = trial.open(models.affine, options=ON, variable_weights=("two",))
    for _ in range(3):
        running.predict(rows(1))
    plugin.engine_update_weights(running.executable, {"two": np.float32([5])}, False)
    for _ in range(3):
        np.testing.assert_array_equal(running.predict(rows(1))[0], 5 * rows(1) + 1)


def test_without_the_package_the_command_is_given(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(BackendUnavailable, match=r"cuda-bindings: .* run: pip install"):
        trial.open(models.affine, options=ON)


def test_both_at_once_are_refused(trial: Trial) -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        trial.open(models.affine, options={**ON, "layer_profile": "layers.json"})
