"""Compiled forms: what a warm load gives, what it refuses, and the timing cache."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine_gpu_trt as plugin
from engine.errors import BackendUnavailable, Cancelled, CompiledFormError
from engine.types import CancelToken, CompileOptions, Device, Executable, ModelSource, ShapeRange
from engine_testing import models
from engine_testing.level import Trial

Make = Callable[..., Any]

SHAPES = {"x": ShapeRange((2, 3), (4, 3), (8, 3))}


@pytest.fixture
def fused(model: Make) -> Callable[[Path], Path]:
    """A product with its activation in one kernel, after a constant that is folded away."""
    return model(  # type: ignore[no-any-return]
        [
            ("Neg", ["w"], ["v"], {"name": "negate"}),
            ("MatMul", ["x", "v"], ["a"], {"name": "product"}),
            ("Relu", ["a"], ["y"], {"name": "activation"}),
        ],
        [("x", ["rows", 2])],
        [("y", ["rows", 2])],
        {"w": -np.eye(2, dtype=np.float32)},
    )


def save(trial: Trial, source: ModelSource, name: str = "form", **changes: Any) -> Executable:
    """A cold compile that writes its form into folder `name`."""
    folder = trial.folder / name
    folder.mkdir()
    return trial.compile(source, save_to=folder, **changes)


def warm(source: ModelSource, folder: Path) -> ModelSource:
    return replace(source, compiled=folder)


def test_a_warm_load_parses_and_builds_nothing_and_has_the_same_placement(
    trial: Trial, fused: Callable[[Path], Path], emulated: Any
) -> None:
    source = trial.source(fused)
    shapes = {"x": ShapeRange((2, 2), (4, 2), (8, 2))}
    with emulated.counting() as cold_counts:
        cold = save(trial, source, shapes=shapes)
    assert (cold_counts["parses"], cold_counts["builds"]) == (1, 1)
    with emulated.counting() as counts:
        trial.load(warm(source, trial.folder / "form"), shapes=shapes)
        hot = trial.compile(warm(source, trial.folder / "form"), shapes=shapes)
    # The engine that the cold one has loaded serves these too.
    assert (counts["parses"], counts["builds"], counts["deserialised"]) == (0, 0, 0)
    assert (hot.inputs[0].shape, hot.inputs[0].bounds) == (("rows", 2), ((2, 8), None))
    assert hot.placement() == cold.placement()
    assert len(hot.placement()) == 3


def test_an_input_that_the_parser_renames_is_found_again(trial: Trial, model: Make) -> None:
    source = trial.source(
        model([("Neg", ["x"], ["y"])], [("x", ["n"])], [("x", ["n"]), ("y", ["n"])])
    )
    save(trial, source)
    x = np.float32([1, 2])
    same, negated = trial.open(warm(source, trial.folder / "form")).predict(x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(negated, -x)


def test_a_users_engine_file_has_a_form_too(trial: Trial) -> None:
    save(trial, trial.source(models.affine), shapes=SHAPES)
    plan = ModelSource(format="plan", path=trial.folder / "form" / "engine.plan")
    cold = save(trial, plan, "second")
    hot = trial.compile(warm(plan, trial.folder / "second"))
    assert (hot.inputs, hot.outputs) == (cold.inputs, cold.outputs)
    assert hot.inputs[0].bounds == ((2, 8), None)
    [y] = trial.context(hot).predict(np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(y, np.full((2, 3), 3, np.float32))


def test_a_form_runs_on_another_device_of_the_kind(
    trial: Trial, second_device: int, monkeypatch: pytest.MonkeyPatch, emulated: Any
) -> None:
    monkeypatch.setattr(
        emulated.MACHINE.devices[second_device], "name", emulated.MACHINE.devices[0].name
    )
    source = trial.source(models.affine)
    save(trial, source)
    there = Device("gpu", second_device)
    running = trial.open(warm(source, trial.folder / "form"), device=there)
    assert {entry.device for entry in running.executable.placement()} == {str(there)}
    [y] = running.predict(np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(y, np.full((2, 3), 3, np.float32))


def test_only_the_form_is_written_and_a_cancelled_compile_writes_nothing(trial: Trial) -> None:
    source = trial.source(models.affine)
    save(trial, source)
    assert sorted(os.listdir(trial.folder / "form")) == ["engine.plan", "form.json"]
    token = CancelToken()
    with pytest.raises(Cancelled):
        save(trial, source, "none", cancel=token, progress=lambda *step: token.cancel())
    assert os.listdir(trial.folder / "none") == []


def test_nothing_of_a_secret_is_written(trial: Trial) -> None:
    source = trial.source(models.affine)
    assert source.path is not None
    secret = replace(source, data=source.path.read_bytes(), path=None, is_secret=True)
    cache = trial.folder / "cache"
    cache.mkdir()
    save(trial, secret, cache_folder=cache)
    assert os.listdir(trial.folder / "form") == os.listdir(cache) == []


def test_a_disk_that_takes_nothing_is_said_and_leaves_nothing(trial: Trial) -> None:
    gone = trial.folder / "gone"
    with pytest.raises(BackendUnavailable, match=r"cannot be written to .*gone: No such file"):
        trial.compile(models.affine, save_to=gone)


@pytest.mark.parametrize("name", ["tensorrt", "driver", "device", "compute_capability"])
def test_an_engine_of_something_else_never_reaches_tensorrt(
    trial: Trial, name: str, emulated: Any
) -> None:
    source = trial.source(models.affine)
    save(trial, source)
    path = trial.folder / "form" / "form.json"
    content = json.loads(path.read_text())
    content["made_with"][name] = "another"
    path.write_text(json.dumps(content))
    with (
        emulated.counting() as counts,
        pytest.raises(CompiledFormError, match=f"{name} 'another', here"),
    ):
        trial.load(warm(source, path.parent))
    assert counts["deserialised"] == 0


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "gone"])
@pytest.mark.parametrize("file", ["engine.plan", "form.json"])
def test_a_damaged_form_never_reaches_tensorrt(
    trial: Trial, file: str, damage: str, trt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = trial.source(models.affine)
    save(trial, source)
    path = trial.folder / "form" / file
    data = path.read_bytes()
    # In JSON a flipped bit may leave a valid text: so it is made none.
    place = len(data) // 2 if file == "engine.plan" else 0
    flipped = bytes([data[place] ^ 1])
    damaged = {"flipped": data[:place] + flipped + data[place + 1 :], "truncated": data[:-9]}
    path.write_bytes(damaged.get(damage, b""))
    if damage == "gone":
        path.unlink()

    def refuse(self: Any, plan: Any) -> None:
        raise AssertionError("TensorRT was given a damaged engine")

    monkeypatch.setattr(trt.Runtime, "deserialize_cuda_engine", refuse)
    with pytest.raises(CompiledFormError, match="form"):
        trial.load(warm(source, path.parent))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1}, {"inputs": [{}]}, {"inputs": 3}, {"names": []}, {"names": {"x": "q"}},
        {"placement": [{"index": 0}]}, {"made_with": None}, {"outputs": []},
    ],
    ids=str,
)  # fmt: skip
def test_a_form_of_other_content_is_refused(trial: Trial, change: dict[str, Any]) -> None:
    source = trial.source(models.affine)
    save(trial, source)
    path = trial.folder / "form" / "form.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CompiledFormError, match="form"):
        trial.load(warm(source, path.parent))
    path.write_text("[]")
    with pytest.raises(CompiledFormError, match="form"):
        trial.load(warm(source, path.parent))


def options(**changes: Any) -> CompileOptions:
    return replace(CompileOptions(device=Device("gpu")), **changes)


def key(**changes: Any) -> dict[str, str]:
    return dict(plugin.engine_compiled_key(options(**changes)))


def test_the_key_names_what_an_engine_depends_on(trt: Any) -> None:
    base = key()
    assert base["tensorrt"] == trt.__version__
    assert (base["device"], base["compute_capability"]) == ("Emulated GPU 0", "9.0")
    assert all(isinstance(value, str) for value in base.values())
    profiles = (SHAPES, {"x": ShapeRange((9, 3), (9, 3), (9, 3))})
    for name, changes in {
        "precision": {"precision": "preferred_fp16"},
        "shapes": {"shapes": SHAPES},
        "profiles": {"profiles": profiles},
        "tf32": {"options": {"tf32": "on"}},
        "optimization_level": {"options": {"optimization_level": "1"}},
        "workspace_bytes": {"options": {"workspace_bytes": "1MiB"}},
        "batch_range": {"options": {"batch_range": "1~2~3"}},
        "dim_range": {"options": {"dim_range": "1~2~3"}},
    }.items():
        other = key(**changes)
        assert [part for part in base if base[part] != other[part]] == [name]


def test_the_key_leaves_out_what_an_engine_does_not_depend_on(second_device: int) -> None:
    base = key()
    for changes in (
        {"options": {"concurrency": "7"}},
        {"options": {"tf32": "off", "optimization_level": "3", "precision_mode": "enforce_fp32"}},
        {"precision": "enforce_fp32"},
        {"plan": "p", "resident": frozenset({"y"})},
    ):
        assert key(**changes) == base
    shapes = {"a": SHAPES["x"], "b": SHAPES["x"]}
    assert key(shapes=shapes) == key(shapes=dict(reversed(shapes.items())))


def timed(trial: Trial, maker: Any, folder: Path | None) -> int:
    from emulated_gpu import counting

    with counting() as counts:
        trial.compile(maker, cache_folder=folder)
    return counts["timed tactics"]


def test_times_are_shared_between_models(trial: Trial, model: Make) -> None:
    folder = trial.folder / "cache"
    folder.mkdir()
    affine = trial.source(models.affine)
    first = timed(trial, affine, folder)
    assert first > 0
    assert timed(trial, affine, folder) == 0
    assert timed(trial, affine, None) == first
    more = model(
        [("Mul", ["x", "x"], ["a"]), ("Neg", ["a"], ["y"])], [("x", ["n", 3])], [("y", ["n", 3])]
    )
    assert timed(trial, more, folder) == 1, "only the operator that was not met before"
    assert timed(trial, affine, folder) == 0, "what was there is kept"
    assert len(os.listdir(folder)) == 1


@pytest.mark.parametrize("content", [b"", b"garbage", b"emulated timing cache\n{"])
def test_a_damaged_timing_cache_is_replaced(trial: Trial, content: bytes) -> None:
    folder = trial.folder / "cache"
    folder.mkdir()
    source = trial.source(models.affine)
    timed(trial, source, folder)
    [path] = folder.iterdir()
    path.write_bytes(content)
    assert timed(trial, source, folder) > 0
    assert timed(trial, source, folder) == 0


def test_a_cache_folder_that_is_gone_costs_only_time(trial: Trial) -> None:
    assert timed(trial, models.affine, trial.folder / "gone") > 0


def test_what_another_process_timed_meanwhile_is_kept(
    trial: Trial, model: Make, monkeypatch: pytest.MonkeyPatch, trt: Any
) -> None:
    folder = trial.folder / "cache"
    folder.mkdir()
    other = trial.source(model([("Neg", ["x"], ["y"])], [("x", [2])], [("y", [2])]))
    real = trt.Builder.build_serialized_network

    def build(self: Any, network: Any, config: Any) -> Any:
        monkeypatch.setattr(trt.Builder, "build_serialized_network", real)
        timed(trial, other, folder)
        return real(self, network, config)

    monkeypatch.setattr(trt.Builder, "build_serialized_network", build)
    affine = trial.source(models.affine)
    timed(trial, affine, folder)
    assert (timed(trial, affine, folder), timed(trial, other, folder)) == (0, 0)
