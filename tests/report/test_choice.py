"""Target auto: what is tried, and when it is chosen.

Speeds are given, never taken: `contest` replaces the function that compares two predicts.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from choices import CONFIG, WRONG, Install, Speeds, X, build, evidence_of, trials_of, where

import engine
from engine import Context, Model, ModelParallelRunner, ModelType
from engine.errors import Cancelled, SettingError
from engine.report.choice import running
from engine.report.choice.evidence import Setup
from engine.types import CancelToken
from engine.weights.store import Store
from engine_testing import models

FAILING = """
@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    raise RuntimeError("out of order")
"""
REFUSING = """
@hookimpl
def engine_compile(loaded, options):
    raise RuntimeError("cannot compile")
"""


def test_the_faster_backend_is_chosen_and_placement_says_why(
    speeds: Speeds, path: Path, tmp_path: Path
) -> None:
    speeds.of["other"] = [0.5, 0.6]
    model = build(path)
    assert where(model) == "other"
    reason = "target ['auto']: other,base takes 0.60 of the time of base"
    assert model.placement[0].reason.endswith(reason), "the larger of the two figures"
    np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)
    assert speeds.compared == ["other", "other"]
    found = evidence_of(tmp_path)
    assert (found.chosen, found.default) == (Setup(("other", "base")), Setup(("base",)))
    assert found.inputs == {"x": [1, 3]}
    assert trials_of(tmp_path)["other,base"].ratio == 0.6


@pytest.mark.parametrize("ratio", [0.97, 1.0, 2.0])
def test_the_default_stays_where_nothing_is_clearly_faster(
    speeds: Speeds, path: Path, ratio: float
) -> None:
    speeds.of["other"] = [ratio]
    model = build(path)
    assert where(model) == "base"
    assert "nothing that was tried is clearly faster than base" in model.placement[0].reason


def test_the_default_stays_where_a_second_comparison_says_otherwise(
    speeds: Speeds, path: Path, tmp_path: Path
) -> None:
    speeds.of["other"] = [0.5, 1.01]
    assert where(build(path)) == "base"
    assert trials_of(tmp_path)["other,base"].why_not.startswith("compared again, it took 1.010")
    assert evidence_of(tmp_path).valid_s < math.inf, "one of the two met a busy machine"


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        (WRONG, "its results differ from the default's: y: differs: "),
        (FAILING, "out of order"),
        (REFUSING, "cannot compile"),
    ],
)
def test_a_backend_that_fails_or_disagrees_is_not_chosen_and_the_evidence_says_why(
    speeds: Speeds, install: Install, path: Path, tmp_path: Path, extra: str, why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    install("faulty", extra=extra)
    speeds.of["faulty"] = [0.1]
    speeds.of["other"] = [0.5]
    assert where(build(path)) == "other"
    assert why in trials_of(tmp_path)["faulty,base"].why_not
    assert "faulty" not in speeds.compared


def test_a_backend_without_a_device_is_evidence(
    speeds: Speeds, install: Install, path: Path, tmp_path: Path
) -> None:
    install("absent", extra=(
        "\nfrom engine.types import Devices\n@hookimpl\ndef engine_devices():\n"
        "    return Devices(reason='no card', fix='buy one')\n"
    ))  # fmt: skip
    assert where(build(path)) == "base"
    assert "no card" in trials_of(tmp_path)["absent,base"].why_not


def test_a_backend_that_completes_another_is_not_tried_alone(
    speeds: Speeds, install: Install, path: Path, tmp_path: Path
) -> None:
    install("helper")
    install("helped", completed_by=("helper",))
    build(path)
    assert set(trials_of(tmp_path)) == {"base", "other,base", "helped,base"}


def test_the_default_runs_the_nodes_that_the_chosen_backend_cannot(
    speeds: Speeds, path: Path
) -> None:
    speeds.of["other"] = [0.5]
    model = build(path, config={**CONFIG, "other_context": {"unsupported_ops": "Add"}})
    assert [placed.backend for placed in model.placement] == ["other", "base"]
    np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)


def test_a_default_that_cannot_build_the_model_is_followed_by_the_others(
    speeds: Speeds, path: Path, tmp_path: Path
) -> None:
    model = build(path, config={**CONFIG, "base_context": {"unsupported_ops": "Add,Mul"}})
    assert where(model) == "other"
    assert "base cannot be built" in model.placement[0].reason


def test_a_model_that_does_not_run_on_generated_inputs_stays_on_the_default(
    speeds: Speeds, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise engine.InputError("x is none of the words")

    monkeypatch.setattr(running, "run_filled", fail)
    assert where(build(path)) == "base"
    assert "x is none of the words" in trials_of(tmp_path)["base"].why_not
    assert speeds.compared == []


TUNABLE = """
_engine_backend = engine_backend
from engine.types import Option
@hookimpl
def engine_backend():
    choices = Option(text="", choices=("off", "exact"), default="off")
    return replace(_engine_backend(), options={"rewrites": choices})
