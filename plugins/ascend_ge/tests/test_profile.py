"""Times of operators by ACL's subscription: Model.profile and `engine run --profile`. Emulated."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine.cli import main
from engine.errors import DeadlineExceeded, ModelError
from engine.types import Capability
from engine_testing import models

X = np.array([[1, 2, 3]], np.float32)


def test_a_profile_tells_each_node_that_runs(machine: Any, path: Path) -> None:
    with engine.load(path, "ascend") as model:
        profile = model.profile({"x": X}, predicts=3, warmup=1)
    assert {(kernel.name, kernel.op_type, kernel.nodes) for kernel in profile.kernels} == {
        ("scale", "Mul", (0,)),
        ("shift", "Add", (1,)),
    }
    assert all(kernel.runs == 1 for kernel in profile.kernels)
    assert 0 < profile.kernels_s <= profile.measured_s
    assert machine.calls["prof.model_subscribe"] == 4
    assert machine.live() == {}


def test_the_command_prints_a_profile(
    machine: Any, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["run", str(path), "--target", "ascend", "--shape", "x=1,3", "--profile"])
    out, errors = capsys.readouterr()
    assert status == 0, errors
    assert "Mul scale" in out
    assert "Add shift" in out


def test_contexts_that_run_at_once_are_measured_each_by_itself(
    machine: Any, build: Any, predict: Any, path: Path, tmp_path: Path
) -> None:
    machine.slow(0.05)
    executable = build(path, profile_to=tmp_path)
    contexts = [executable.open_context() for _ in range(3)]
    threads = [threading.Thread(target=predict, args=(context, X)) for context in contexts]
    begin_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times = executable.profile()
    assert sorted({each.predict for each in times}) == [0, 1, 2]
    assert len(times) == 6
    for each in times:
        assert begin_s <= each.start_s <= each.start_s + each.duration_s <= time.monotonic()
        assert each.duration_s >= 0.02, "half of a run that takes 0.05 s"


def test_nodes_without_a_name_are_told_by_ges_names_for_them(
    build: Any, predict: Any, tmp_path: Path
) -> None:
    executable = build(models.several(tmp_path), profile_to=tmp_path)
    z = np.ones((2, 3), np.float32)
    predict(executable.open_context(), z, z, np.ones(3, np.float32))
    named = {(each.name, each.nodes) for each in executable.profile()}
    assert named == {("Add_0", (0,)), ("Mul_1", (1,)), ("Sub_2", (2,))}


def test_a_late_predict_ends_its_subscription(
    machine: Any, build: Any, predict: Any, path: Path, tmp_path: Path
) -> None:
    executable = build(path, profile_to=tmp_path)
    context = executable.open_context()
    machine.slow(0.3)
    with pytest.raises(DeadlineExceeded):
        predict(context, X, deadline_s=time.monotonic() + 0.05)
    machine.slow(0)
    predict(context, X)
    assert {each.predict for each in executable.profile()} == {1}
    assert machine.calls["prof.model_subscribe"] == machine.calls["prof.model_unsubscribe"] == 2


@pytest.mark.parametrize(
    "name", ["create_subscribe_config", "model_subscribe", "model_unsubscribe", "get_op_num"]
)
def test_a_call_that_fails_is_an_error_and_leaves_nothing(
    machine: Any, build: Any, predict: Any, path: Path, tmp_path: Path, name: str
) -> None:
    executable = build(path, profile_to=tmp_path)
    context = executable.open_context()
    predict(context, X)
    threads, was = threading.active_count(), machine.live()
    machine.fail(f"prof.{name}", 148046 if name == "model_subscribe" else 500005)
    with pytest.raises(ModelError, match="the times of operators"):
        predict(context, X)
    machine.heal()
    assert threading.active_count() == threads
    if name == "model_unsubscribe":  # so the emulated machine still tells somebody
        for model in machine.models.values():
            model.on_run = None
    assert machine.live() == was


def test_times_that_nobody_tells_are_an_error(
    build: Any, predict: Any, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import acl

    monkeypatch.setattr(acl.prof, "_names", lambda model: [])
    executable = build(path, profile_to=tmp_path)
    predict(executable.open_context(), X)
    with pytest.raises(ModelError, match="told the times of no operator in 1 of 1 predicts"):
        executable.profile()


def test_an_older_cann_cannot_measure(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import acl

    from engine_ascend_ge import devices

    monkeypatch.delattr(acl.prof, "get_op_name_v2")
    [first, _] = devices.find().found
    assert "no acl.prof.get_op_name_v2" in first.lacks[Capability.PROFILE]
