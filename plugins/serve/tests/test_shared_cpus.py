"""The models of a server share its CPUs, and requests of all of them wait by priority."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from serve_ways import Served, infer, scaled, served, tensor

from engine.serving import parallel_runner, shared_cpus
from engine_testing import plugins
from engine_testing.fixtures import plugin_folder

__all__ = ["plugin_folder"]

CPUS = 2
GATE = """
import threading
from collections import defaultdict

begun, go_on = [], defaultdict(threading.Event)

def wrap(model, predict):
    def gated(context, inputs, outputs, deadline_s):
        value = int(inputs[0].flat[0])
        begun.append(value)
        assert go_on[value].wait(60)
        return predict(context, inputs, outputs, deadline_s)

    return gated
"""


def wait_until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.001)


def waiting(server: Served) -> int:
    runners = [model.runner for model in server.repository.loaded()]
    return sum(runner.statistics().waiting for runner in runners)


def test_two_models_run_as_many_as_there_are_cpus_by_priority(
    plugin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_cpus, "_cpus", shared_cpus.SharedCpus())
    for module in (shared_cpus, parallel_runner):
        monkeypatch.setattr(module, "usable_cpus", lambda: CPUS)
    plugins.install(plugin_folder, "gate", "gate:wrap", group="engine.extensions.v1", source=GATE)
    monkeypatch.setenv("ENGINE_EXTENSIONS", "gate")
    gate = importlib.import_module("gate")
    paths = scaled(tmp_path / "a.onnx", 2), scaled(tmp_path / "b.onnx", 3)
    for value in range(100):
        gate.go_on[value].set()  # while the models are built
    with served(*paths) as server, ThreadPoolExecutor(8) as clients:
        gate.begun.clear()
        for value in range(100):
            gate.go_on[value].clear()

        def ask(model: str, value: int, priority: int = 0) -> list[float]:
            x = np.full((1, 3), value, np.float32)
            status, answer = infer(server.http, model, tensor(x), parameters={"priority": priority})
            assert status == 200, answer
            return answer["outputs"][0]["data"]

        asked = []
        for model, value in (("a", 1), ("a", 2), ("b", 3)):
            asked.append(clients.submit(ask, model, value))
            wait_until(lambda value=value: value in gate.begun)
        for model, value, priority in (("b", 6, 0), ("b", 5, 2), ("a", 4, 1)):  # 1 is the highest
            asked.append(clients.submit(ask, model, value, priority))
            wait_until(lambda: waiting(server) == len(asked) - 3)
        for ends, count in ((1, 3), (2, 4), (3, 5)):
            gate.go_on[ends].set()
            wait_until(lambda count=count: len(gate.begun) >= count)
        assert gate.begun[:5] == [1, 2, 3, 4, 5]
        for value in range(4, 7):
            gate.go_on[value].set()
        found = [future.result(60) for future in asked]
        assert found == [[n * f] * 3 for n, f in ((1, 2), (2, 2), (3, 3), (6, 3), (5, 3), (4, 2))]
