"""Target auto in processes: crashes, hangs, and the end of a build that measures."""

from __future__ import annotations

import math
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from choices import Install, X, evidence_of, trials_of, where
from choices_apart import (
    COMPILE,
    CRASHING,
    DEVICES,
    HANGING,
    PREDICT,
    STOPPING,
    build,
    elsewhere,
    gated,
    processes,
    why,
)

import engine
from engine import Model
from engine.errors import Cancelled
from engine.formats import encryption
from engine.report.choice import apart, keeping
from engine.types import CancelToken
from engine.weights.store import Store
from engine_testing import models


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


LIMIT = "import resource; os._exit(3 if resource.getrlimit(resource.RLIMIT_CORE)[0] else 4)"


def test_a_backend_that_crashes_writes_no_memory_to_disk(
    alone: Install, path: Path, tmp_path: Path
) -> None:
    alone("other", extra=elsewhere(COMPILE, LIMIT))
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        build(path).close()
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    assert "ended with status 4" in trials_of(tmp_path)["other,base"].why_not


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
    assert trials["second,base"].is_open
    assert evidence_of(tmp_path).valid_s == math.inf, "what is chosen is faster than the default"


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
    alone: Install, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "_PATIENCE_S", 1.0)
    alone("other")
    with build(path, budget=1) as model:
        assert where(model) == "base"
        assert "the process that tried it was ended after" in why(model)
    assert evidence_of(tmp_path).valid_s < math.inf


@pytest.mark.parametrize("alone", [STOPPING], indirect=True)
def test_a_predict_that_takes_longer_than_the_budget_is_stopped(
    alone: Install, path: Path, tmp_path: Path
) -> None:
    alone("other")
    with build(path, budget=0.5) as model:
        assert where(model) == "base"
        assert "a predict on generated inputs takes more than 0.5 s" in why(model)
    assert evidence_of(tmp_path).valid_s < math.inf


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
