"""Target auto in the background: a build returns at once, its model moves when it is measured."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from choices import Install, X, trials_of, where
from choices_apart import (
    COMPILE,
    PREDICT,
    build,
    elsewhere,
    gated,
    processes,
    wait_for,
    why,
)

import engine
from engine import Model
from engine.report.choice import behind
from engine.types import CancelToken
from engine.weights.store import Store

BEHIND = {"auto_background": "on"}
SCRIPT = """
import sys, engine
config = {"common_context": {"auto_budget_s": "60", "auto_background": "on"}}
model = engine.load(sys.argv[1], target="auto", threads=1, config=config)
print(model.placement[0].reason)
"""


def test_a_build_returns_on_the_default_and_the_model_moves_when_it_is_measured(
    alone: Install, path: Path, closed: Path
) -> None:
    alone("other", extra=gated(closed))
    with build(path, common=BEHIND) as model:
        assert where(model) == "base"
        assert why(model).endswith("others are still to be measured, in the background")
        before = model(x=X)["y"]
        results: list[Any] = []
        is_over = threading.Event()

        def serve() -> None:
            while not is_over.is_set():
                results.append(model(x=X)["y"])

        serving = threading.Thread(target=serve)
        serving.start()
        closed.unlink()
        assert behind.wait(60)
        served = len(results)
        wait_for(lambda: len(results) > served + 1)
        is_over.set()
        serving.join()
        assert where(model) == "other"
        assert "other,base takes 0." in why(model)
        assert "other,base takes 0." in str(model.summary())
        for result in (*results, model(x=X)["y"]):
            np.testing.assert_array_equal(result, before)
    with build(path, common=BEHIND) as later:
        assert where(later) == "other", "by the evidence, from the start"


def test_a_model_for_which_nothing_is_faster_says_so_and_stays_as_it_is(
    alone: Install, path: Path
) -> None:
    alone("crashing", extra=elsewhere(PREDICT, "os.abort()"))
    with build(path, common=BEHIND) as model:
        assert behind.wait(60)
        assert where(model) == "base"
        assert why(model).endswith("nothing that was tried is clearly faster than base")
        np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)


def test_a_closed_model_is_measured_no_further(
    alone: Install, path: Path, closed: Path, tmp_path: Path
) -> None:
    alone("other", extra=gated(closed))
    model = build(path, common=BEHIND)
    wait_for(processes)
    model.close()
    assert behind.wait(60)
    assert processes() == []
    assert Store(tmp_path / "cache").entries() == []


def test_resized_and_updated_models_move_as_they_are_then(
    alone: Install, path: Path, closed: Path
) -> None:
    alone("other", extra=gated(closed))
    swap = {**BEHIND, "variable_weights_mode": "swap"}
    with build(path, common=swap, variable_weights=["two"]) as model:
        model.update_weights({"two": np.full(1, 5, np.float32)})
        model.resize(model.get_inputs(), [[4, 3]])
        closed.unlink()
        assert behind.wait(60)
        assert where(model) == "other"
        assert model.get_inputs()[0].shape == [4, 3]
        more = np.ones((4, 3), np.float32)
        np.testing.assert_array_equal(model(x=more)["y"], 5 * more + 1)


def test_a_model_that_cannot_be_built_where_it_is_faster_stays_and_says_why(
    alone: Install, path: Path
) -> None:
    alone("other", extra=elsewhere((COMPILE[0], "1 / 0"), f"return {COMPILE[1]}"))
    with build(path, common=BEHIND) as model:
        assert behind.wait(60)
        assert where(model) == "base"
        assert "'other' passed over: backend 'other' is at fault" in why(model)
        np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)


UNSTOPPABLE: dict[str, Any] = {"capabilities": frozenset({"dynamic_shapes", "mixed_placement"})}


def test_a_model_whose_predicts_are_stopped_moves_to_no_backend_that_cannot(
    alone: Install, path: Path
) -> None:
    alone("other", **UNSTOPPABLE)
    with build(path, common=BEHIND) as model:
        stopping: list[dict[str, Any]] = [{"timeout_s": 60}, {"cancel": CancelToken()}]
        for how in stopping:
            np.testing.assert_array_equal(predicted(model, **how), 2 * X + 1)
        assert behind.wait(60)
        assert where(model) == "base"
        assert "but it cannot be built so: backend 'other' cannot stop a running" in why(model)
        for how in stopping:
            np.testing.assert_array_equal(predicted(model, **how), 2 * X + 1)


def test_a_model_with_a_queue_of_requests_moves_to_no_backend_that_cannot_stop_them(
    alone: Install, path: Path
) -> None:
    alone("other", **UNSTOPPABLE)
    with build(path, common=BEHIND) as model:
        asyncio.run(model.predict_async({"x": X}))
        assert behind.wait(60)
        assert where(model) == "base"
        [y] = asyncio.run(model.predict_async({"x": X}, timeout_s=60))
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)


def test_a_model_whose_predicts_nobody_stops_moves_anywhere(alone: Install, path: Path) -> None:
    alone("other", **UNSTOPPABLE)
    with build(path, common=BEHIND) as model:
        np.testing.assert_array_equal(predicted(model), 2 * X + 1)
        assert behind.wait(60)
        assert where(model) == "other"
        np.testing.assert_array_equal(predicted(model), 2 * X + 1)


def predicted(model: Model, **how: Any) -> Any:
    [y] = model.predict({"x": X}, **how)
    return y.get_data_to_numpy()


FULL = "[].append(bytearray(1 << 62))"  # no machine has so much memory


def test_a_model_for_which_there_is_no_memory_where_it_is_faster_stays_as_it_was(
    alone: Install, path: Path
) -> None:
    alone("other", extra=elsewhere((COMPILE[0], FULL), f"return {COMPILE[1]}"))
    rebuilt = {**BEHIND, "variable_weights_mode": "rebuild"}
    with build(path, common=rebuilt, variable_weights=["two"]) as model:
        assert behind.wait(60)
        assert "others than the default could not be measured" in why(model)
        model.update_weights({"two": np.full(1, 5, np.float32)})
        assert where(model) == "base"
        np.testing.assert_array_equal(model(x=X)["y"], 5 * X + 1)


def test_a_process_that_ends_while_it_measures_ends_at_once_and_leaves_no_other(
    alone: Install, path: Path, closed: Path
) -> None:
    alone("other", extra=gated(closed))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().endswith("in the background")


def test_a_forked_child_measures_nothing_and_its_parent_goes_on(
    alone: Install, path: Path, closed: Path
) -> None:
    alone("other", extra=gated(closed))
    with build(path, common=BEHIND) as model:
        wait_for(processes)
        child = os.fork()
        if not child:
            os._exit(0 if behind.wait(0) and model_is_forgotten(model) else 1)
        assert os.waitpid(child, 0)[1] == 0
        closed.unlink()
        assert behind.wait(60)
        assert where(model) == "other"


def model_is_forgotten(model: Model) -> bool:
    try:
        model(x=X)
    except engine.errors.EngineError:
        return True
    return False


def test_a_runner_measures_before_it_tries_what_its_requests_may_share(
    alone: Install, path: Path
) -> None:
    alone("other")
    context = engine.Context()
    context.target = ["auto"]
    context.parallel.workers_num = 2
    context.parallel.config_info = {"common_context": {"auto_budget_s": "60", **BEHIND}}
    runner = engine.ModelParallelRunner()
    runner.build_from_file(str(path), context)
    try:
        assert behind.wait(0)
        [y] = runner.predict([engine.Tensor(X)])
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)
    finally:
        runner.close()


@pytest.mark.slow
def test_a_runner_is_measured_anew_with_another_number_of_threads(
    alone: Install, path: Path, tmp_path: Path
) -> None:
    alone("other")
    for number, threads in enumerate((1, 2, 1), 1):
        context = engine.Context()
        context.target, context.cpu.thread_num = ["auto"], threads
        context.parallel.workers_num = 2
        context.parallel.config_info = {"common_context": {"auto_budget_s": "60"}}
        runner = engine.ModelParallelRunner()
        runner.build_from_file(str(path), context)
        try:
            [y] = runner.predict([engine.Tensor(X)])
            np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)
        finally:
            runner.close()
        assert len(Store(tmp_path / "cache").entries()) == min(number, 2)


def test_an_isolated_model_is_measured_isolated(alone: Install, path: Path, tmp_path: Path) -> None:
    alone("other")
    with build(path, common={"isolate": "true"}) as model:
        assert where(model) == "other"
        np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)
    assert trials_of(tmp_path)["other,base"].ratio is not None


def test_workers_of_a_runner_over_devices_measure_once_and_agree(
    alone: Install, path: Path, tmp_path: Path
) -> None:
    alone("other")
    context = engine.Context()
    context.target = ["auto"]
    context.parallel.config_info = {"common_context": {"auto_budget_s": "60", **BEHIND}}
    with engine.MultiDeviceRunner(path, [0, 1], context) as runner:
        [y] = runner.predict([X])
        np.testing.assert_array_equal(np.asarray(y), 2 * X + 1)
    evidence = {entry.identity.name for entry in Store(tmp_path / "cache").entries()}
    assert len(evidence) == 1


def test_models_of_a_group_are_measured_before_they_serve(
    alone: Install, path: Path, tmp_path: Path
) -> None:
    alone("other")
    group = engine.ModelGroup(engine.ModelGroupFlag.SHARE_WEIGHT)
    group.add_model([str(path)])
    with build(path, common=BEHIND) as model:
        assert where(model) == "other"
        np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)


def test_a_child_forked_while_its_parent_measures_is_free_of_that(
    alone: Install, path: Path, closed: Path
) -> None:
    alone("other", extra=gated(closed))
    status: list[int] = []

    def progress(phase: str, done: int, total: int | None) -> None:
        if phase.startswith("try other"):
            child = os.fork()
            if not child:
                os._exit(0 if behind.wait(0) else 1)
            status.append(os.waitpid(child, 0)[1])
            closed.unlink()

    with build(path, progress=progress) as model:
        assert status == [0]
        assert where(model) == "other"
