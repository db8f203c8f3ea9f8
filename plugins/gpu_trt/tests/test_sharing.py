"""Models of one process on one device have one copy of equal weights; emulated."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.types import Device, MemoryReport
from engine_testing import models
from engine_testing.level import Running, Trial

DEVICES = 2
X = np.float32([[1, 2, 3]])


@pytest.fixture
def warm(trial: Trial, tmp_path: Path) -> object:
    """Open a model by its compiled form."""
    form = tmp_path / "form"
    form.mkdir()
    source = trial.source(models.affine)
    trial.compile(source, save_to=form).close()
    return lambda **changes: trial.open(replace(source, compiled=form), **changes)


def report(running: Running) -> MemoryReport:
    found: MemoryReport = running.executable.memory()
    return found


def test_an_engine_that_is_loaded_is_not_loaded_again(warm: type[Running]) -> None:
    from emulated_gpu import counting, live

    with counting() as counts:
        first = warm()
        alone = report(first)
        second = warm()
        assert live()["engines"] == 1
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
    trial: Trial, tmp_path: Path
) -> None:
    from emulated_gpu import live

    form = tmp_path / "new"
    form.mkdir()
    source = trial.source(models.affine)
    cold = trial.open(source, save_to=form)
    hot = trial.open(replace(source, compiled=form))
    assert live()["engines"] == 1
    for running in (cold, hot):
        assert report(running).shared_bytes > 0
        np.testing.assert_array_equal(running.predict(X)[0], 2 * X + 1)


def test_each_device_has_its_own_copy(warm: type[Running], monkeypatch: pytest.MonkeyPatch) -> None:
    from emulated_gpu import MACHINE

    kind = MACHINE.devices[0].name  # a form is of one kind of device
    monkeypatch.setattr(MACHINE.devices[1], "name", kind)
    runs = [warm(device=Device("gpu", id)) for id in range(2)]
    for running in runs:
        assert report(running).shared_bytes == 0
        np.testing.assert_array_equal(running.predict(X)[0], 2 * X + 1)


def test_weights_that_may_be_exchanged_are_no_others(warm: type[Running], trial: Trial) -> None:
    import engine_gpu_trt as plugin

    source = trial.source(models.affine)
    form = source.path.parent / "variable"  # type: ignore[union-attr]
    form.mkdir()
    trial.compile(source, save_to=form, variable_weights=("two",)).close()
    first, second = (
        trial.open(replace(source, compiled=form), variable_weights=("two",)) for _ in range(2)
    )
    plugin.engine_update_weights(first.executable, {"two": np.float32([9])}, False)
    np.testing.assert_array_equal(first.predict(X)[0], 9 * X + 1)
    np.testing.assert_array_equal(second.predict(X)[0], 2 * X + 1)


def test_threads_that_load_and_close_at_once_leave_nothing(warm: type[Running]) -> None:
    wrong: list[object] = []

    def work() -> None:
        for _ in range(10):
            running = warm()
            if not np.array_equal(running.predict(X)[0], 2 * X + 1):
                wrong.append(running)
            running.context.close()
            running.executable.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