@hookimpl
def engine_load(source, options):
    from engine.reference.evaluator import load
    return load(source, host("tunable", DEVICE, {}))
"""
REWRITING = """
@hookimpl
def engine_compile(loaded, options):
    executable = loaded.compile(options)
    really, said = executable.placement, options.options.get("rewrites", "off")
    executable.placement = lambda: [replace(each, reason=said) for each in really()]
    return executable
"""


def test_settings_that_a_backend_declares_are_tried_unless_the_user_has_set_them(
    speeds: Speeds, install: Install, path: Path, tmp_path: Path
) -> None:
    install("tunable", extra=TUNABLE + REWRITING)
    speeds.of["tunable"] = [0.9, 0.5, 0.5]
    model = build(path)
    assert "tunable,base rewrites=exact takes 0.50 of" in model.placement[0].reason
    Store(tmp_path / "cache").remove(Store(tmp_path / "cache").entries()[0].folder.name)
    build(path, config={**CONFIG, "tunable_context": {"rewrites": "off"}})
    assert set(trials_of(tmp_path)) == {"base", "other,base", "tunable,base"}


def test_a_setting_that_leaves_the_graph_as_it_is_is_not_compared(
    speeds: Speeds, install: Install, path: Path, tmp_path: Path
) -> None:
    install("tunable", extra=TUNABLE)
    speeds.of["tunable"] = [0.9, 0.9, 0.1]
    assert "tunable,base takes 0.90 of" in build(path).placement[0].reason
    trial = trials_of(tmp_path)["tunable,base rewrites=exact"]
    assert trial.why_not == "it changes nothing of this model"


def test_one_thread_is_tried_unless_the_user_says_how_many(
    speeds: Speeds, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.plan.options.threads_per_worker", lambda: 4)
    build(path, threads=0)
    assert "base threads=1" in trials_of(tmp_path)
    Store(tmp_path / "cache").remove(Store(tmp_path / "cache").entries()[0].folder.name)
    build(path, threads=4)
    assert "base threads=1" not in trials_of(tmp_path)


# ------------------------------------------------------------------------------- interruption


def test_a_build_that_is_cancelled_while_it_measures_keeps_nothing(
    speeds: Speeds, path: Path, tmp_path: Path
) -> None:
    token = CancelToken()

    def progress(phase: str, done: int, total: int | None) -> None:
        if phase.startswith("try other"):
            token.cancel()

    with pytest.raises(Cancelled):
        build(path, progress=progress, cancel=token)
    assert speeds.compared == []
    assert Store(tmp_path / "cache").entries() == []
    assert where(build(path)) == "base"


def test_an_exception_of_the_progress_callback_is_raised_as_it_is(
    speeds: Speeds, path: Path
) -> None:
    def progress(phase: str, done: int, total: int | None) -> None:
        if phase.startswith("try other"):
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        build(path, progress=progress)


NOISY = """
@hookimpl
def engine_compile(loaded, options):
    options.progress("compile noisy", 0, None)
    return loaded.compile(options)
