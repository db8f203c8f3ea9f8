"""The tutorial of many devices runs as it is, and the runner gives what it gives."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from own_python import python

FOLDER = Path(__file__).parents[3] / "examples" / "multi_device"


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return python(FOLDER / script, *arguments, env={"ENGINE_TARGET": "cpu"})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("multi_device") / "denoiser.onnx"
    done = run("make_model.py", path)
    assert (done.returncode, done.stdout) == (0, f"wrote {path}\n"), done.stderr
    return path


def expected(path: Path, batch: int, runs: int) -> list[float]:
    """The means that the scripts print, by onnx's own evaluator, one sample at a time."""
    evaluator = ReferenceEvaluator(onnx.load(path))
    chance = np.random.default_rng(1)
    latents = chance.standard_normal((batch, 4, 64, 64), np.float32)
    text = chance.standard_normal((batch, 77, 1024), np.float32)
    for _ in range(runs):
        for place in range(batch):
            sample = slice(place, place + 1)
            inputs = {"latents": latents[sample], "text": text[sample]}
            outputs: Any = evaluator.run(None, inputs)
            latents[sample] -= 0.1 * outputs[0]
    return [float(mean) for mean in latents.mean(axis=(1, 2, 3))]


def printed(output: str) -> list[float]:
    *_, time, means = output.splitlines()
    assert re.fullmatch(r"Total predict time = [\d.]+ s", time)
    return [float(mean) for mean in means.removeprefix("mean of each sample: ").split()]


def test_the_tutorials_processes_build_predict_and_end(model):
    done = run("processes.py", model, "--devices", "0,1", "--batch", 2, "--runs", 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == [f"Success to build model {i}" for i in range(2)]
    assert printed(done.stdout) == pytest.approx(expected(model, 2, 2), abs=2e-6)


def test_a_process_that_cannot_build_says_why(tmp_path):
    done = run("processes.py", tmp_path / "missing.onnx")
    assert done.returncode == 1
    assert (
        "RuntimeError: a process failed: build_from_file failed, model_path does not" in done.stderr
    )


@pytest.mark.parametrize("batch", [3, 4])
def test_the_runner_gives_what_one_process_gives(model, batch):
    done = run("multi_device.py", model, "--devices", "0,1", "--batch", batch, "--runs", 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert printed(done.stdout) == pytest.approx(expected(model, batch, 1), abs=2e-6)
