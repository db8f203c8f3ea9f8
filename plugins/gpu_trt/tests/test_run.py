"""Running: threads, shapes, memory, and what fails half-way."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from engine.errors import BackendUnavailable, EngineError, InputError, ModelError
from engine.types import ShapeRange
from engine_testing import models
from engine_testing.level import Trial

Make = Callable[..., Any]

WIDE = {"x": ShapeRange((0, 3), (4, 3), (64, 3))}


def rows(count: int, start: int = 0) -> np.ndarray[Any, Any]:
    return np.arange(start, start + 3 * count, dtype=np.float32).reshape(count, 3)


def test_tensorrt_is_told_shapes_only_when_they_change(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, trt: Any
) -> None:
    real = trt.IExecutionContext.set_input_shape
    told: list[tuple[int, ...]] = []

    def set_input_shape(self: Any, name: str, shape: Any) -> bool:
        told.append(tuple(shape))
        return bool(real(self, name, shape))

    monkeypatch.setattr(trt.IExecutionContext, "set_input_shape", set_input_shape)
    running = trial.open(models.affine, shapes=WIDE)
    for count in (2, 2, 2, 3, 3, 2):
        running.predict(rows(count))
    assert told == [(2, 3), (3, 3), (2, 3)]


def test_a_shape_outside_the_profile_is_named_with_the_range(trial: Trial) -> None:
    running = trial.open(models.affine, shapes=WIDE)
    with pytest.raises(InputError, match=r"input 'x': shape \[65, 3\] is outside \[0, 3\]\.\.\["):
        running.predict(rows(65))
    [y] = running.predict(rows(2))  # the context is as good as before
    np.testing.assert_array_equal(y, 2 * rows(2) + 1)


def test_the_profile_that_fits_is_chosen(trial: Trial) -> None:
    profiles = tuple(
        {"x": ShapeRange((low, 3), (usual, 3), (high, 3))}
        for low, usual, high in ((1, 2, 4), (16, 32, 64))
    )
    hull = {"x": ShapeRange((1, 3), (2, 3), (64, 3))}
    running = trial.open(models.affine, shapes=hull, profiles=profiles)
    assert running.executable.inputs[0].bounds == ((1, 64), None)
    for count in (1, 16, 4, 64, 2, 3, 33):
        [y] = running.predict(rows(count))
        np.testing.assert_array_equal(y, 2 * rows(count) + 1)
    with pytest.raises(InputError, match=r"\[8, 3\] is outside \[1, 3\].* and \[16, 3\]\.\.\[64"):
        running.predict(rows(8))


def test_inputs_must_fit_one_profile_together(trial: Trial) -> None:
    def ranges(low: int, high: int) -> dict[str, ShapeRange]:
        return {
            "left": ShapeRange((low, 2), (high, 2), (high, 2)),
            "right": ShapeRange((2, low), (2, high), (2, high)),
        }

    profiles = (ranges(1, 4), ranges(16, 64))
    running = trial.open(models.shared_dims, shapes=ranges(1, 64), profiles=profiles)
    right = np.ones((2, 32), np.float32)
    [y] = running.predict(np.ones((32, 2), np.float32), right)
    np.testing.assert_array_equal(y, np.full((32, 32), 2, np.float32))
    with pytest.raises(InputError, match="fit different profiles"):
        running.predict(np.ones((2, 2), np.float32), right)


def test_shapes_that_fail_inside_the_network_are_a_model_error(trial: Trial) -> None:
    running = trial.open(models.pairs, options={"batch_range": "1~2~8"})
    for _ in range(2):
        with pytest.raises(ModelError, match="TensorRT cannot run these shapes: "):
            running.predict(np.zeros(3, np.float32))
        [y] = running.predict(np.float32([1, 2, 3, 4]))
        np.testing.assert_array_equal(y, np.float32([[1, 2], [3, 4]]))


def test_everything_may_happen_in_different_threads(trial: Trial) -> None:
    def elsewhere(call: Callable[..., Any], *arguments: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call, *arguments).result()

    source, options = trial.source(models.affine), trial.options(shapes=WIDE)
    loaded = elsewhere(trial.backend.load, source, options)
    executable = elsewhere(trial.backend.compile, loaded, options)
    elsewhere(loaded.close)
    context = elsewhere(executable.open_context)
    [y] = elsewhere(trial.backend.predict, context, [rows(2)], None, None)
    np.testing.assert_array_equal(y, 2 * rows(2) + 1)
    elsewhere(context.close)
    elsewhere(executable.close)


def test_what_nobody_closes_is_freed_by_the_collector_in_any_thread(
    trial: Trial, emulated: Any
) -> None:
    before = emulated.live()
    executable = trial.build(trial.source(models.affine), trial.options())
    context = executable.open_context()
    trial.backend.predict(context, [rows(2)], None, None)
    cycle: list[Any] = [executable, context]
    cycle.append(cycle)
    del executable, context
    cycle = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(gc.collect).result()
    assert emulated.live() == before | {"primary contexts": 1}


def test_a_context_that_nobody_closes_is_freed_before_its_executable(
    trial: Trial, emulated: Any
) -> None:
    executable = trial.compile(models.affine)
    before = emulated.live()
    context = executable.open_context()
    trial.backend.predict(context, [rows(2)], None, None)
    assert emulated.live() != before
    del context
    gc.collect()
    assert emulated.live() == before


def test_memory_is_what_the_device_says(trial: Trial, emulated: Any) -> None:
    executable = trial.compile(models.heavy)
    assert executable.memory().weights_bytes == 4 * 2**20
    assert emulated.MACHINE.devices[0].used == 4 * 2**20
    first, second = trial.context(executable), trial.context(executable)
    x = np.ones((4, 1024), np.float32)
    first.predict(x)
    second.predict(x)
    report = executable.memory()
    assert report.weights_bytes + report.workspace_bytes == emulated.MACHINE.devices[0].used
    second.context.close()
    report = executable.memory()
    assert report.weights_bytes + report.workspace_bytes == emulated.MACHINE.devices[0].used
    first.context.close()
    assert executable.memory().workspace_bytes == 0


def test_closing_an_executable_closes_its_contexts_first(trial: Trial) -> None:
    running = trial.open(models.affine)
    running.predict(rows(2))
    running.executable.close()
    running.context.close()
    assert running.executable.memory().weights_bytes == 0
    with pytest.raises(BackendUnavailable, match="the executable is closed"):
        running.executable.open_context()
    with pytest.raises(BackendUnavailable, match="the context is closed"):
        running.predict(rows(2))


def test_a_context_keeps_its_executable(trial: Trial) -> None:
    context = trial.build(trial.source(models.affine), trial.options()).open_context()
    gc.collect()
    [y] = trial.backend.predict(context, [rows(2)], None, None)
    np.testing.assert_array_equal(y, 2 * rows(2) + 1)
    context.close()


def test_building_and_closing_again_and_again_leaves_nothing(trial: Trial, emulated: Any) -> None:
    source = trial.source(models.affine)
    before = emulated.live()
    for count in range(20):
        executable = trial.build(source, trial.options())
        context = executable.open_context()
        [y] = trial.backend.predict(context, [rows(1 + count % 8)], None, None)
        np.testing.assert_array_equal(y, 2 * rows(1 + count % 8) + 1)
        context.close()
        executable.close()
        if not count:
            before = emulated.live()
    assert emulated.live() == before


CALLS = (
    "Event", "Stream", "build", "create_execution_context", "cuMemcpyDtoHAsync",
    "cuMemcpyHtoDAsync", "deserialize", "execute", "mem_alloc", "pagelocked_empty", "synchronize",
)  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_failure_half_way_leaves_nothing_and_breaks_nothing(
    trial: Trial, call: str, after: int, emulated: Any
) -> None:
    source, options = trial.source(models.several), trial.options()
    x, m = np.full((2, 3), 2, np.float32), np.ones(3, np.float32)
    before = emulated.live() | {"primary contexts": 1}
    messages = []
    with emulated.fail(call, after=after):
        for _ in range(after + 1):
            try:
                executable = trial.build(source, options)
                try:
                    context = executable.open_context()
                    trial.backend.predict(context, [x, x, m], None, None)
                finally:
                    executable.close()
            except EngineError as error:
                messages.append(str(error))
    assert len(messages) == 1, f"{call} was to emulated.fail once"
    assert "gpu:0" in messages[0]
    assert emulated.live() == before
    y, _, _ = trial.run(models.several, x, x, m)
    np.testing.assert_array_equal(y, np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("call", ["mem_alloc", "pagelocked_empty", "execute", "cuMemcpyDtoHAsync"])
def test_a_context_survives_a_failed_predict(trial: Trial, call: str, emulated: Any) -> None:
    running = trial.open(models.affine, shapes=WIDE)
    running.predict(rows(2))
    with emulated.fail(call), pytest.raises(BackendUnavailable, match=r"^gpu:0: "):
        running.predict(rows(8))
    for count in (8, 2, 64):
        [y] = running.predict(rows(count))
        np.testing.assert_array_equal(y, 2 * rows(count) + 1)


def test_too_little_memory_in_predict_says_how_much_was_wanted(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, emulated: Any
) -> None:
    running = trial.open(models.affine, shapes=WIDE)
    device = emulated.MACHINE.devices[0]
    monkeypatch.setattr(device, "total", device.used + 100)
    wanted = r"out of memory: wanted 768 bytes of device memory, 100 of \d+ bytes are free"
    with pytest.raises(BackendUnavailable, match=wanted):
        running.predict(rows(64))


def test_an_output_that_cannot_grow_says_so(trial: Trial, emulated: Any) -> None:
    running = trial.open(models.nonzero, options={"batch_range": "1~4~64"})
    running.predict(np.float32([1, 0]))
    with (
        emulated.fail("mem_alloc", after=1),
        pytest.raises(BackendUnavailable, match="out of memory"),
    ):
        running.predict(np.ones(64, np.float32))  # the input's memory first, then the output's
    [y] = running.predict(np.ones(64, np.float32))
    np.testing.assert_array_equal(y, np.arange(64)[None])


def test_a_lost_device_is_said(trial: Trial, emulated: Any) -> None:
    running = trial.open(models.affine)
    with (
        emulated.fail("synchronize"),
        pytest.raises(BackendUnavailable, match="unspecified launch failure"),
    ):
        running.predict(rows(1))
