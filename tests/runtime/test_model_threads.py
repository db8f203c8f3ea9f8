"""A model and threads, forks and signals: who gets what of it, and when it is freed."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import engine
from engine import Context, Model, ModelType, Tensor
from engine.model.model import model_state
from engine.reference.evaluator import EvaluatorContext, EvaluatorExecutable
from engine_testing import models

pytestmark = pytest.mark.usefixtures("null_backend")

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_threads_share_a_model_and_get_their_own_tensors_and_results(affine: Model) -> None:
    seen: list[int] = []
    all_seen = threading.Barrier(4)  # so that no two tensors follow each other in the same memory

    def work(index: int) -> None:
        [tensor] = affine.get_inputs()
        seen.append(id(tensor))
        for step in range(20):
            x = np.full((1 + index, 3), index * 100 + step, np.float32)
            tensor.set_data_from_numpy(x)
            np.testing.assert_array_equal(affine.predict([tensor])[0], 2 * x + 1)
        all_seen.wait(60)

    in_threads(4, work)
    assert len(set(seen)) == 4


def test_contexts_are_reused_by_the_next_threads(affine: Model) -> None:
    pool = model_state(affine).plan.pool  # type: ignore[union-attr]
    for _ in range(20):
        in_threads(1, lambda index: affine.predict([X]) and None)
    gc.collect()
    assert pool.open_count <= 1


def test_closing_waits_for_nobody_and_frees_after_the_last_predict(
    fake: ModuleType, tmp_path: Path
) -> None:
    fake.delay_s = 300.0
    model = engine.load(models.affine(tmp_path), target="fake")
    executable = weakref.ref(model_state(model).plan.executable)  # type: ignore[union-attr]
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.extend(model.predict([X])))
    thread.start()
    end = time.monotonic() + 60
    while not fake.running:
        assert time.monotonic() < end
        time.sleep(0.001)
    model.close()
    assert fake.running
    with pytest.raises(engine.ModelStateError, match="closed"):
        model.predict([X])
    fake.delay_s = 0.0
    thread.join()
    np.testing.assert_array_equal(results[0], 2 * X + 1)
    gc.collect()
    assert [context.closed for context in fake.contexts] == [1]
    fake.contexts.clear()
    fake.given.clear()
    assert executable() is None


def test_a_resize_reaches_every_thread_at_its_next_call(affine: Model) -> None:
    resized, checked = threading.Event(), threading.Event()

    def work() -> None:
        affine.predict([X])
        checked.set()
        resized.wait(60)
        with pytest.raises(engine.InputError, match=r"expected float32\[5, 3\]"):
            affine.predict([X])
        done.append(True)

    done: list[bool] = []
    thread = threading.Thread(target=work)
    thread.start()
    checked.wait(60)
    affine.resize(affine.get_inputs(), [[5, 3]])
    resized.set()
    thread.join()
    assert done


def test_a_close_takes_nothing_from_a_thread_that_is_opening_its_first_context(
    affine: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, closed = threading.Event(), threading.Event()
    open_context = EvaluatorExecutable.open_context

    def slowly(executable: EvaluatorExecutable) -> EvaluatorContext:
        opening.set()
        assert closed.wait(60)
        return open_context(executable)

    monkeypatch.setattr(EvaluatorExecutable, "open_context", slowly)
    executable = weakref.ref(model_state(affine).plan.executable)  # type: ignore[union-attr]
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.extend(affine.predict([X])))
    thread.start()
    assert opening.wait(60)
    affine.close()
    closed.set()
    thread.join()
    np.testing.assert_array_equal(results[0], 2 * X + 1)
    gc.collect()
    assert executable() is None


def test_a_close_beside_first_calls_leaves_them_a_result_or_a_state_error(tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    executables: list[weakref.ref[Any]] = []
    for _ in range(30):
        model = engine.load(path, target="null")
        executables.append(weakref.ref(model_state(model).plan.executable))  # type: ignore[union-attr]
        barrier = threading.Barrier(3)
        refused: list[str] = []

        def work(index: int) -> None:
            barrier.wait()  # noqa: B023  # it runs within this turn of the loop
            if index == 0:
                model.close()  # noqa: B023
                return
            try:
                [y] = model.predict([X])  # noqa: B023
            except engine.ModelStateError as error:
                refused.append(str(error))  # noqa: B023
            else:
                np.testing.assert_array_equal(y, 2 * X + 1)

        in_threads(3, work)
        assert {*refused} <= {"predict failed! the model is closed; build a new one"}
    gc.collect()
    assert not any(executable() for executable in executables)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_gets_a_clear_error_and_ends_well(affine: Model) -> None:
    affine.predict([X])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            affine.predict([X])
        except engine.ModelStateError as error:
            status = 0 if "forked" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert affine.predict([X])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_while_the_model_was_being_built_can_build_it(
    tmp_path: Path, null_context: Context
) -> None:
    path = str(models.affine(tmp_path))
    model = Model()
    status: list[int] = []

    def fork(phase: str, done: int, total: int | None) -> None:
        if status:
            return
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            built = threading.Thread(
                target=lambda: model.build_from_file(path, ModelType.MINDIR, null_context)
            )
            built.start()
            built.join()
            os._exit(0 if model.predict([X]) else 1)
        status.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    model.build_from_file(path, ModelType.MINDIR, null_context, progress=fork)
    assert status == [0]
    assert model.predict([X])


def test_a_signal_handler_may_predict_in_the_middle_of_a_predict(affine: Model) -> None:
    seen: list[float] = []

    def handler(number: int, frame: object) -> None:
        seen.append(
            float(affine.predict([np.full((2, 3), 50, np.float32)])[0].get_data_to_numpy()[0, 0])
        )

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            np.testing.assert_array_equal(affine.predict([X])[0], 2 * X + 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert set(seen) == {101.0}
