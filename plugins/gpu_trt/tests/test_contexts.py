"""Contexts beside each other, and how many are worth having."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.errors import BackendUnavailable
from engine.types import Device, ShapeRange
from engine_gpu_trt import vendor
from engine_testing import models
from engine_testing.level import Running, Trial

Make = Callable[..., Any]


def ranges(highest: int) -> dict[str, ShapeRange]:
    return {"x": ShapeRange((1, 1024), (1, 1024), (highest, 1024))}


def beside(trial: Trial, executable: Any, other: Running) -> Running:
    return Running(trial.backend, executable, executable.open_context(beside=other.context))


def test_two_predicts_at_once_are_worth_having_unless_the_user_says_otherwise(
    trial: Trial,
) -> None:
    assert trial.compile(models.affine).concurrency == 2  # type: ignore[attr-defined]
    for text in ("0", "5"):
        executable = trial.compile(models.affine, options={"concurrency": text})
        assert executable.concurrency == int(text)  # type: ignore[attr-defined]


@pytest.mark.parametrize("highest", [(64, 2), (2, 64), (8, 8)])
def test_contexts_beside_each_other_need_the_larger_scratch_memory_once(
    trial: Trial, highest: tuple[int, int], emulated: Any
) -> None:
    executables = [trial.compile(models.heavy, shapes=ranges(size)) for size in highest]
    scratch = [executable._engine.engine._header["activation_bytes"] for executable in executables]  # type: ignore[attr-defined]
    before, used = emulated.live(), emulated.MACHINE.devices[0].used
    first = trial.context(executables[0])
    second = beside(trial, executables[1], first)
    assert emulated.live()["streams"] == before.get("streams", 0) + 1
    x = np.ones((2, 1024), np.float32)
    for running in (first, second, first):
        [y] = running.predict(x)
        np.testing.assert_allclose(y, x)
    assert emulated.MACHINE.devices[0].used == used + max(scratch) + 2 * 2 * x.nbytes
    held = [executable.memory().workspace_bytes for executable in executables]
    assert sum(held) == emulated.MACHINE.devices[0].used - used
    second.context.close()
    first.predict(x)
    first.context.close()
    assert emulated.MACHINE.devices[0].used == used
    assert emulated.live() == before


def test_a_chain_of_contexts_beside_each_other_needs_no_event(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = vendor.cuda_driver()

    resident = frozenset({"y"})
    first = trial.open(models.affine, resident=resident)
    second = beside(trial, trial.compile(models.affine, resident=resident), first)
    third = beside(trial, trial.compile(models.affine), second)

    def record(self: Any, stream: Any = None) -> None:
        raise AssertionError("one stream is in order by itself")

    monkeypatch.setattr(cuda.Event, "record", record)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for _ in range(3):
        [value] = first.predict(x)
        [value] = second.predict(value)
        [y] = third.predict(value)
        np.testing.assert_array_equal(y, 8 * x + 7)
    del value
    third.context.close()
    second.context.close()


def test_a_context_of_another_device_or_backend_is_refused(
    trial: Trial, second_device: int
) -> None:
    other = trial.open(models.affine, device=Device("gpu", second_device))
    executable: Any = trial.compile(models.affine)
    for wrong in (other.context, object()):
        with pytest.raises(ValueError, match="takes a context of gpu_trt on gpu:0, but got"):
            executable.open_context(beside=wrong)


def test_a_closed_context_is_no_place_to_work_beside(trial: Trial) -> None:
    running = trial.open(models.affine)
    running.context.close()
    executable: Any = running.executable
    with pytest.raises(BackendUnavailable, match="the context to work beside is closed"):
        executable.open_context(beside=running.context)


@pytest.mark.parametrize("call", ["create_execution_context", "mem_alloc"])
def test_a_context_that_cannot_be_opened_beside_another_leaves_that_as_it_was(
    trial: Trial, call: str, emulated: Any
) -> None:
    first = trial.open(models.heavy, shapes=ranges(2))
    larger: Any = trial.compile(models.heavy, shapes=ranges(64))
    x = np.ones((1, 1024), np.float32)
    first.predict(x)
    before = emulated.live()
    with emulated.fail(call), pytest.raises(BackendUnavailable, match="gpu:0"):
        larger.open_context(beside=first.context)
    assert emulated.live() == before
    first.predict(x)
    with emulated.fail(call), pytest.raises(BackendUnavailable, match="gpu:0"):
        larger.open_context()
    assert emulated.live() == before
