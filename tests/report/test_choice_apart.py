"""Target auto in processes: crashes, hangs, the end of a build that measures, and its background.

The default takes 20 ms more than the others, whatever the machine does beside.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import engine
from engine import Model
from engine.backends import installed
from engine.errors import Cancelled
from engine.formats import encryption
from engine.report.choice import apart, behind, keeping
from engine.report.choice.evidence import Evidence, Trial, read
from engine.types import CancelToken
from engine.weights.store import Store
from engine_testing import models

Install = Callable[..., ModuleType]
X = np.arange(6, dtype=np.float32).reshape(2, 3)

SLOW = """
import time
@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    time.sleep(0.02)
    return context.run(inputs, outputs, deadline_s)
"""


def elsewhere(hook: tuple[str, str], how: str) -> str:
    """A backend that does something first, or instead, in other processes than the test's.

    hook: its signature, and what it returns.
    """
    return (
        "import os, signal, time\nMAIN = os.environ['TEST_PROCESS']\n@hookimpl\n"
        f"def {hook[0]}:\n    if str(os.getpid()) != MAIN:\n        {how}\n    return {hook[1]}\n"
    )


DEVICES = ("engine_devices()", "null.engine_devices()")
COMPILE = ("engine_compile(loaded, options)", "loaded.compile(options)")
PREDICT = (
    "engine_predict(context, inputs, outputs, deadline_s)",
    "context.run(inputs, outputs, deadline_s)",
)
CRASHING = elsewhere(COMPILE, "os.abort()")
HANGING = elsewhere(PREDICT, "time.sleep(1000)")


def gated(closed: Path) -> str:
    """A backend whose compile waits elsewhere, as long as a file is there."""
    return elsewhere(COMPILE, f"while os.path.exists({str(closed)!r}): time.sleep(0.01)")


STOPPING = """
import os, time
from engine.errors import DeadlineExceeded
@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    while str(os.getpid()) != os.environ["TEST_PROCESS"]:
        time.sleep(0.01)
        if time.monotonic() > deadline_s:
            raise DeadlineExceeded("late")
    return context.run(inputs, outputs, deadline_s)
"""


@pytest.fixture
def alone(
    monkeypatch: pytest.MonkeyPatch, install: Install, tmp_path: Path, request: Any
) -> Install:
    """Backend `base`, the default, alone on this machine; a cache of its own.

    By parameter `base` is another than SLOW.
    """
    monkeypatch.setenv("TEST_PROCESS", str(os.getpid()))
    strange = set(installed())
    install("base", extra=getattr(request, "param", SLOW))
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", ",".join(strange - {"base"}))
    monkeypatch.setenv("ENGINE_CACHE", "on")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(keeping, "_known", {})
    return install


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return models.affine(tmp_path)


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A file that keeps the backend `other` from compiling; removed at the end."""
    file = tmp_path / "closed"
    file.touch()
    yield file
    file.unlink(missing_ok=True)
    assert behind.wait(60)


def build(path: Path, budget: float = 60, **more: Any) -> Model:
    config = {"common_context": {"auto_budget_s": str(budget), **more.pop("common", {})}}
    return engine.load(path, target="auto", threads=1, config=config, **more)


def where(model: Model) -> str:
    return model.placement[0].backend


def why(model: Model) -> str:
    return model.placement[0].reason


def evidence_of(tmp_path: Path) -> Evidence:
    [entry] = Store(tmp_path / "cache").entries()
    return read((entry.form / "evidence.json").read_bytes())


def trials_of(tmp_path: Path) -> dict[str, Trial]:
    return {str(trial.setup): trial for trial in evidence_of(tmp_path).trials}


