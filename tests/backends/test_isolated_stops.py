"""Deadlines, cancels and interrupts stop an isolated model, and leave its worker to others."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isolating import ISOLATE, X, isolated, kill_worker_of, worker_of

import engine
from engine import CancelToken
from engine.errors import Cancelled, DeadlineExceeded
from engine.host.child import command, environment
from engine_testing import models

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def cancelled_soon() -> CancelToken:
    token = CancelToken()
    threading.Timer(0.3, token.cancel).start()
    return token


@pytest.mark.parametrize(
    ("stop", "error"),
    [
        (lambda: {"timeout_s": 0.3}, DeadlineExceeded),
        (lambda: {"cancel": cancelled_soon()}, Cancelled),
    ],
)
@pytest.mark.slow
def test_deadlines_and_cancels_stop_a_run_even_where_the_backend_cannot(
    odd: Callable[..., str], tmp_path: Path, stop: Any, error: type[Exception]
) -> None:
    name = odd(without="'deadlines', 'cancel_predict'", predict="time.sleep(600)")
    with isolated(models.affine(tmp_path), name) as model:
        begin = time.monotonic()
        with pytest.raises(error):
            model.predict([-X], **stop())
        assert time.monotonic() - begin < 200
        np.testing.assert_array_equal(model(X)["y"], 2 * X + 1)
        time.sleep(0.3)  # the timer's thread


# The second worker loads only once the log may go on.
SLOW_AGAIN = """
    with open({log!r}, "a+") as log:
        log.seek(0)
        is_first = not log.read()
        log.write("loads ")
    while not is_first and not os.path.exists({log!r} + ".go"):
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("stop", "error", "says"),
    [
        (lambda: {"timeout_s": 1.0}, DeadlineExceeded, "another is being started"),
        pytest.param(
            lambda: {"cancel": cancelled_soon()}, Cancelled, "by its owner", marks=pytest.mark.slow
        ),
    ],
)
def test_a_predict_that_needs_a_new_worker_is_stopped_too_and_the_next_one_finds_it(
    odd: Callable[..., str], tmp_path: Path, stop: Any, error: type[Exception], says: str
) -> None:
    log = tmp_path / "log"
    name = odd(load=SLOW_AGAIN.format(log=str(log)).strip())
    with isolated(models.affine(tmp_path), name) as model:
        model(X)
        kill_worker_of(model)
        with pytest.raises(error, match=says):
            model.predict([X], **stop())
        log.with_suffix(".go").touch()
        np.testing.assert_array_equal(model(X)["y"], 2 * X + 1)
        assert log.read_text().split() == ["loads"] * 2
        time.sleep(0.1)  # the timer's thread


@pytest.mark.slow
def test_a_model_is_closed_while_its_next_worker_starts(odd, tmp_path) -> None:
    load = SLOW_AGAIN.format(log=str(tmp_path / "log")).strip()
    name = odd(load=load, without="'cancel_compile'")
    with isolated(models.affine(tmp_path), name) as model:
        kill_worker_of(model)
        with pytest.raises(DeadlineExceeded):
            model.predict([X], timeout_s=0.3)
        begin = time.monotonic()
    assert time.monotonic() - begin < 200


def test_a_cancel_that_fails_in_the_backend_does_not_stop_the_worker(odd, tmp_path) -> None:
    broken = (
        "from engine.reference.evaluator import EvaluatorContext\n"
        "def broken(self): raise RuntimeError('broken')\n"
        "EvaluatorContext.cancel = broken"
    )
    name = odd(in_worker=broken)
    slow = {"odd_context": {"delay_s": "0.5"}}
    with isolated(models.affine(tmp_path), name, **slow) as model, ThreadPoolExecutor(1) as pool:
        first = worker_of(model)
        with suppress(Cancelled):  # it runs to its end
            model.predict([X], cancel=cancelled_soon())
        assert worker_of(model) == first
        result = pool.submit(lambda: model(X)["y"])
        try:
            np.testing.assert_array_equal(result.result(timeout=60), 2 * X + 1)
        finally:
            if not result.done():
                os.kill(first, signal.SIGKILL)


def test_a_build_is_cancelled_and_its_progress_arrives(odd, tmp_path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    thinking = "options.progress('thinking', 1, 2); time.sleep(600)"
    name = odd(compile=thinking, without="'cancel_compile'")
    token = CancelToken()

    def show(*step: Any) -> None:
        seen.append(step)
        token.cancel()

    path = models.affine(tmp_path)
    with pytest.raises(Cancelled):
        engine.load(path, target=name, config=ISOLATE, progress=show, cancel=token)
    assert seen == [("thinking", 1, 2)]


INTERRUPTED = """
import signal, sys, threading
import numpy as np, numpy.testing
import engine
from engine.model.model import model_state

path, target, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
config = {"common_context": {"isolate": "true"}}
x = np.arange(6, dtype=np.float32).reshape(2, 3)
errors, is_over = [], threading.Event()

def predict_on():
    number = 0
    while not is_over.is_set() and not errors:
        number = (number + 1) % 1000
        try:
            np.testing.assert_array_equal(model(x + number)["y"], 2 * (x + number) + 1)
        except Exception as error:
            errors.append(error)

signal.signal(signal.SIGALRM, signal.default_int_handler)
with engine.load(path, target=target, config=config) as model:
    worker = lambda: model_state(model).plan.executable.process().worker.pid
    first = worker()
    other = threading.Thread(target=predict_on)
    other.start()
    interrupts = 0
    while interrupts < count and not errors:
        try:
            # Again after a while: what is raised in a `__del__` is lost.
            signal.setitimer(signal.ITIMER_REAL, 2e-4 * (1 + interrupts % 20), 0.005)
            while True:
                model(x)
        except KeyboardInterrupt:
            interrupts += 1
        finally:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                pass
    is_over.set()
    other.join()
    print(errors, worker() == first, (model(x)["y"] == 2 * x + 1).all())
"""


@pytest.mark.parametrize(
    "count", [100, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_interrupts_of_one_threads_predicts_leave_the_worker_to_the_others(
    count: int, null_backend: str, tmp_path: Path
) -> None:
    path = models.affine(tmp_path)
    done = subprocess.run(
        command("-c", INTERRUPTED, str(path), null_backend, str(count)),
        capture_output=True, text=True, timeout=500, env=environment(), check=False,
    )  # fmt: skip
    assert done.stdout == "[] True True\n", done.stderr[-2000:]
