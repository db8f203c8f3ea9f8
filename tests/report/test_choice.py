"""Target auto: what is tried, when it is chosen, and what is kept of that.

Speeds are given, never taken: `contest` replaces the function that compares two predicts.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.numpy_helper import from_array

import engine
from engine import Context, Model, ModelParallelRunner, ModelType
from engine.backends import installed
from engine.errors import Cancelled, SettingError
from engine.formats import ModelFile
from engine.report.choice import choosing, contest, duel, keeping, limits, running
from engine.report.choice.errors import error_of
from engine.report.choice.evidence import Evidence, Setup, Trial, read
from engine.report.choice.exact import in_float64
from engine.types import CancelToken
from engine.weights.store import Store
from engine_testing import models

Install = Callable[..., ModuleType]
X = np.arange(6, dtype=np.float32).reshape(2, 3)
CONFIG: dict[str, dict[str, Any]] = {"common_context": {"auto_budget_s": "1000"}}

WRONG = """
@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    return [result + 1 for result in context.run(inputs, outputs, deadline_s)]
"""
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


class Speeds:
    """The ratios that comparisons give, by the backend or setting; and the setups compared.

    of: by backend, ratios one after the other, the last for all later ones. compared: by which the
    candidates were known.
    """

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = {}
        self.compared: list[str] = []
        self.raises: BaseException | None = None

    def duel(self, default: Any, candidate: Any, *_: Any, **__: Any) -> duel.Duel:
        setup = candidate.func.__self__
        name = next(iter(setup.nodes()))
        self.compared.append(name)
        if self.raises is not None:
            raise self.raises
        ratios = self.of.get(name, [1.0])
        ratio = ratios.pop(0) if len(ratios) > 1 else ratios[0]
        return duel.Duel(1.0, ratio, ratio, ratio, 7)


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch, install: Install, tmp_path: Path) -> Speeds:
    """Backends `base`, the default, and `other`, alone on this machine; a cache of their own."""
    made = Speeds()
    strange = set(installed())
    install("base")
    install("other")
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", ",".join(strange - {"base", "other"}))
    monkeypatch.setenv("ENGINE_CACHE", "on")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    # Speeds that are given have to be given in this process.
    monkeypatch.setattr(choosing, "can_start_processes", lambda: False)
    monkeypatch.setattr(duel, "duel", made.duel)
    monkeypatch.setattr(contest, "_SLOW", math.inf)
    monkeypatch.setattr(keeping, "_known", {})
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return models.affine(tmp_path)


def build(path: Path, **more: Any) -> Model:
    """Build with target auto and no memory of earlier builds but the cache."""
    keeping._known.clear()
    return engine.load(path, target="auto", **{"config": CONFIG, "threads": 1, **more})


def where(model: Model) -> str:
    return model.placement[0].backend


def evidence_of(tmp_path: Path) -> Evidence:
    [entry] = Store(tmp_path / "cache").entries()
    assert entry.identity.key["backend"] == "(choice)"
    return read((entry.form / "evidence.json").read_bytes())


def trials_of(tmp_path: Path) -> dict[str, Trial]:
    return {str(trial.setup): trial for trial in evidence_of(tmp_path).trials}


# ---------------------------------------------------------------------------------- the choice


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


UNSIGNED = """
import numpy as np
@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    return context.run([np.abs(each) for each in inputs], outputs, deadline_s)
"""


def test_a_backend_that_is_wrong_below_0_alone_is_not_chosen(
    speeds: Speeds, install: Install, path: Path, tmp_path: Path
) -> None:
    install("unsigned", extra=UNSIGNED)
    speeds.of["unsigned"] = [0.1]
    assert where(build(path)) == "base"
    assert "its results differ" in trials_of(tmp_path)["unsigned,base"].why_not


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


# -------------------------------------------------------------------------------- errors

ROUNDING = """
import numpy as np
asked = []
@hookimpl
def engine_compile(loaded, options):
    executable = loaded.compile(options)
    really, arithmetic = executable.open_context, options.arithmetic
    asked.append(str(arithmetic))
    def open_context():
        context = really()
        run = context.run
        def rounded(inputs, *more):
            results = run(inputs, *more)
            if arithmetic == "bfloat16":  # all but 8 of 24 bits
                return [(r.view(np.uint32) & 0xFFFF0000).view(np.float32) for r in results]
            return results
        context.run = rounded
        return context
    executable.open_context = open_context
    return executable
