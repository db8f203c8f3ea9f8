"""Workers on the cpu backend: what they compute, and how often the weights are in memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node

import engine
from engine import MultiDeviceRunner
from engine_testing import models
from engine_testing.making import tensor, write

pytestmark = pytest.mark.skipif(find_spec("engine_cpu") is None, reason="no cpu backend")

SIZE = 2048


def weighty(folder: Path) -> Path:
    """y = 4 x W, 64 MB of weights, x: float32[batch, 2048]."""
    generators = {f"w{number}": np.random.default_rng(number) for number in range(4)}
    weights = {
        name: generator.standard_normal((SIZE, SIZE), dtype=np.float32)
        for name, generator in generators.items()
    }
    nodes = [make_node("MatMul", [a, w], [b]) for a, w, b in zip("xabc", weights, "abcy")]
    x, y = tensor("x", ["batch", SIZE]), tensor("y", ["batch", SIZE])
    return write(folder, "weighty", [x], [y], nodes, weights)


def private_bytes(process: int) -> int:
    """Return what a process has in memory that no other process has."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


@pytest.mark.slow
def test_workers_have_one_copy_of_the_weights_and_give_what_one_process_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_CACHE", "wait")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    path = weighty(tmp_path)
    x = np.random.default_rng(9).standard_normal((5, SIZE), dtype=np.float32)
    with engine.load(path) as model:  # writes the entry
        expected = model(x)["y"]
    with MultiDeviceRunner(str(path), [0, 1, 2]) as runner:
        for _ in range(3):
            [y] = runner.predict([x])
            found = y.get_data_to_numpy()
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2 * abs(expected).max())
        private = [private_bytes(worker.pid) for worker in runner.statistics().workers]

    assert max(private) < 4 * SIZE * SIZE * 4  # none has a copy of its own


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["swap", "rebuild"])
def test_no_request_of_thousands_sees_half_of_an_update(tmp_path: Path, mode: str) -> None:
    context = engine.Context()
    context.parallel.config_info = {
        "common_context": {"variable_weights_list": "two, one", "variable_weights_mode": mode}
    }
    x = np.ones((4, 3), np.float32)
    is_over = threading.Event()
    sums: set[float] = set()
    counts = [0] * 4

    def ask(number: int) -> None:
        while not is_over.is_set():
            [y] = runner.predict([x])
            counts[number] += 1
            sums.update(y.get_data_to_numpy().ravel().tolist())

    with (
        MultiDeviceRunner(models.affine(tmp_path), [0, 1], context) as runner,
        ThreadPoolExecutor(4) as threads,
    ):
        runner.update_weights({"two": np.zeros(1, np.float32), "one": np.zeros(1, np.float32)})
        asking = [threads.submit(ask, number) for number in range(4)]
        least, number = 1000 if mode == "swap" else 100, 0
        try:  # until each thread has asked often enough, however slow the machine
            while number < least or (min(counts) < 250 and not any(t.done() for t in asking)):
                number += 1
                value = np.array([number], np.float32)
                runner.update_weights({"two": value, "one": -value})
        finally:
            is_over.set()
        for task in asking:
            task.result(60)
    assert sums == {0}  # two x 1 + one
