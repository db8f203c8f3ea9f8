"""Model.profile: where the time of a predict goes."""

from __future__ import annotations

import json
import logging
import statistics
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import Model, ModelStateError
from engine.errors import BackendError, InputError, ModelError
from engine.model.model import model_state
from engine.report.profiling import Kernel, Profile, Run
from engine_testing import models

X = np.ones((2, 3), np.float32)


def test_each_node_has_its_time_in_each_predict(affine: Model) -> None:
    profile = affine.profile([X], 4, warmup=2)
    assert profile.predicts == 4
    assert {(k.op_type, k.name, k.nodes) for k in profile.kernels} == {
        ("Mul", "scale", (0,)),
        ("Add", "shift", (1,)),
    }
    assert all(kernel.runs == 1 for kernel in profile.kernels)
    assert [run.predict for run in profile.runs] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sum(kernel.share for kernel in profile.kernels) == pytest.approx(1)
    assert profile.kernels[0].time_s >= profile.kernels[1].time_s
    for place, kernel in enumerate(profile.kernels):
        took = [run.duration_s for run in profile.runs if run.kernel == place]
        assert kernel.time_s == pytest.approx(statistics.median(took))
    assert profile.kernels_s == sum(kernel.time_s for kernel in profile.kernels)


def test_the_model_goes_on_as_it_was(affine: Model) -> None:
    plan = model_state(affine).plan
    affine.profile({"x": X}, 1)
    assert model_state(affine).plan is plan
    np.testing.assert_array_equal(affine.predict([X])[0], 2 * X + 1)


def test_a_resized_model_is_measured_at_its_size(affine: Model) -> None:
    affine.resize(affine.get_inputs(), [[5, 3]])
    assert affine.profile([np.ones((5, 3), np.float32)], 1).predicts == 1
    with pytest.raises(InputError):
        affine.profile([X], 1)


def test_parts_tell_the_nodes_of_the_whole_model(null_backend, tmp_path, monkeypatch) -> None:
    options = {"null_context": {"unsupported_ops": "Add"}}
    monkeypatch.delenv("ENGINE_TARGET", raising=False)
    try:
        model = engine.load(models.affine(tmp_path), [null_backend, "cpu"], config=options)
    except BackendError:
        pytest.skip("no second backend is installed")
    profile = model.profile([X], 2)
    parts = {(kernel.nodes, kernel.backend) for kernel in profile.kernels}
    assert parts == {((0,), null_backend), ((1,), "cpu")}


def test_it_prints_as_a_table_and_saves_a_trace(affine: Model, tmp_path: Path) -> None:
    profile = affine.profile([X], 2)
    first, hottest, second = str(profile).splitlines()
    assert first.startswith("predict ")
    assert "2 predicts" in first
    assert "█" * 24 in hottest
    assert profile.kernels[0].name in hottest
    assert profile.kernels[1].name in second
    profile.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["ph"] for event in events] == ["M", "X", "X", "X", "X"]
    assert [event["name"] for event in events[1:]] == ["scale", "shift"] * 2
    assert [event["args"]["nodes"] for event in events[1:]] == [[0], [1]] * 2
    begins = [event["ts"] for event in events[1:]]
    assert begins == sorted(begins)
    assert begins[0] == 0


def test_many_kernels_are_summed_up_below_the_hottest() -> None:
    kernels = tuple(Kernel(f"k{n}", "Op", (n,), "b", "cpu:0", 1.0, 0.5, 0.04) for n in range(25))
    profile = Profile(1.0, 1.0, kernels, (Run(0, 0, 0.0, 0.5),), 1, ("npu",))
    lines = str(profile).splitlines()
    assert lines[1] == "not measured: npu cannot tell"
    assert lines[22].split() == ["20.0%", "in", "5", "further", "kernels"]
    assert lines[23:25] == ["", "by operator type"]
    assert lines[25].startswith("100.0%")
    assert lines[25].endswith("Op, 25 kernels")
    assert len(lines) == 26


def test_nothing_of_a_measurement_stays(affine: Model, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    affine.profile([X], 1)
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"predicts": 0}, ValueError, "predicts must be 1 or more, but got 0"),
        ({"warmup": -1}, ValueError, "warmup"),
        ({"predicts": 1.5}, TypeError, "predicts"),
    ],
)
def test_a_wrong_setting_is_refused(affine, settings, error, says) -> None:
    with pytest.raises(error, match=says):
        affine.profile([X], **settings)


def test_what_cannot_be_measured_says_why(affine, null_context, monkeypatch) -> None:
    with pytest.raises(ModelStateError, match="not built"):
        Model().profile([X])
    monkeypatch.setattr("engine_testing.null_run.NullExecutable.profile", lambda self: 1 / 0)
    with pytest.raises(BackendError, match="profile"):
        affine.profile([X])
    monkeypatch.setattr("engine.plan.source_model.KEPT_BYTES", 0)
    in_memory = Model()
    in_memory.build_from_buffer(Path(affine.model_path_).read_bytes(), context=null_context)
    with pytest.raises(ModelError, match="not kept"):
        in_memory.profile([X])


def test_a_backend_that_cannot_tell_is_named(affine, monkeypatch) -> None:
    monkeypatch.setattr("engine.backends.backend.Backend.lacks", lambda *asked: "not announced")
    with pytest.raises(BackendError, match="backend 'null' cannot tell the time of its kernels"):
        affine.profile([X])


def test_a_model_in_a_process_of_its_own_cannot_be_profiled(null_backend, tmp_path, caplog) -> None:
    config = {"common_context": {"isolate": "true"}}
    with (
        caplog.at_level(logging.ERROR),
        engine.load(models.affine(tmp_path), null_backend, config=config) as apart,
        pytest.raises(BackendError, match=r"leave out common_context\.isolate"),
    ):
        apart.profile([X])


def test_a_profile_prints_whatever_names_and_times_are() -> None:
    kernels = tuple(
        Kernel(f"{n}\x1b[2J\nm", "Add", (n,), "cpu", "cpu:0", 1, 0.0, 0.0) for n in (0, 1)
    )
    lines = str(Profile(0.1, 0.1, kernels, (), 1)).splitlines()
    assert len(lines) == 6  # one a kernel, and the operator type's
    assert lines[1].endswith(r"Add 0\x1b[2J\nm")