"""


def allowing(error: object) -> dict[str, Any]:
    return {"common_context": {"auto_budget_s": "1000", "max_error": str(error)}}


def test_less_precise_arithmetic_is_chosen_where_its_error_is_allowed(
    speeds: Speeds, install: Install, path: Path, tmp_path: Path
) -> None:
    install("rounding", extra=ROUNDING)
    speeds.of["rounding"] = [0.9, 0.5]
    model = build(path, config=allowing(0.01))
    assert "rounding,base arithmetic=bfloat16 takes 0.50 of" in model.placement[0].reason
    trials = trials_of(tmp_path)
    own = trials["rounding,base"].error
    assert own is not None
    assert 0 < own < 2**-24, "of float32, against float64"
    error = trials["rounding,base arithmetic=bfloat16"].error
    assert error is not None
    assert 2**-12 < error < 2**-7, "cut off below the 8th bit"
    same = trials["rounding,base arithmetic=float16"]
    assert (same.error, same.why_not) == (own, "it changes nothing of this model")
    x = np.float32([[1.2345678, 0, 0]])
    assert np.max(np.abs(model(x=x)["y"] - (2 * x + 1))) > 1e-4


def test_less_precise_arithmetic_is_refused_where_its_error_is_larger(
    speeds: Speeds, install: Install, path: Path, tmp_path: Path
) -> None:
    install("rounding", extra=ROUNDING)
    speeds.of["rounding"] = [0.9, 0.1]
    model = build(path, config=allowing(1e-4))
    assert "rounding,base takes 0.90 of" in model.placement[0].reason
    why_not = trials_of(tmp_path)["rounding,base arithmetic=bfloat16"].why_not
    assert re.fullmatch(r"its error is 0\.00\d+, above 0\.0001", why_not)


def test_less_precise_arithmetic_is_not_tried_unless_an_error_is_allowed(
    speeds: Speeds, install: Install, path: Path, tmp_path: Path
) -> None:
    module = install("rounding", extra=ROUNDING)
    speeds.of["rounding"] = [0.5]
    build(path)
    assert set(module.asked) == {"None"}
    build(path, config={**allowing(0.01), "rounding_context": {"arithmetic": "exact"}})
    assert set(module.asked) == {"None", "exact"}


def test_results_beyond_the_usual_tolerances_are_within_an_error_that_is_allowed(
    speeds: Speeds, install: Install, path: Path, tmp_path: Path
) -> None:
    off = WRONG.replace("result + 1", "result * np.float32(1.005)")
    install("off", extra="import numpy as np\n" + off)
    speeds.of["off"] = [0.5]
    assert where(build(path)) == "base"
    assert where(build(path, config=allowing(0.01))) == "off"
    assert where(build(path, config=allowing(0.001))) == "base"


A = np.float32([3, 4])
NAN, INFINITE = np.float32([np.nan, 4]), np.float32([np.inf, 4])


@pytest.mark.parametrize(
    ("own", "expected", "error"),
    [
        (np.float32([3, 4.5]), A, 0.1),  # 0.5 of a norm of 5
        (A, A, 0.0),
        (np.zeros(2, np.float32), np.zeros(2, np.float32), 0.0),
        (A, np.zeros(2, np.float32), math.inf),
        (A.astype(np.float16), A, math.inf),
        (A[None], A, math.inf),
        (NAN, A, math.inf),
        (NAN, NAN, 0.0),
        (INFINITE, -INFINITE, math.inf),
        (INFINITE, INFINITE, 0.0),
        (np.int64([1, 2]), np.int64([1, 2]), 0.0),
        (np.int64([1, 2]), np.int64([1, 3]), math.inf),
        (np.array(["a"], object), np.array(["a"], object), 0.0),
        (np.array(["a"], object), np.array(["b"], object), math.inf),
    ],
)
def test_an_error_is_the_norm_of_the_difference_over_the_norm(
    own: Any, expected: Any, error: float
) -> None:
    exact = {"y": np.float64([0.0, 0.0])}
    other = {"y": A, "z": own}
    assert error_of({"z": own}, {"z": expected}, None) == pytest.approx(error)
    assert error_of(other, {"y": A, "z": expected}, None) == pytest.approx(error)
    assert error_of({"y": A}, {"z": A}, None) == math.inf
    assert error_of({"y": A}, {"y": A}, exact) == math.inf, "against float64 where it is there"
    assert error_of({"y": A}, {"y": A}, {"y": np.float64([3, 5])}) == pytest.approx(34**-0.5)


def test_exact_outputs_are_those_of_float64(tmp_path: Path) -> None:
    source = ModelFile(models.affine(tmp_path))()
    x = np.float32([[0.1, 1e8, 3]])
    found = in_float64(source, [[x]], 60.0)
    assert found is not None
    [outputs] = found
    np.testing.assert_array_equal(outputs["y"], 2 * x.astype(np.float64) + 1)
    assert outputs["y"].dtype == np.float64
    assert in_float64(source, [[x]], -1.0) is None, "there is no time for it"


# ------------------------------------------------------------------------------- the evidence


def test_five_builds_choose_alike_and_measure_once(speeds: Speeds, path: Path) -> None:
    speeds.of["other"] = [0.5]
    assert where(build(path)) == "other"
    speeds.of["other"] = [2.0]
    assert [where(build(path)) for _ in range(4)] == ["other"] * 4
    assert len(speeds.compared) == 2


def test_without_the_cache_a_process_measures_once(
    speeds: Speeds, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ENGINE_CACHE", "off")
    speeds.of["other"] = [0.5]
    for _ in range(2):
        assert where(engine.load(path, target="auto", threads=1, config=CONFIG)) == "other"
    assert len(speeds.compared) == 2
    assert not (tmp_path / "cache").exists()


def test_large_models_that_differ_in_one_byte_share_no_evidence(
    speeds: Speeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_CACHE", "off")
    for place in (5, 6, 7, 8):
        weight = np.zeros(40_000, np.float32)
        weight[place] = 3
        x, y = (helper.make_tensor_value_info(name, 1, [1, 40_000]) for name in "xy")
        node, constant = helper.make_node("Mul", ["x", "w"], ["y"]), from_array(weight, "w")
        graph = helper.make_graph([node], "g", [x], [y], [constant])
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        engine.load(model.SerializeToString(), target="auto", threads=1, config=CONFIG)
    assert len(speeds.compared) == 4


def test_builds_at_the_same_time_measure_once(speeds: Speeds, path: Path) -> None:
    speeds.of["other"] = [0.5]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda _: where(build(path)), range(4))] == ["other"] * 4
    assert len(speeds.compared) == 2


def test_a_build_that_waits_for_another_to_measure_can_be_cancelled(
    speeds: Speeds, path: Path, tmp_path: Path
) -> None:
    token = CancelToken()
    with Store(tmp_path / "cache").locked("choice"), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(build, path, cancel=token)
        token.cancel()
        with pytest.raises(Cancelled):
            waiting.result()
    assert speeds.compared == []


@pytest.mark.parametrize("what", ["core", "machine", "backend", "settings", "new backend"])
def test_a_change_of_what_the_choice_depends_on_measures_anew(
    speeds: Speeds, install: Install, path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    build(path)
    before = len(speeds.compared)
    more: dict[str, Any] = {}
    if what == "core":
        monkeypatch.setattr(keeping, "__version__", "99")
    elif what == "machine":
        monkeypatch.setattr(keeping, "_processor", lambda: "another")
    elif what == "backend":
        monkeypatch.setattr(keeping, "_versions", lambda point: "2.0")
    elif what == "settings":
        more["config"] = {**CONFIG, "other_context": {"unsupported_ops": "Tanh"}}
    else:
        install("third")
    build(path, **more)
    assert len(speeds.compared) > before


def test_evidence_that_was_tampered_with_is_not_believed(
    speeds: Speeds, path: Path, tmp_path: Path
) -> None:
    assert where(build(path)) == "base"
    [entry] = Store(tmp_path / "cache").entries()
    file = entry.form / "evidence.json"
    said = json.loads(file.read_bytes())
    said["chosen"]["targets"] = ["other", "base"]
    file.chmod(0o600)
    file.write_text(json.dumps(said))
    before = len(speeds.compared)
    assert where(build(path)) == "base"
    assert len(speeds.compared) > before


def test_evidence_in_a_folder_that_others_can_write_to_is_not_believed(
    speeds: Speeds, path: Path, tmp_path: Path
) -> None:
    speeds.of["other"] = [0.5]
    assert where(build(path)) == "other"
    (tmp_path / "cache" / "v1").chmod(0o777)
    speeds.of["other"] = [2.0]
    assert where(build(path)) == "base"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_evidence_of_another_user_is_not_believed(
    speeds: Speeds, path: Path, tmp_path: Path
) -> None:
    speeds.of["other"] = [0.5]
    assert where(build(path)) == "other"
    os.chown(tmp_path / "cache" / "v1", 12345, 12345)
    speeds.of["other"] = [2.0]
    assert where(build(path)) == "base"


@pytest.mark.parametrize(
    "change",
    [
        {"format": 1}, {"chosen": {"targets": [], "threads": 0, "sections": {}}},
        {"chosen": {"targets": ["base"], "threads": -1, "sections": {}}}, {"trials": 1},
        {"key": []}, {"created": "yesterday"},
        {"trials": [{"setup": {"targets": ["a"], "threads": 0, "sections": {}}, "default_s": -1}]},
    ],
)  # fmt: skip
def test_a_text_that_is_no_evidence_is_refused(change: dict[str, Any]) -> None:
    setup = Setup(("other", "base"), 1, {"other_context": {"rewrites": "exact"}})
    trial = Trial(setup=setup, default_s=2.0, seconds=1.0, ratio=0.5, rounds=7, nodes={"a": 1})
    evidence = Evidence(
        chosen=setup, default=Setup(("base",)), trials=(trial,), reason="it is faster",
        inputs={"x": [1, 3]}, key={"core": "1"}, created=1.0, took_s=2.0,
    )  # fmt: skip
    assert read(json.dumps(evidence.to_json())) == evidence
    with pytest.raises(ValueError, match=r"\w"):
        read(json.dumps({**evidence.to_json(), **change}))
    with pytest.raises(ValueError, match=r"\w"):
        read("[]")


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


# ------------------------------------------------------------------------------------- a duel


def test_a_duel_ends_after_two_rounds_where_it_is_clearly_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    def takes(seconds: float) -> Callable[[], None]:
        def call() -> None:
            now[0] += seconds

        return call

    monkeypatch.setattr(duel, "perf_counter", lambda: now[0])
    rounds = [
        duel.duel(takes(1.0), takes(seconds), 0.0, lambda: None).rounds for seconds in (1.6, 1.4)
    ]
    assert rounds == [2, 3]


def test_a_ratio_is_the_larger_of_median_and_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the default takes 4 s; one of the candidate 2 s, or 3 s each other time."""
    now = [0.0]
    takes = [2.0, 3.0]

    def default() -> None:
        now[0] += 4.0

    def candidate() -> None:
        takes.reverse()
        now[0] += takes[0]

    monkeypatch.setattr(duel, "perf_counter", lambda: now[0])
    found = duel.duel(default, candidate, 0.0, lambda: None)
    assert (found.default_s, found.rounds) == (4.0, 3)
    assert found.fastest == 0.5
    assert found.middle in (0.5, 0.75)
    assert found.ratio == max(found.middle, found.fastest)


def test_cpu_time_counts_only_where_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidate takes half of the CPU time; the wait of each call is 0 s, then 30 s."""
    now, cpu = [0.0], [0.0]
    monkeypatch.setattr(duel, "perf_counter", lambda: now[0])
    monkeypatch.setattr(duel, "process_time", lambda: cpu[0])

    def spend(seconds: float, wait: float) -> None:
        now[0] += seconds + wait
        cpu[0] += seconds

    def ratio(wait: float) -> float:
        return duel.duel(
            lambda: spend(4.0, 0.0), lambda: spend(2.0, wait), 0.0, lambda: None, on_one_cpu=True
        ).ratio

    assert ratio(0.0) == 0.5
    assert ratio(30.0) == 8.0


def test_a_duel_ends_when_it_is_cancelled() -> None:
    token = CancelToken()
    calls = []

    def call() -> None:
        calls.append(1)
        if len(calls) == 5:
            token.cancel()

    with pytest.raises(Cancelled):
        duel.duel(call, call, 1000.0, token.check)


def test_the_budget_is_five_seconds_unless_it_is_set() -> None:
    assert limits.BUDGET_S == 5.0
