"""Compiling: settings reach the builder, progress and cancel, and what goes wrong half-way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from engine.errors import BackendUnavailable, Cancelled, ModelError
from engine.types import CancelToken, Device, ShapeRange
from engine_testing import models
from engine_testing.level import Trial

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("options", "tf32", "pools", "level"),
    [
        ({}, False, {}, 3),
        ({"tf32": "on"}, True, {}, 3),
        ({"workspace_bytes": "64MiB", "optimization_level": "1"}, False, {"WORKSPACE": 2**26}, 1),
    ],
    ids=["float32 means float32", "tf32", "limits"],
)
def test_settings_reach_the_builder(
    options: dict[str, str], tf32: bool, pools: dict[str, int], level: int, trial: Trial, trt: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    real, built = trt.Builder.build_serialized_network, []

    def build(self: Any, network: Any, config: Any) -> Any:
        built.append(config.builder_optimization_level)
        assert network._flags == 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        assert (trt.BuilderFlag.TF32 in config._flags) is tf32
        assert {pool.name: size for pool, size in config._pools.items()} == pools
        return real(self, network, config)

    monkeypatch.setattr(trt.Builder, "build_serialized_network", build)
    trial.compile(models.affine, options=options)
    assert built == [level]


def test_inputs_get_the_bounds_they_were_compiled_for(trial: Trial) -> None:
    [x] = trial.compile(models.affine).inputs
    assert (x.shape, x.bounds) == (("batch", 3), ((1, 32), None))
    shapes = {"x": ShapeRange((2, 3), (4, 3), (8, 3))}
    [x] = trial.compile(models.affine, shapes=shapes).inputs
    assert (x.shape, x.bounds) == (("batch", 3), ((2, 8), None))
    [x] = trial.compile(models.affine, options={"batch_range": "3~3~3"}).inputs
    assert (x.shape, x.bounds) == ((3, 3), ())


def test_progress_is_told_phase_by_phase(trial: Trial) -> None:
    told: list[tuple[str, int, int | None]] = []
    trial.compile(models.affine, progress=lambda *step: told.append(step))
    phases = list(dict.fromkeys(phase for phase, _, _ in told))
    assert len(phases) > 1
    for phase in phases:
        done = [step for name, step, _ in told if name == phase]
        [total] = {total for name, _, total in told if name == phase}
        assert done[0] == 0
        assert done == sorted(done)
        assert done[-1] == total


def test_cancelling_stops_the_build_and_leaves_nothing(trial: Trial) -> None:
    token = CancelToken()
    told: list[int] = []

    def progress(phase: str, done: int, total: int | None) -> None:
        told.append(done)
        if len(told) == 3:
            token.cancel()

    with pytest.raises(Cancelled, match=r"affine\.onnx"):
        trial.compile(models.affine, progress=progress, cancel=token)
    assert len(told) < 8, "it went on after it was cancelled"


def test_an_error_in_the_progress_callback_comes_back(
    trial: Trial, capfd: pytest.CaptureFixture[str]
) -> None:
    class Odd(Exception):
        pass

    def progress(phase: str, done: int, total: int | None) -> None:
        if done == 1:
            raise Odd("from the callback")

    with pytest.raises(Odd, match="from the callback"):
        trial.compile(models.affine, progress=progress)
    assert tuple(capfd.readouterr()) == ("", "")  # TensorRT prints what it catches itself


def test_too_little_memory_to_build_is_said(trial: Trial, emulated: Any) -> None:
    with emulated.fail("build"), pytest.raises(BackendUnavailable) as caught:
        trial.compile(models.heavy)
    message = str(caught.value)
    assert message.startswith("gpu:0: out of memory while compiling")
    assert "heavy.onnx" in message
    assert "set workspace_bytes" in message


def test_too_little_memory_for_the_weights_is_said(trial: Trial, emulated: Any) -> None:
    with (
        emulated.fail("deserialize"),
        pytest.raises(BackendUnavailable, match="out of memory while load"),
    ):
        trial.compile(models.heavy)


def test_a_model_larger_than_the_device_is_said(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, emulated: Any
) -> None:
    monkeypatch.setattr(emulated.MACHINE.devices[0], "total", 2**20)
    with pytest.raises(BackendUnavailable, match=f"1048576 of {2**20} bytes are free"):
        trial.compile(models.heavy)  # 4 MiB of weights


def test_shapes_that_the_model_cannot_have_are_named(trial: Trial) -> None:
    wanted = r"for the shapes 'x' \[1\]\.\.\[5\], usually \[3\].*kOPT values for profile 0 violate"
    with pytest.raises(ModelError, match=wanted):
        trial.compile(models.pairs, options={"batch_range": "1~3~5"})


def test_shapes_that_tensorrt_does_not_take_are_named(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, trt: Any
) -> None:
    def set_shape(*arguments: Any) -> None:
        raise RuntimeError("Shape provided for min is inconsistent with other shapes.")

    real = trt.IOptimizationProfile.set_shape
    monkeypatch.setattr(trt.IOptimizationProfile, "set_shape", set_shape)
    wanted = (
        r"affine\.onnx: TensorRT does not take the model for the shapes 'x' \[1, 3\]\.\..*min is"
    )
    with pytest.raises(ModelError, match=wanted):
        trial.compile(models.affine)
    monkeypatch.setattr(trt.IOptimizationProfile, "set_shape", real)
    monkeypatch.setattr(trt.IOptimizationProfile, "__bool__", lambda self: False)
    with pytest.raises(ModelError, match="profile->isValid"):
        trial.compile(models.affine)


def test_a_second_device_is_used(trial: Trial, second_device: int, emulated: Any) -> None:
    running = trial.open(models.heavy, device=Device("gpu", second_device))
    running.predict(np.ones((1, 1024), np.float32))
    assert emulated.MACHINE.devices[0].used == 0
    assert emulated.MACHINE.devices[second_device].used > 2**22
    assert {each.device for each in running.executable.placement()} == {f"gpu:{second_device}"}


def test_float16_halves_the_weights_and_keeps_inputs_and_outputs(trial: Trial) -> None:
    x = np.random.default_rng(0).standard_normal((4, 1024)).astype(np.float32)
    full = trial.compile(models.heavy)
    half = trial.open(models.heavy, precision="preferred_fp16")
    assert half.executable.memory().weights_bytes * 2 == full.memory().weights_bytes
    [y] = half.predict(x)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, x, rtol=2**-10)
    assert "float16" in half.executable.placement()[0].reason


def test_float16_leaves_out_what_it_would_spoil(trial: Trial, model: Make) -> None:
    x = np.float32([[1, 2], [3, 4]])
    big = np.float32([[1e6, 0], [0, 1e6]])  # more than float16 can hold
    maker = model(
        [("MatMul", ["x", "w"], ["a"]), ("MatMul", ["a", "big"], ["b"]), ("Exp", ["x"], ["e"])],
        [("x", [2, 2])],
        [("b", [2, 2]), ("e", [2, 2]), ("a", [2, 2])],
        {"w": np.eye(2, dtype=np.float32), "big": big},
    )
    b, e, a = trial.open(maker, precision="preferred_fp16").predict(x)
    np.testing.assert_array_equal(a, x)
    np.testing.assert_array_equal(b, x * np.float32(1e6))
    np.testing.assert_allclose(e, np.exp(x), rtol=1e-6)


def test_float16_falls_back_where_tensorrt_refuses_it(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, trt: Any
) -> None:
    real = trt.OnnxParser.parse
    refusals = iter([True, False])

    def parse(self: Any, model: Any, path: Any = None) -> bool:
        return False if next(refusals) else real(self, model, path)

    monkeypatch.setattr(trt.OnnxParser, "parse", parse)
    running = trial.open(models.affine, precision="preferred_fp16")
    x = np.float32([[0.1, 0.2, 0.3]])
    [y] = running.predict(x)
    np.testing.assert_array_equal(y, 2 * x + 1)
    reason = running.executable.placement()[0].reason
    assert "in float32: TensorRT refuses it in float16" in reason


def test_float16_keeps_the_weights_of_external_files(trial: Trial) -> None:
    x = np.ones((2, 256), np.float32)
    [y] = trial.open(models.external, precision="preferred_fp16").predict(x)
    np.testing.assert_array_equal(y, x + np.arange(256, dtype=np.float32))


def test_builds_in_several_threads_do_not_mix_up_their_errors(trial: Trial) -> None:
    failures: dict[int, str] = {}
    barrier = threading.Barrier(4)
    source = trial.source(models.pairs)

    def build(number: int) -> None:
        barrier.wait()
        dims = {"batch_range": f"1~{2 * number + 1}~{2 * number + 5}"}
        try:
            trial.build(source, trial.options(options=dims))
        except ModelError as error:
            failures[number] = str(error)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(build, range(4)))
    for number in range(4):
        assert failures[number].count("kOPT values") == 1
