"""No predict sees the old value of one weight and the new value of another."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import written

import engine
from engine import Model

needs_cpu = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)

FACTOR = 1_000_003

# The second backend runs the last node alone: v is read by one, w by the other.
SEGMENTS = {"null_context": {"unsupported_ops": "Mul"}}
TARGETS = [
    pytest.param(["null"], {}, id="one segment"),
    pytest.param(["cpu"], {}, marks=needs_cpu, id="one segment on cpu"),
    pytest.param(["null", "cpu"], SEGMENTS, marks=needs_cpu, id="segments of two backends"),
]


@pytest.fixture(autouse=True)
def _threads_in_turns() -> Iterator[None]:
    """Let Python change threads between any two steps, nearly."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def path(null_backend: str, tmp_path: Path) -> Path:
    """y = (x + v) * FACTOR + w, x int64[2]: each element of y says which v and w it is of."""
    weights = f"int64[1] v = {{0}}, int64[1] w = {{0}}, int64 k = {{{FACTOR}}}"
    nodes = "a = Add(x, v) b = Mul(a, k) c = Neg(b) d = Neg(c) y = Add(d, w)"
    text = f"g (int64[2] x) => (int64[2] y) <{weights}> {{ {nodes} }}"
    return written(tmp_path / "model.onnx", text)


class _Predicts:
    """Threads that predict until told to stop, and the results that are of two updates."""

    def __init__(self, model: Model, threads: int) -> None:
        self._model = model
        self._is_done = False
        self.counts = [0] * threads
        self.torn: list[Any] = []
        self._pool = ThreadPoolExecutor(threads)

    def __enter__(self) -> _Predicts:
        self._going_on = [self._pool.submit(self._predict, n) for n in range(len(self.counts))]
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done = True
        self._pool.shutdown()
        for thread in self._going_on:
            thread.result()

    def wait(self, total: int) -> bool:
        """Wait until there were so many predicts; return False where one went wrong."""
        while sum(self.counts) < total:
            if self.torn or any(thread.done() for thread in self._going_on):
                return False
            time.sleep(0.0005)
        return True

    def _predict(self, number: int) -> None:
        inputs = cycle((np.array([5, 6]), np.array([5, 6, 7])))  # a resize makes one of them fit
        x, newest = next(inputs), 0
        while not self._is_done:
            try:
                [y] = self._model.predict([x])
            except engine.InputError:
                x = next(inputs)
                continue
            # y = (x + n) * FACTOR + 7 n: n follows from each element, and must be one.
            found, rest = np.divmod(y.get_data_to_numpy() - x * FACTOR, FACTOR + 7)
            if rest.any() or found.min() != found.max() or found[0] < newest:
                self.torn.append((x, y.get_data_to_numpy(), newest))
            newest = int(found[0])
            self.counts[number] += 1


def hammer(
    path: Path, target: list[str], config: Any, mode: str, updates: int, predicts: int, resize: bool
) -> None:
    sections = {**config, "common_context": {"variable_weights_mode": mode}}
    with (
        engine.load(path, target, variable_weights=["v", "w"], config=sections) as model,
        _Predicts(model, 2) as running,
    ):
        for number in range(1, updates + 1):
            model.update_weights({"v": np.array([number]), "w": np.array([7 * number])})
            if resize and number % 10 == 0:
                model.resize(model.get_inputs(), [[2 + number // 10 % 2]])
            if not running.wait(number * predicts // updates):
                break
    assert running.torn == []
    assert sum(running.counts) >= predicts


@pytest.mark.parametrize("mode", ["auto", "swap", "rebuild"])
@pytest.mark.parametrize(("target", "config"), TARGETS)
def test_no_predict_is_of_two_updates(path, target, config, mode) -> None:
    updates, predicts = (6, 120) if mode == "rebuild" else (60, 120)
    hammer(path, target, config, mode, updates, predicts, resize=True)


@pytest.mark.slow
@pytest.mark.parametrize("resize", [False, True])
@pytest.mark.parametrize("mode", ["swap", "rebuild"])
@pytest.mark.parametrize(("target", "config"), TARGETS[1:])
def test_none_of_100_000_predicts_is_of_two_of_1000_updates(
    path: Path, target: list[str], config: Any, mode: str, resize: bool
) -> None:
    hammer(path, target, config, mode, updates=1000, predicts=100_000, resize=resize)


@pytest.mark.parametrize("mode", ["swap", "rebuild"])
def test_updates_of_two_threads_are_one_after_the_other(path: Path, mode: str) -> None:
    config = {"common_context": {"variable_weights_mode": mode}}
    with engine.load(path, "null", variable_weights=["v", "w"], config=config) as model:
        numbers = count(1)

        def update(name: str, factor: int) -> None:
            for _ in range(8):
                model.update_weights({name: np.array([factor * next(numbers)])})
            model.update_weights({name: np.array([factor])})

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(update, "vw", (1, 7)))
        # The last update of each: none has taken back what the other one has changed.
        assert model(x=np.array([0, 1]))["y"].tolist() == [FACTOR + 7, 2 * FACTOR + 7]
