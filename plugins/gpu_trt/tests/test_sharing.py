"""Models of one process on one device have one copy of equal weights; emulated."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine_gpu_trt as plugin
from engine.types import Device, MemoryReport
from engine_testing import models
from engine_testing.level import Running, Trial

DEVICES = 2
X = np.float32([[1, 2, 3]])


@pytest.fixture
def warm(trial: Trial, form: Path) -> object:
    """Open a model by its compiled form."""
    source = trial.source(models.affine)
    trial.compile(source, save_to=form).close()
    return lambda **changes: trial.open(replace(source, compiled=form), **changes)


def report(running: Running) -> MemoryReport:
    found: MemoryReport = running.executable.memory()
    return found


def test_an_engine_that_is_loaded_is_not_loaded_again(warm: type[Running], emulated: Any) -> None:
    with emulated.counting() as counts:
        first = warm()
        alone = report(first)
        second = warm()
        assert emulated.live()["engines"] == 1
    assert counts["deserialised"] == 1
    assert (alone.weights_bytes > 0, alone.shared_bytes) == (True, 0)
    for running in (first, second):
        assert report(running).weights_bytes == 0
        assert report(running).shared_bytes == alone.weights_bytes
        np.testing.assert_array_equal(running.predict(X)[0], 2 * X + 1)
    first.context.close()
    first.executable.close()
    assert report(second).weights_bytes == alone.weights_bytes
    np.testing.assert_array_equal(second.predict(X)[0], 2 * X + 1)


def test_what_was_just_built_serves_the_next_model_of_its_form(
    trial: Trial, form: Path, emulated: Any
) -> None:
    source = trial.source(models.affine)
    cold = trial.open(source, save_to=form)
    hot = trial.open(replace(source, compiled=form))
    assert emulated.live()["engines"] == 1
    for running in (cold, hot):
        assert report(running).shared_bytes > 0
        np.testing.assert_array_equal(running.predict(X)[0], 2 * X + 1)


def test_each_device_has_its_own_copy(
    warm: type[Running], monkeypatch: pytest.MonkeyPatch, emulated: Any
) -> None:
    kind = emulated.MACHINE.devices[0].name  # a form is of one kind of device
    monkeypatch.setattr(emulated.MACHINE.devices[1], "name", kind)
    runs = [warm(device=Device("gpu", id)) for id in range(2)]
    for running in runs:
        assert report(running).shared_bytes == 0
        np.testing.assert_array_equal(running.predict(X)[0], 2 * X + 1)


def test_weights_that_may_be_exchanged_are_no_others(trial: Trial, form: Path) -> None:
    source = trial.source(models.affine)
    trial.compile(source, save_to=form, variable_weights=("two",)).close()
    first, second = (
        trial.open(replace(source, compiled=form), variable_weights=("two",)) for _ in range(2)
    )
    plugin.engine_update_weights(first.executable, {"two": np.float32([9])}, False)
    np.testing.assert_array_equal(first.predict(X)[0], 9 * X + 1)
    np.testing.assert_array_equal(second.predict(X)[0], 2 * X + 1)


def test_threads_that_load_and_close_at_once_leave_nothing(warm: type[Running]) -> None:
    def work(_: int) -> None:
        for _ in range(10):
            running = warm()
            np.testing.assert_array_equal(running.predict(X)[0], 2 * X + 1)
            running.context.close()
            running.executable.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
