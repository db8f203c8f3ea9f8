"""Signal handlers that raise in the middle of a predict, a build or a close.

The exception is the handler's affair: it arrives as it is, and nothing is left behind.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import gt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import CancelToken, Tensor
from engine.model.model import model_state
from engine_testing import models
from engine_testing.interrupts import Expired, Interrupter
from engine_testing.shared_memory import left_since, names

X = np.arange(6, dtype=np.float32).reshape(2, 3)
LARGE = np.ones((5000, 3), np.float32)
LINE = np.arange(7, dtype=np.float32)


class Case:
    """A way to predict, and the expected result. target, config: for load. threads: that help."""

    def __init__(
        self,
        x: np.ndarray = X,
        expected: np.ndarray | None = None,
        make: Callable[[Path], Path] = models.affine,
        target: Any = "cpu",
        config: Any = None,
        threads: int = 0,
        with_outputs: bool = False,
        cancel: bool = False,
        **options: Any,
    ) -> None:
        self.x = x
        self.expected = 2 * x + 1 if expected is None else expected
        self.make = make
        self.target, self.config = target, config
        self.threads = threads
        self.with_outputs = with_outputs
        self.options = options
        if cancel:
            self.options["cancel"] = CancelToken()


MIXED: dict[str, Any] = {
    "x": LINE,
    "expected": LINE * LINE + LINE,
    "make": models.squares,
    "target": ["null", "cpu"],
    "config": {"null_context": {"unsupported_ops": "Add"}},
}
CASES = {
    "staged": Case(),
    "fed": Case(LARGE),
    "bound": Case(with_outputs=True),
    "with deadlines": Case(timeout_s=100),
    "bound, with deadlines": Case(with_outputs=True, timeout_s=100),
    "cancellable": Case(cancel=True, timeout_s=100),
    "reference": Case(target="cpu:reference"),
    "mixed": Case(**MIXED),
    "mixed, bound": Case(**MIXED, with_outputs=True, timeout_s=100),
    "beside threads": Case(threads=3, timeout_s=100),
}


@pytest.mark.parametrize(
    "count", [40, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
@pytest.mark.parametrize("name", CASES)
def test_what_a_signal_handler_raises_in_a_predict_arrives_and_the_next_is_right(
    name, count, null_backend, tmp_path
):
    case = CASES[name]
    model = engine.load(case.make(tmp_path), target=case.target, config=case.config)
    pool = model_state(model).plan.pool  # type: ignore[union-attr]
    outputs = [Tensor(np.zeros_like(case.expected))] if case.with_outputs else None

    def work() -> np.ndarray:
        [y] = model.predict([case.x], outputs, **case.options)
        return y.get_data_to_numpy()

    interrupter = Interrupter(seed=count)
    with helped(model, case) as wrong, interrupter.installed():
        for result in interrupter.calls(work, count):
            assert result is None or np.array_equal(result, case.expected)
            np.testing.assert_array_equal(work(), case.expected)
    assert (wrong, interrupter.lost, interrupter.unraisable) == ([], [], [])
    assert interrupter.raised > count / 50  # most, but on a busy machine the moments fall late
    assert len(pool.idle) == pool.open_count <= 1 + case.threads
    model.close()
    assert pool.open_count == 0
    with pytest.raises(engine.ModelStateError, match="closed"):
        work()


@contextmanager
def helped(model: engine.Model, case: Case) -> Iterator[list[object]]:
    """Predict in other threads too inside the block; gives what went wrong in them."""
    wrong: list[object] = []
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            try:
                [y] = model.predict([case.x], **case.options)
            except BaseException as error:
                wrong.append(error)
                return
            if not np.array_equal(y.get_data_to_numpy(), case.expected):
                wrong.append(y)
            time.sleep(0.0001)  # lets the interrupted thread come to its turn

    threads = [threading.Thread(target=work) for _ in range(case.threads)]
    for thread in threads:
        thread.start()
    try:
        yield wrong
    finally:
        is_over.set()
        for thread in threads:
            thread.join(30)


@pytest.mark.parametrize("with_outputs", [False, True])
def test_deadlines_are_kept_after_a_signal_handler_raised_as_they_were_set(with_outputs, tmp_path):
    tiny, slow = engine.load(models.affine(tmp_path)), engine.load(models.slow(tmp_path))
    interrupter = Interrupter(seed=1)
    with interrupter.installed():
        for _ in interrupter.calls(lambda: tiny.predict([X], timeout_s=100), 200):
            pass
    x = np.ones((8192, models.SLOW_WIDTH), np.float32)
    outputs = [Tensor(np.zeros_like(x))] if with_outputs else None
    for _ in range(2):
        with pytest.raises(engine.DeadlineExceeded):
            slow.predict([x], outputs, timeout_s=0.02)
    np.testing.assert_array_equal(slow.predict([x[:1]], timeout_s=100)[0], x[:1])


@pytest.mark.parametrize("count", [20, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", ["cpu", "mixed"])
def test_what_a_signal_handler_raises_in_load_or_close_arrives_and_nothing_leaks(
    target, count, null_backend, tmp_path
):
    case = CASES["mixed" if target == "mixed" else "staged"]
    path = case.make(tmp_path)

    def work() -> engine.Model:
        with engine.load(path, target=case.target, config=case.config) as model:
            np.testing.assert_array_equal(model.predict([case.x])[0], case.expected)
        return model

    for _ in range(3):
        work()
    gc.collect()
    before, files = resources(), names()
    # Not those that Python's own library takes for an answer: a file that is not there, a key.
    kinds = (Expired, KeyboardInterrupt, SystemExit, RuntimeError, MemoryError)
    interrupter = Interrupter(seed=count, kinds=kinds)
    with interrupter.installed():
        for _ in interrupter.calls(work, count):
            pass
    # Those that hit a model's finalizer, in a garbage collection, Python can only print.
    assert interrupter.lost == []
    assert interrupter.raised > 0
    end = time.monotonic() + 60
    while any(map(gt, resources(), before)) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.05)  # work that was not to be cut off may still run
    assert not any(map(gt, resources(), before))
    assert not left_since(files)
    work()


def resources() -> tuple[int, int]:
    """Count the process's descriptors and its threads."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
