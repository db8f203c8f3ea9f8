"""Running: threads, shapes, memory, and what fails half-way."""

from __future__ import annotations

import gc
import random
import threading
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


# --------------------------------------------------------------------------------------- shapes


def test_shapes_change_from_call_to_call(trial: Trial) -> None:
    running = trial.open(models.affine, shapes=WIDE)
    for count in (4, 1, 64, 0, 17, 64, 2):
        x = rows(count)
        [y] = running.predict(x)
        np.testing.assert_array_equal(y, 2 * x + 1)


def test_tensorrt_is_told_shapes_only_when_they_change(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorrt as trt

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


def test_data_dependent_shapes_may_grow_and_shrink(trial: Trial) -> None:
    running = trial.open(models.nonzero, options={"batch_range": "1~4~64"})
    choose = random.Random(5)
    for _ in range(20):
        x = np.float32([choose.choice([0, 1]) for _ in range(choose.randint(1, 64))])
        [y] = running.predict(x)
        np.testing.assert_array_equal(y, np.flatnonzero(x)[None])


# -------------------------------------------------------------------------------------- threads


def test_contexts_run_in_parallel_threads(trial: Trial) -> None:
    executable = trial.compile(models.affine, shapes=WIDE)
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        running = trial.context(executable)
        barrier.wait()
        for count in range(1, 30):
            x = rows(count, start=100 * number)
            [y] = running.predict(x)
            np.testing.assert_array_equal(y, 2 * x + 1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_a_context_may_come_to_another_thread_each_time(trial: Trial) -> None:
    running = trial.open(models.affine, shapes=WIDE)
    for count in range(1, 12):
        with ThreadPoolExecutor(1) as pool:  # a new thread, and gone again
            [y] = pool.submit(running.predict, rows(count)).result()
        np.testing.assert_array_equal(y, 2 * rows(count) + 1)


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


def test_what_nobody_closes_is_freed_by_the_collector_in_any_thread(trial: Trial) -> None:
    from emulated_gpu import live

    before = live()
    executable = trial.build(trial.source(models.affine), trial.options())
    context = executable.open_context()
    trial.backend.predict(context, [rows(2)], None, None)
    cycle: list[Any] = [executable, context]
    cycle.append(cycle)
    del executable, context
    cycle = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(gc.collect).result()
    assert live() == before | {"primary contexts": 1}


def test_a_context_that_nobody_closes_is_freed_before_its_executable(trial: Trial) -> None:
    from emulated_gpu import live

    executable = trial.compile(models.affine)
    before = live()
    context = executable.open_context()
    trial.backend.predict(context, [rows(2)], None, None)
    assert live() != before
    del context
    gc.collect()
    assert live() == before


# --------------------------------------------------------------------------------------- memory


def test_memory_is_what_the_device_says(trial: Trial) -> None:
    from emulated_gpu import MACHINE

    executable = trial.compile(models.heavy)
    assert executable.memory().weights_bytes == 4 * 2**20
    assert MACHINE.devices[0].used == 4 * 2**20
    first, second = trial.context(executable), trial.context(executable)
    x = np.ones((4, 1024), np.float32)
    first.predict(x)
    second.predict(x)
    report = executable.memory()
    assert report.weights_bytes + report.workspace_bytes == MACHINE.devices[0].used
    second.context.close()
    report = executable.memory()
    assert report.weights_bytes + report.workspace_bytes == MACHINE.devices[0].used
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


@pytest.mark.parametrize("cycles", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_building_and_closing_again_and_again_leaves_nothing(trial: Trial, cycles: int) -> None:
    from emulated_gpu import live

    source = trial.source(models.affine)
    before = live()
    for count in range(cycles):
        executable = trial.build(source, trial.options())
        context = executable.open_context()
        [y] = trial.backend.predict(context, [rows(1 + count % 8)], None, None)
        np.testing.assert_array_equal(y, 2 * rows(1 + count % 8) + 1)
        context.close()
        executable.close()
        if not count:
            before = live()
    assert live() == before


CALLS = (
    "Event",
    "Stream",
    "build",
    "create_execution_context",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoDAsync",
    "deserialize",
    "execute",
    "mem_alloc",
    "pagelocked_empty",
    "synchronize",
)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_failure_half_way_leaves_nothing_and_breaks_nothing(
    trial: Trial, call: str, after: int
) -> None:
    from emulated_gpu import fail, live

    source, options = trial.source(models.several), trial.options()
    x, m = np.full((2, 3), 2, np.float32), np.ones(3, np.float32)
    before = live() | {"primary contexts": 1}
    messages = []
    with fail(call, after=after):
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
    assert len(messages) == 1, f"{call} was to fail once"
    assert "gpu:0" in messages[0]
    assert live() == before
    y, _, _ = trial.run(models.several, x, x, m)
    np.testing.assert_array_equal(y, np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("call", ["mem_alloc", "pagelocked_empty", "execute", "cuMemcpyDtoHAsync"])
def test_a_context_survives_a_failed_predict(trial: Trial, call: str) -> None:
    from emulated_gpu import fail

    running = trial.open(models.affine, shapes=WIDE)
    running.predict(rows(2))
    with fail(call), pytest.raises(BackendUnavailable, match=r"^gpu:0: "):
        running.predict(rows(8))
    for count in (8, 2, 64):
        [y] = running.predict(rows(count))
        np.testing.assert_array_equal(y, 2 * rows(count) + 1)


def test_too_little_memory_in_predict_says_how_much_was_wanted(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    from emulated_gpu import MACHINE

    running = trial.open(models.affine, shapes=WIDE)
    device = MACHINE.devices[0]
    monkeypatch.setattr(device, "total", device.used + 100)
    wanted = r"out of memory: wanted 768 bytes of device memory, 100 of \d+ bytes are free"
    with pytest.raises(BackendUnavailable, match=wanted):
        running.predict(rows(64))


def test_an_output_that_cannot_grow_says_so(trial: Trial) -> None:
    from emulated_gpu import fail

    running = trial.open(models.nonzero, options={"batch_range": "1~4~64"})
    running.predict(np.float32([1, 0]))
    with fail("mem_alloc", after=1), pytest.raises(BackendUnavailable, match="out of memory"):
        running.predict(np.ones(64, np.float32))  # the input's memory first, then the output's
    [y] = running.predict(np.ones(64, np.float32))
    np.testing.assert_array_equal(y, np.arange(64)[None])


def test_a_lost_device_is_said(trial: Trial) -> None:
    from emulated_gpu import fail

    running = trial.open(models.affine)
    with fail("synchronize"), pytest.raises(BackendUnavailable, match="unspecified launch failure"):
        running.predict(rows(1))
