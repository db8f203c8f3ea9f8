"""A model and threads, forks and signals: who gets what of it, and when it is freed."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import in_threads, wait_until

import engine
from engine import Context, Model, ModelType
from engine.model.model import model_state
from engine.reference.evaluator import EvaluatorContext, EvaluatorExecutable
from engine_testing import models

pytestmark = pytest.mark.usefixtures("null_backend")

X = np.arange(6, dtype=np.float32).reshape(2, 3)


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
    pool = model_state(affine).plan.pool
    for _ in range(20):
        in_threads(1, lambda index: affine.predict([X]) and None)
    gc.collect()
    assert pool.open_count <= 1


def test_closing_waits_for_nobody_and_frees_after_the_last_predict(fake, fake_affine) -> None:
    fake.delay_s = 300.0
    executable = weakref.ref(model_state(fake_affine).plan.executable)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(fake_affine.predict, [X])
        wait_until(lambda: fake.running)
        fake_affine.close()
        assert fake.running
        with pytest.raises(engine.ModelStateError, match="closed"):
            fake_affine.predict([X])
        fake.delay_s = 0.0
        np.testing.assert_array_equal(asked.result(60)[0], 2 * X + 1)
    gc.collect()
    assert [context.closed for context in fake.contexts] == [1]
    fake.contexts.clear()
    fake.given.clear()
    assert executable() is None


def test_a_resize_reaches_every_thread_at_its_next_call(affine: Model) -> None:
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(affine.predict, [X]).result()
        affine.resize(affine.get_inputs(), [[5, 3]])
        with pytest.raises(engine.InputError, match=r"expected float32\[5, 3\]"):
            thread.submit(affine.predict, [X]).result()


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
    executable = weakref.ref(model_state(affine).plan.executable)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(affine.predict, [X])
        assert opening.wait(60)
        affine.close()
        closed.set()
        np.testing.assert_array_equal(asked.result(60)[0], 2 * X + 1)
    gc.collect()
    assert executable() is None


def test_a_close_beside_first_calls_leaves_them_a_result_or_a_state_error(tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    executables: list[weakref.ref[Any]] = []
    barrier = threading.Barrier(3)

    def predict(model: Model) -> str:
        barrier.wait()
        try:
            np.testing.assert_array_equal(model.predict([X])[0], 2 * X + 1)
        except engine.ModelStateError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as threads:
        for _ in range(30):
            model = engine.load(path, target="null")
            executables.append(weakref.ref(model_state(model).plan.executable))
            calls = [threads.submit(predict, model) for _ in range(2)]
            barrier.wait()
            model.close()
            said = {call.result(60) for call in calls}
            assert said <= {"", "predict failed! the model is closed; build a new one"}
    del model, calls
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
    fifty = np.full((2, 3), 50, np.float32)
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(affine(fifty)["y"][0, 0]))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        while len(seen) < 50:
            np.testing.assert_array_equal(affine.predict([X])[0], 2 * X + 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert set(seen) == {101.0}
