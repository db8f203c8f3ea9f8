"""Fourier transforms that differ from ONNX Runtime's by design, and say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from engine import Model

Build = Callable[..., Model]
node = helper.make_node

SOUND = np.random.default_rng(0).standard_normal((1, 4000, 1)).astype(np.float32)


@pytest.mark.parametrize("operator", ["DFT", "STFT"])
def test_a_transform_says_that_it_is_nearer_to_the_truth_than_onnxruntime(
    build: Build, tmp_path: Path, operator: str
) -> None:
    constants = {"step": np.int64(160), "window": np.hanning(400).astype(np.float32)}
    if operator == "DFT":
        nodes = [node("DFT", ["x"], ["y"], axis=1)]
        expected = np.fft.fft(SOUND[..., 0].astype(np.float64), axis=1)
        constants = {}
    else:
        nodes = [node("STFT", ["x", "step", "window"], ["y"], onesided=1)]
        frames = np.lib.stride_tricks.sliding_window_view(SOUND[0, :, 0], 400)[::160]
        expected = np.fft.rfft(frames * constants["window"].astype(np.float64), axis=1)[None]
    model = build(nodes, ["x:float[1,4000,1]"], ["y:float[]"], 17, constants)
    found = model(x=SOUND)["y"]
    [raw] = ort.InferenceSession(str(tmp_path / "model.onnx")).run(None, {"x": SOUND})

    def error(values: np.ndarray) -> float:  # type: ignore[type-arg]
        given = values[..., 0] + 1j * values[..., 1]
        return float(np.abs(given - expected).max() / np.abs(expected).max())

    assert error(found) < 1e-6
    assert error(raw) > 10 * error(found)
    [reason] = [place.reason for place in model.placement if place.op_type == operator]
    assert "nearer to the truth" in reason
    profile = model.profile([SOUND], 1)
    assert len(profile.kernels) > 1
    assert all(kernel.nodes for kernel in profile.kernels)
