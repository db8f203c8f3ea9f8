"""Model.predict_async: a model awaited."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import wait_until

import engine
from engine import DeadlineExceeded, InputError, Model, ModelStateError
from engine_testing import models

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def slow(folder: Path, delay_s: float) -> Model:
    config = {"null_context": {"delay_s": str(delay_s)}}
    return engine.load(models.affine(folder), target="null", config=config)


def test_many_are_awaited_at_once_and_each_gets_its_own(affine: Model) -> None:
    async def ask(number: int) -> list[list[float]]:
        [y] = await affine.predict_async({"x": X + number})
        return y.get_data_to_numpy().tolist()

    async def everybody() -> list[list[list[float]]]:
        return await asyncio.gather(*map(ask, range(20)))

    found = asyncio.run(everybody())
    assert found == [(2 * (X + number) + 1).tolist() for number in range(20)]


def test_the_loop_goes_on_meanwhile(gated: Any, tmp_path: Path) -> None:
    async def ask(model: Model) -> None:
        task = asyncio.ensure_future(model.predict_async([X]))
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert not task.done()
        gated.go.set()
        await task

    with engine.load(models.affine(tmp_path), target="gated") as model:
        asyncio.run(ask(model))


def test_errors_and_deadlines_are_raised_where_it_is_awaited(null_backend, tmp_path) -> None:
    async def ask(model: Model) -> None:
        with pytest.raises(InputError):
            await model.predict_async([X[0]])
        with pytest.raises(DeadlineExceeded):
            await model.predict_async([X], timeout_s=0.05)

    with slow(tmp_path, 300) as model:
        asyncio.run(ask(model))


def test_a_cancelled_task_stops_its_run(null_backend: str, tmp_path: Path) -> None:
    async def ask(model: Model) -> None:
        task = asyncio.ensure_future(model.predict_async([X]))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with slow(tmp_path, 300) as model:
        begin = time.monotonic()
        asyncio.run(ask(model))
    assert time.monotonic() - begin < 200


def test_a_closed_model_fails_who_waits_and_ends_its_threads(null_backend, tmp_path) -> None:
    async def ask(model: Model) -> list[object]:
        tasks = [asyncio.ensure_future(model.predict_async([X])) for _ in range(20)]
        await asyncio.sleep(0.05)
        await asyncio.get_running_loop().run_in_executor(None, model.close)
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(ask(slow(tmp_path, 1)))
    failed = [error for error in found if isinstance(error, ModelStateError)]
    assert len(failed) >= 10
    assert all(isinstance(each, list | ModelStateError) for each in found)
    wait_until(lambda: "engine-runner" not in {thread.name for thread in threading.enumerate()})


def test_a_model_that_is_not_built_says_so() -> None:
    with pytest.raises(ModelStateError, match="not built"):
        asyncio.run(Model().predict_async([X]))
