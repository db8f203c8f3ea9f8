"""The tutorial's script on target gpu as several ranks, emulated: it gives what the CPU does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import engine

pytestmark = pytest.mark.slow
DEVICES = 2
FOLDER = Path(__file__).parents[3] / "examples" / "distributed"
SCRIPT = str(FOLDER / "main.py")
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distributed")
    subprocess.run([sys.executable, FOLDER / "make_model.py", folder], check=True, timeout=120)
    return folder


def printed(*words: object) -> list[list[float]]:
    """Run a command; return the numbers of each rank's line of output data."""
    left_out = ("ENGINE_TARGET", "ENGINE_RANK")
    done = subprocess.run(
        list(map(str, words)),
        env={name: value for name, value in os.environ.items() if name not in left_out},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "overrides" not in done.stderr, "it ran on the GPU, emulated"
    lines = [line for line in done.stdout.splitlines() if "output data is: " in line]
    return [[float(word) for word in line.partition("is: ")[2].split()] for line in lines]


def expect_product(folder: Path, found: list[list[float]]) -> None:
    """Compare with the whole model on the CPU, by onnx's own evaluator."""
    whole = ReferenceEvaluator(onnx.load(folder / "Matmul.onnx"))
    [result] = whole.run(["y"], {"x": np.ones((4, 128), np.float32)})  # type: ignore[misc]
    y = result.flatten()[:10]
    assert len(found) == 2
    assert found[0] == found[1], "the same bits on both ranks"
    np.testing.assert_allclose(found[0], y, atol=1e-5 * np.abs(y).max())


def test_engine_launch(files: Path) -> None:
    words = ["-m", "engine", "launch", "-n", 2, SCRIPT, f"--model_path={files}/Matmul.onnx"]
    expect_product(files, printed(sys.executable, *words))


@pytest.mark.mpi
@pytest.mark.skipif(not MPIRUN, reason='no mpirun: pip install "inference-engine[mpi]"')
def test_mpirun(files: Path) -> None:
    words = ["-n", 2, sys.executable, SCRIPT, f"--model_path={files}/Matmul.onnx"]
    expect_product(files, printed(MPIRUN, *words))


def test_a_model_on_many_devices(tmp_path: Path) -> None:
    """MultiDeviceRunner has a process for each emulated GPU, and joins what they give."""
    from engine_testing import models

    context = engine.Context()
    context.target = ["gpu"]
    x = np.arange(21, dtype=np.float32).reshape(7, 3)
    path = models.affine(tmp_path)
    with engine.MultiDeviceRunner(str(path), [0, 1], context) as runner:
        [y] = runner.predict([x])
        workers = runner.statistics().workers
    np.testing.assert_array_equal(np.asarray(y.get_data_to_numpy()), 2 * x + 1)
    assert [worker.device_id for worker in workers] == [0, 1]
    assert len({worker.pid for worker in workers} | {os.getpid()}) == 3