def processes() -> list[str]:
    """The commands of this process's children."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(status[1]) == os.getpid() and status[0] != "Z":
                found.append((folder / "cmdline").read_text())
        except OSError:
            continue
    return [command for command in found if "engine.report.choice" in command]


def wait_for(what: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


# ------------------------------------------------------------------------------------- robustness


@pytest.mark.parametrize(
    ("hook", "how", "says"),
    [
        (PREDICT, "os.kill(os.getpid(), signal.SIGSEGV)", "crashed with SIGSEGV"),
        (COMPILE, "os.abort()", "crashed with SIGABRT"),
        (DEVICES, "os._exit(3)", "ended with status 3"),
    ],
    ids=["predict", "compile", "devices"],
)
def test_a_backend_that_crashes_costs_the_caller_nothing_and_others_are_tried_on(
    alone: Install, path: Path, tmp_path: Path, hook: tuple[str, str], how: str, says: str
) -> None:
    alone("crashing", extra=elsewhere(hook, how))
    alone("other")
    with build(path) as model:
        assert where(model) == "other"
        np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)
    trials = trials_of(tmp_path)
    assert [*trials] == ["base", "crashing,base", "other,base"]
    assert f"the process that tried it {says}" in trials["crashing,base"].why_not
    assert processes() == []


def test_what_was_measured_before_a_crash_is_not_measured_again(
    alone: Install, path: Path, tmp_path: Path
) -> None:
    alone("first")
    alone("second", extra=elsewhere(PREDICT, "os.abort()"))
    with build(path) as model:
        assert where(model) == "first"
        np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)
    trials = trials_of(tmp_path)
    assert [*trials] == ["base", "first,base", "second,base"]
    assert "SIGABRT" in trials["second,base"].why_not


@pytest.mark.parametrize("alone", [CRASHING], indirect=True)
def test_a_default_that_crashes_is_evidence_and_the_build_goes_on_with_it(
    alone: Install, path: Path, tmp_path: Path
) -> None:
    alone("other")
    with build(path) as model:
        assert where(model) == "base"
        assert "nothing was compared: base: the process that tried it crashed" in why(model)


@pytest.mark.slow
def test_a_setup_that_hangs_is_ended_and_the_best_so_far_is_chosen(
    alone: Install, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "_PATIENCE_S", 2.0)
    alone("hanging", extra=HANGING)
    alone("fast")
    with build(path, budget=3) as model:
        np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)
        assert where(model) == "fast"
    assert "was ended after" in trials_of(tmp_path)["hanging,base"].why_not
    assert processes() == []


@pytest.mark.slow
@pytest.mark.parametrize("alone", [HANGING], indirect=True)
def test_a_default_that_hangs_is_ended(
    alone: Install, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "_PATIENCE_S", 1.0)
    alone("other")
    with build(path, budget=1) as model:
        assert where(model) == "base"
        assert "the process that tried it was ended after" in why(model)


@pytest.mark.parametrize("alone", [STOPPING], indirect=True)
def test_a_predict_that_takes_longer_than_the_budget_is_stopped(alone: Install, path: Path) -> None:
    alone("other")
    with build(path, budget=0.5) as model:
        assert where(model) == "base"
        assert "a predict on generated inputs takes more than 0.5 s" in why(model)


def test_a_build_that_measures_can_be_cancelled_at_once(
    alone: Install, path: Path, closed: Path
) -> None:
    alone("other", extra=gated(closed))
    token = CancelToken()

    def progress(phase: str, done: int, total: int | None) -> None:
        if phase.startswith("try other"):
            token.cancel()

    with pytest.raises(Cancelled):
        build(path, progress=progress, cancel=token)
    assert processes() == []


def test_an_interrupt_ends_the_process_and_a_later_build_measures(
    alone: Install, path: Path, closed: Path
) -> None:
    alone("other", extra=gated(closed))

    def progress(phase: str, done: int, total: int | None) -> None:
        if phase.startswith("try other"):
            # Once the thread waits again, in the middle of the measuring.
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            build(path, progress=progress)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert processes() == []
    closed.unlink()
    with build(path) as model:
        assert where(model) == "other"


def test_an_exception_of_the_progress_callback_comes_as_it_is(alone: Install, path: Path) -> None:
    alone("other")

    def progress(phase: str, done: int, total: int | None) -> None:
        if phase.startswith("try other"):
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        build(path, progress=progress)
    assert processes() == []


def test_a_model_in_memory_and_an_encrypted_one_are_measured_and_leave_nothing(
    alone: Install, path: Path, tmp_path: Path
) -> None:
    alone("other")
    content = path.read_bytes()
    with build(content) as model:  # type: ignore[arg-type]
        assert where(model) == "other"
    key = b"0123456789abcdef"
    secret = tmp_path / "secret.onnx"
    secret.write_bytes(encryption.encrypt(content, key))
    before = len(Store(tmp_path / "cache").entries())
    with Model() as model:
        context = engine.Context()
        context.target, context.cpu.thread_num = ["auto"], 1
        model.build_from_file(
            str(secret), engine.ModelType.MINDIR, context, dec_key=key, dec_mode="AES-GCM",
            config_dict={"common_context": {"auto_budget_s": "60"}},
        )  # fmt: skip
        assert where(model) == "other"
        np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)
    assert len(Store(tmp_path / "cache").entries()) == before


def test_evidence_in_a_read_only_cache_is_used_and_without_it_a_process_measures_once(
    alone: Install, path: Path, tmp_path: Path, make_read_only: Callable[[Path], None]
) -> None:
    alone("other")
    build(path).close()
    make_read_only(tmp_path / "cache")
    keeping._known.clear()
    begun: list[str] = []

    def progress(phase: str, done: int, total: int | None) -> None:
        begun.append(phase)

    with build(path, progress=progress) as model:
        assert where(model) == "other"
    assert not any(phase.startswith("try ") for phase in begun)
    (tmp_path / "second").mkdir()
    second = models.several(tmp_path / "second")
    for times in (1, 1):
        build(second, progress=progress).close()
        assert sum(phase.startswith("try ") for phase in begun) == times


@pytest.mark.slow
def test_two_processes_measure_once(alone: Install, path: Path, tmp_path: Path) -> None:
    alone("other")
    script = (
        "import sys, engine; model = engine.load(sys.argv[1], target='auto', threads=1,"
        " config={'common_context': {'auto_budget_s': '60'}});"
        " print(model.placement[0].backend, model.placement[0].reason)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", script, str(path)]
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    one, two = (process.communicate(timeout=120)[0] for process in both)
    assert one == two
    assert one.startswith("other")
    assert len(Store(tmp_path / "cache").entries()) == 1


def test_models_do_not_wait_for_each_other(
    alone: Install, path: Path, tmp_path: Path, closed: Path
) -> None:
    alone("other", extra=gated(closed))
    found: list[Model] = []
    begun = threading.Event()

    def progress(phase: str, done: int, total: int | None) -> None:
        if phase.startswith("try other"):
            begun.set()

    waiting = threading.Thread(target=lambda: found.append(build(path, progress=progress)))
    waiting.start()
    assert begun.wait(60)
    (tmp_path / "second").mkdir()
    second = models.several(tmp_path / "second")
    token = CancelToken()

    def stop(phase: str, done: int, total: int | None) -> None:
        if phase.startswith("try other"):  # it measures, while the first one does
            token.cancel()

    with pytest.raises(Cancelled):
        build(second, progress=stop, cancel=token)
    assert not found
    closed.unlink()
    waiting.join(60)
    assert where(found[0]) == "other"


# ------------------------------------------------------------------------------------ background

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