"""


def test_an_exception_of_the_callback_in_a_compile_is_not_laid_on_the_backend(
    speeds: Speeds, install: Install, path: Path
) -> None:
    install("noisy", extra=NOISY)

    def progress(phase: str, done: int, total: int | None) -> None:
        if phase == "compile noisy":
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        build(path, progress=progress)


def test_an_interrupt_ends_the_contest_and_closes_what_it_has_built(
    speeds: Speeds, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[object] = []
    really = running.Running.close

    def close(setup: Any) -> None:
        closed.append(setup)
        really(setup)

    monkeypatch.setattr(running.Running, "close", close)
    speeds.raises = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        build(path)
    assert len(closed) == 2
    speeds.raises = None
    assert where(build(path)) == "base"


# ------------------------------------------------------------------------------ the way to it


def test_a_budget_of_zero_measures_nothing(speeds: Speeds, path: Path) -> None:
    model = build(path, config={"common_context": {"auto_budget_s": "0"}})
    assert where(model) == "base"
    assert model.placement[0].reason.endswith("[common_context] auto_budget_s is 0")
    assert speeds.compared == []


def test_what_there_was_no_time_for_is_evidence(
    speeds: Speeds, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(path, config={"common_context": {"auto_budget_s": "1e-9"}})
    assert trials_of(tmp_path)["other,base"].why_not == "no time was left to try it"
    assert speeds.compared == []


@pytest.mark.parametrize(
    ("key", "text", "wanted"),
    [
        *(("auto_budget_s", text, r"auto_budget_s must be a number of seconds, 0 for no measuring")
          for text in ("soon", "-1", "nan", "inf")),
        *(("max_error", text, r"max_error must be a number from 0 to 1, as 0.01, but got '")
          for text in ("1%", "-1e-9", "1.5", "nan")),
        *(("auto_background", text, r"auto_background: expected on or off, but got '")
          for text in ("later", "2")),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_and_says_what_is_wanted(
    speeds: Speeds, path: Path, key: str, text: str, wanted: str
) -> None:
    with pytest.raises(SettingError, match=wanted):
        build(path, config={"common_context": {key: text}})


def test_auto_stands_alone() -> None:
    context = Context()
    context.target = ["Auto"]
    assert context.target == ["Auto"]
    with pytest.raises(ValueError, match="target 'auto' stands alone, but got"):
        context.target = ["auto", "cpu"]


@pytest.mark.parametrize("several", ["auto,cpu", "cpu, AUTO"])
def test_auto_stands_alone_in_the_environment_too(
    several: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_TARGET", several)
    with pytest.raises(engine.errors.BackendError, match="ENGINE_TARGET: 'auto' stands alone"):
        engine.load(models.affine(tmp_path))


def test_the_users_context_stays_as_it_is(speeds: Speeds, path: Path) -> None:
    speeds.of["other"] = [0.5]
    context = Context()
    context.target = ["auto"]
    context.cpu.thread_num = 1
    with Model() as model:
        model.build_from_file(str(path), ModelType.MINDIR, context, config_dict=CONFIG)
        assert where(model) == "other"
    assert context.target == ["auto"]


def test_a_resized_model_stays_on_the_backend_that_was_chosen(
    speeds: Speeds, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds.of["other"] = [0.5]
    monkeypatch.setenv("ENGINE_TARGET", "auto")
    with engine.load(path, threads=1, config=CONFIG) as model:
        before = len(speeds.compared)
        model.resize(model.get_inputs(), [[4, 3]])
        assert where(model) == "other"
        assert "takes 0.50 of the time" in model.placement[0].reason
    assert len(speeds.compared) == before


def test_variable_weights_are_measured_as_they_are_built(speeds: Speeds, path: Path) -> None:
    speeds.of["other"] = [0.5]
    swap = {"common_context": {"variable_weights_mode": "swap", "auto_budget_s": 1000}}
    with build(path, config=swap, variable_weights=["two"]) as model:
        assert where(model) == "other"
        model.update_weights({"two": np.full(1, 5, np.float32)})
        np.testing.assert_array_equal(model(x=X)["y"], 5 * X + 1)


def test_a_runner_builds_what_was_chosen(speeds: Speeds, path: Path) -> None:
    speeds.of["other"] = [0.5]
    context = Context()
    context.target = ["auto"]
    context.parallel.workers_num = 2
    context.parallel.config_info = {"common_context": {"auto_budget_s": "1000"}}
    runner = ModelParallelRunner()
    runner.build_from_file(str(path), context)
    try:
        [y] = runner.predict([engine.Tensor(X)])
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)
        assert importlib.import_module("plan_other").calls
    finally:
        runner.close()
    assert speeds.compared == ["other", "other"]
