"""Times of layers, by `Model.profile` and the setting layer_profile."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine.errors import BackendUnavailable
from engine_testing import models
from engine_testing.level import Running, Trial

Make = Callable[..., Callable[[Path], Path]]
X = np.float32([[1, -2], [3, 4]])


@pytest.fixture
def fused(model: Make, tmp_path: Path) -> Path:
    """A product and its activation are one layer, what computes from constants is none."""
    nodes = [
        ("Neg", ["w"], ["v"]),
        ("MatMul", ["x", "v"], ["a"], {"name": "product"}),
        ("Relu", ["a"], ["b"]),
        ("Exp", ["b"], ["c"], {"name": "twin"}),
        ("Neg", ["c"], ["y"], {"name": "twin"}),
    ]
    values: list[Any] = [[("x", [2, 2])], [("y", [2, 2])]]
    return model(nodes, *values, constants={"w": np.eye(2, dtype=np.float32)})(tmp_path)


def test_a_profile_shows_layers_with_the_nodes_that_they_compute(fused: Path) -> None:
    with engine.load(str(fused), target="gpu") as model:
        profile = model.profile({"x": X}, predicts=4)
        np.testing.assert_allclose(model(x=X)["y"], -np.exp(np.maximum(-X, 0)), rtol=1e-6)
    kernels = {kernel.name: kernel for kernel in profile.kernels}
    assert {name: (kernel.op_type, kernel.nodes) for name, kernel in kernels.items()} == {
        "product + node_of_b": ("gemm", (1, 2)),
        "twin": ("kgen", ()),  # two nodes have this name
        "twin_0": ("kgen", ()),
    }
    assert all(kernel.runs == 1 and kernel.time_s > 0 for kernel in profile.kernels)
    assert {(kernel.backend, kernel.device) for kernel in profile.kernels} == {("gpu_trt", "gpu:0")}
    assert profile.kernels_s <= profile.measured_s
    assert Counter(run.predict for run in profile.runs) == dict.fromkeys(range(4), 3)
    assert "gemm product + node_of_b" in str(profile)


def test_layers_follow_each_other(fused: Path) -> None:
    with engine.load(str(fused), target="gpu") as model:
        profile = model.profile([X], predicts=3, warmup=0)
    order = ["product + node_of_b", "twin", "twin_0"]
    assert [profile.kernels[run.kernel].name for run in profile.runs] == order * 3
    for run, following in zip(profile.runs, profile.runs[1:], strict=False):
        assert following.start_s >= run.start_s + run.duration_s - 1e-9


def test_parts_on_two_backends_are_measured_together(model: Make, tmp_path: Path) -> None:
    nodes = [
        ("Relu", ["x"], ["a"]),
        ("Unique", ["a"], ["b"], {"sorted": 1}),
        ("Exp", ["b"], ["y"]),
    ]
    path = model(nodes, [("x", [4])], [("y", ["n"])])(tmp_path)
    pytest.importorskip("engine_cpu")
    with engine.load(str(path), target=["gpu", "cpu"]) as parts:
        profile = parts.profile([np.float32([2, -1, 2, 0])], predicts=2)
    nodes_on = {(kernel.backend, kernel.nodes) for kernel in profile.kernels}
    assert {("gpu_trt", (0,)), ("gpu_trt", (2,)), ("cpu", (1,))} <= nodes_on


def test_a_model_of_an_engine_file_is_profiled(
    trial: Trial, fused: Path, tmp_path: Path, form: Path
) -> None:
    trial.compile(lambda folder: fused, X, save_to=form)
    path = (form / "engine.plan").rename(tmp_path / "fused.engine")
    with engine.load(path, target="gpu") as model:
        profile = model.profile([X], predicts=2)
        assert {kernel.name for kernel in profile.kernels} == {
            "product + node_of_b", "twin", "twin_0"
        }  # fmt: skip
        assert {kernel.nodes for kernel in profile.kernels} == {()}
        np.testing.assert_allclose(model([X])["y"], -np.exp(np.maximum(-X, 0)), rtol=1e-6)
        with pytest.raises(engine.InputError) as error:  # its sizes are those that it was built for
            model([np.ones((3, 2), np.float32)])
        assert "resize" not in str(error.value)
        path.write_bytes(path.read_bytes() + b"\0")
        with pytest.raises(engine.ModelError, match=r"fused\.engine: changed since the model was"):
            model.profile([X])


def test_predicts_of_two_threads_are_told_apart(trial: Trial, tmp_path: Path) -> None:
    running = trial.open(models.affine, profile_to=tmp_path)
    other = trial.context(running.executable)
    x = np.ones((2, 3), np.float32)

    def work(of: Running) -> None:
        for _ in range(20):
            of.predict(x)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (running, other)))
    times: Sequence[Any] = running.executable.profile()  # type: ignore[attr-defined]
    layers = {time.name for time in times}
    assert Counter(time.predict for time in times) == dict.fromkeys(range(40), len(layers))


def test_graphs_are_not_recorded_while_layers_are_measured(
    trial: Trial, tmp_path: Path, emulated: Any
) -> None:
    running = trial.open(models.affine, profile_to=tmp_path, options={"cuda_graphs": "on"})
    with emulated.counting() as counts:
        for _ in range(5):
            running.predict(np.ones((2, 3), np.float32))
    assert counts["graph launches"] == 0
    assert {time.predict for time in running.executable.profile()} == set(range(5))  # type: ignore[attr-defined]


def test_a_profiler_that_is_not_told_anything_is_an_error(
    trial: Trial, tmp_path: Path, emulated: Any
) -> None:
    running = trial.open(models.affine, profile_to=tmp_path)
    with (
        emulated.fail("report_to_profiler"),
        pytest.raises(BackendUnavailable, match="times of layers"),
    ):
        running.predict(np.ones((2, 3), np.float32))
    running.predict(np.ones((2, 3), np.float32))


def test_sums_are_written_into_a_file_when_a_model_is_closed(trial: Trial, tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    running = trial.open(models.affine, options={"layer_profile": str(path)})
    for count in range(1, 4):
        x = np.ones((count, 3), np.float32)
        np.testing.assert_array_equal(running.predict(x)[0], 2 * x + 1)
    running.executable.close()
    table: list[Mapping[str, Any]] = json.loads(path.read_text())
    assert [row["runs"] for row in table] == [3] * len(table)
    assert table
    assert set(table[0]) == {"layer", "runs", "mean_ms", "total_ms"}
    assert [row["total_ms"] for row in table] == sorted(
        (r["total_ms"] for r in table), reverse=True
    )


def test_a_profile_leaves_the_file_to_the_model_that_serves(tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    config = {"gpu_context": {"layer_profile": str(path)}}
    x = np.ones((2, 3), np.float32)
    source = str(models.affine(tmp_path))
    with engine.load(source, target="gpu", config=config) as model:
        model.profile([x], predicts=2, warmup=1)
        assert not path.exists()
        model(x=x)
    assert {row["runs"] for row in json.loads(path.read_text())} == {4}, "three of them in profile"


def test_a_file_that_cannot_be_written_is_named(trial: Trial, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "layers.json"
    running = trial.open(models.affine, options={"layer_profile": str(path)})
    with pytest.raises(BackendUnavailable, match=f"layer_profile: {path} cannot be written: No"):
        running.executable.close()
    running.executable.close()
