"""`[common_context] isolate`: models in processes of their own give the same, and take no harm."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isolating import (
    ABORT,
    FPE,
    ISOLATE,
    LOUD,
    RAISE,
    SEGFAULT,
    UNSENDABLE,
    X,
    isolated,
    kill_worker_of,
    process_of,
    worker_of,
)
from waiting import wait_until

import engine
from engine import Model, Tensor
from engine.errors import InputError, ModelError
from engine.model.model import model_state
from engine_testing import models

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_it_runs_in_another_process_with_the_same_specs_and_placement(
    null_backend: str, tmp_path: Path
) -> None:
    path = models.affine(tmp_path)
    with engine.load(path, target=null_backend) as here, isolated(path, null_backend) as there:
        assert there.inputs == here.inputs
        assert there.outputs == here.outputs
        assert there.placement == here.placement
        assert Path(f"/proc/{worker_of(there)}").exists()
        for rows in (2, 1, 5000, 2):  # the last as the first: memory has grown in between
            x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
            np.testing.assert_array_equal(there(x)["y"], 2 * x + 1)
        first, second = there(X)["y"], there(2 * X)["y"]
        np.testing.assert_array_equal(first, 2 * X + 1)  # memory of its own
        np.testing.assert_array_equal(second, 4 * X + 1)
        assert first.flags.writeable


def values(model: Any, *given: Any) -> list[Any]:
    return list(model(*given).values())


def test_results_that_change_their_shape_with_the_data_stay_right(null_backend, tmp_path) -> None:
    """Those that come alike are written in place from then on, until they do not."""
    with isolated(models.nonzero(tmp_path), null_backend) as model:
        for given in ([1, 0, 2], [3, 4, 0], [5, 0, 6], [7, 7, 7], [0, 0, 0], [0, 1, 0], [1, 1, 0]):
            [found] = values(model, np.array(given, np.float32))
            assert found.tolist() == np.nonzero(given)[0][None].tolist()
        wrong = Tensor(np.zeros((1, 9), np.int64))
        with pytest.raises(InputError, match=r"'y': .*int64\[1, 1\].*int64\[1, 9\]"):
            model.predict([np.ones(1, np.float32)], [wrong])


def test_given_outputs_are_filled_in_place(shared: Model) -> None:
    memory = np.zeros((2, 3), np.float32)
    output = Tensor(memory)
    assert shared.predict([X], [output]) == [output]
    np.testing.assert_array_equal(memory, 2 * X + 1)


@pytest.mark.slow
def test_a_model_in_memory_is_run_too(null_context: engine.Context, tmp_path: Path) -> None:
    model = Model()
    content = models.heavy(tmp_path).read_bytes()
    model.build_from_buffer(content, context=null_context, config_dict=ISOLATE)
    with model:
        x = np.random.default_rng(0).random((3, 1024), np.float32)
        for _ in range(2):
            np.testing.assert_array_equal(model(x)["y"], x)
            kill_worker_of(model)


@pytest.mark.slow
def test_threads_predict_at_once(null_backend: str, tmp_path: Path) -> None:
    slow = {"null_context": {"delay_s": "2"}}
    with (
        isolated(models.affine(tmp_path), null_backend, **slow) as model,
        ThreadPoolExecutor(8) as pool,
    ):
        model(X)
        begin = time.monotonic()
        for number, result in enumerate(pool.map(lambda n: model(X + n)["y"], range(8))):
            np.testing.assert_array_equal(result, 2 * (X + number) + 1)
        assert time.monotonic() - begin < 12  # 16 one after the other


@pytest.mark.parametrize(
    ("first", "name"),
    [(SEGFAULT, "SIGSEGV"), (FPE, "SIGFPE"), (ABORT, r"SIGABRT \(a check failed\)")],
)
def test_a_crash_in_predict_is_an_error_and_the_next_predict_runs(shared, first, name) -> None:
    says = (
        rf"predict failed! {shared.model_path_}: backend 'shared', isolated in a process of its "
        rf"own, crashed with {name} while it ran the model$"
    )
    before = worker_of(shared)
    with pytest.raises(ModelError, match=says) as error:
        shared(np.full_like(X, first))
    assert error.value.path == shared.model_path_
    assert error.value.at_fault == "shared"
    np.testing.assert_array_equal(shared(X)["y"], 2 * X + 1)
    assert worker_of(shared) != before


def test_a_worker_that_was_killed_before_a_predict_is_followed_by_another(shared: Model) -> None:
    kill_worker_of(shared)
    np.testing.assert_array_equal(shared(X)["y"], 2 * X + 1)


@pytest.mark.parametrize(
    ("first", "says"), [(RAISE, "Own: deep inside"), (UNSENDABLE, "ValueError: .*lambda")]
)
def test_what_a_hook_raises_arrives(shared: Model, first: float, says: str) -> None:
    before = worker_of(shared)
    with pytest.raises(ModelError, match=rf"backend 'shared' raised .*{says}"):
        shared(np.full_like(X, first))
    np.testing.assert_array_equal(shared(X)["y"], 2 * X + 1)
    assert worker_of(shared) == before


def test_what_a_worker_writes_to_its_stderr_does_not_grow_for_ever(shared: Model) -> None:
    for _ in range(6):
        shared(np.full_like(X, LOUD))
    worker = process_of(shared).worker
    assert len(worker.errors()) <= 1 << 20
    assert os.fstat(worker._errors.fileno()).st_size <= 2 << 20


def test_an_end_is_told_also_when_the_next_worker_runs_already(shared: Model) -> None:
    """One thread may have started it while another still has to say how the last one ended."""
    ended = kill_worker_of(shared)
    np.testing.assert_array_equal(shared(X)["y"], 2 * X + 1)
    assert process_of(shared) is not ended
    ended.cancel(1)
    said = str(ended.failed("while it ran the model"))
    assert "was killed with SIGKILL" in said
    assert said.endswith("while it ran the model")


def test_contexts_that_are_closed_leave_nothing_in_the_worker(shared: Model) -> None:
    shared(X)
    descriptors = Path(f"/proc/{worker_of(shared)}/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(10):
        context = model_state(shared).plan.executable.open_context()
        [y] = context.run([X], None, None)
        np.testing.assert_array_equal(y, 2 * X + 1)
        context.close()
    wait_until(lambda: len(list(descriptors.iterdir())) <= before)


def test_the_setting_is_true_or_false(null_backend: str, tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    config = {"common_context": {"isolate": "perhaps"}}
    with pytest.raises(ValueError, match=r"\[common_context\] isolate: .*true or false.*'perhaps'"):
        engine.load(path, target=null_backend, config=config)
    config = {"common_context": {"isolate": "False"}}
    with engine.load(path, target=null_backend, config=config) as model:
        assert not hasattr(model_state(model).plan.executable, "process")


def test_a_worker_does_not_get_the_key(odd, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ENGINE_DEC_KEY", "00112233445566778899aabbccddeeff")
    name = odd(load="assert 'ENGINE_DEC_KEY' not in os.environ")
    with isolated(models.affine(tmp_path), name) as model:
        model(X)
