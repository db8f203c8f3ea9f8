"""Observers get a request's id, its run and the devices that served it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import Context, Model, ModelParallelRunner, MultiDeviceRunner
from engine.types import Device, DeviceMemory
from engine_testing import models

pytestmark = pytest.mark.usefixtures("null_backend")

NULL = Device("null", 0)


def row(value: float) -> Any:
    return np.full((1, 3), value, np.float32)


def context(*targets: str) -> Context:
    made = Context()
    made.target = [*targets]
    return made


@pytest.mark.parametrize("way", ["predict", "predict_async", "runner", "submit", "devices"])
def test_a_request_has_the_id_that_its_owner_gave_it(way: str, told: Any, tmp_path: Path) -> None:
    path = str(models.affine(tmp_path))
    asked: Any
    if way == "devices":
        asked = MultiDeviceRunner(path, [0], context("null"))
    elif way in ("runner", "submit"):
        asked = ModelParallelRunner()
        asked.build_from_file(path, context("null"))
    else:
        asked = Model()
        asked.build_from_file(path, engine.ModelType.MINDIR, context("null"))
    with asked:
        for request_id in ("order 66", ""):
            if way == "predict_async":
                asyncio.run(asked.predict_async([row(1)], request_id=request_id))
            elif way == "submit":
                asked.submit([row(1)], request_id=request_id).result(120)
            else:
                asked.predict([row(1)], request_id=request_id)
        asked.predict([row(1)], request_id="order 66")  # ids are unique only if users see to it
        with pytest.raises(engine.InputError):
            asked.predict([np.zeros((1, 4), np.float32)], request_id="wrong")
    own, made, again, wrong = told.of("Request")
    assert own.id == again.id == "order 66"
    assert made.id not in ("", "order 66")
    assert wrong.id == "wrong"
    assert len({own.run_id, made.run_id, again.run_id} - {"", "order 66"}) == 3
    for event in (own, made, again):
        assert event.devices == (NULL,)
    assert [each.model.devices for each in told.of("Build")] == [(NULL,)]


def test_requests_that_share_a_run_have_its_id(told: Any, tmp_path: Path) -> None:
    runner = ModelParallelRunner()
    asked = context("null")
    asked.parallel.workers_num = 1
    asked.parallel.config_info = {"null_context": {"delay_s": "0.05"}}
    runner.build_from_file(str(models.affine(tmp_path)), asked, max_batch_size=4, max_delay_us=0)
    with runner, ThreadPoolExecutor(12) as threads:
        calls = [
            threads.submit(runner.predict, [row(number)], request_id=f"r{number}")
            for number in range(12)
        ]
        for number, call in enumerate(calls):
            [y] = call.result(120)
            np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * row(number) + 1)
    events = told.of("Request")
    assert sorted(event.id for event in events) == sorted(f"r{number}" for number in range(12))
    runs: dict[str, list[Any]] = {}
    for event in events:
        assert event.devices == (NULL,)
        runs.setdefault(event.run_id, []).append(event)
    assert len(runs) < 12, "none shared a run"
    for run_id, of_run in runs.items():
        assert {event.batch_size for event in of_run} == {len(of_run)}
        assert run_id not in {event.id for event in of_run}


def test_a_request_that_is_cut_over_devices_names_those_that_served_it(
    told: Any, tmp_path: Path
) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    asked = context("null")  # runs so long that one device does not serve both parts
    asked.parallel.config_info = {"null_context": {"delay_s": "0.5"}}
    with MultiDeviceRunner(str(models.affine(tmp_path)), [0, 1], asked) as runner:
        [y] = runner.predict([x])
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * x + 1)
        runner.predict([x[:1]])
    both, one = told.of("Request")
    [built] = told.of("Build")
    devices = {Device("null", 0), Device("null", 1)}
    assert set(built.model.devices) == set(both.devices) == devices
    assert len(one.devices) == 1
    assert set(one.devices) < devices
    assert built.device_memory is None  # those of other processes


def test_a_request_that_never_ran_has_no_run_and_no_device(told: Any, tmp_path: Path) -> None:
    runner = ModelParallelRunner()
    asked = context("null")
    asked.parallel.workers_num = 1
    asked.parallel.config_info = {"null_context": {"delay_s": "300"}}
    runner.build_from_file(str(models.affine(tmp_path)), asked, max_batch_size=1)
    with runner:
        first = runner.submit([row(1)], request_id="first")
        future = runner.submit([row(1)], request_id="never")
        assert future.cancel()
        with pytest.raises(engine.Cancelled):
            future.result(120)
        assert first.cancel()
    event = {event.id: event for event in told.of("Request")}["never"]
    assert (event.id, event.run_id, event.devices, event.batch_size) == ("never", "", (), 0)


def test_the_memory_of_a_models_devices_is_asked_for_when_it_is_called(
    told: Any, tmp_path: Path
) -> None:
    model = engine.load(models.affine(tmp_path), target="null")
    [event] = told.of("Build")
    before = event.device_memory()[NULL]
    assert isinstance(before, DeviceMemory)
    kept = engine.Tensor(np.zeros(1000, np.float32), device="null:0")
    after = event.device_memory()[NULL]
    assert after.own_bytes - before.own_bytes == 4000
    assert before.free_bytes - after.free_bytes == 4000
    del kept
    assert event.device_memory()[NULL] == before
    model.close()


def test_a_failed_build_has_no_memory_to_tell(told: Any, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(engine.ModelError):
        engine.load(path, target="null")
    [event] = told.of("Build")
    assert (event.device_memory, event.model.devices) == (None, ())
