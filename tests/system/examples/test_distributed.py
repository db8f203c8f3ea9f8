"""The distributed tutorials' script runs in each form, and every rank has the whole product."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from own_python import python

import engine

FOLDER = Path(__file__).parents[3] / "examples" / "distributed"
SCRIPT = str(FOLDER / "main.py")
LIMIT_S = 120
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distributed")
    python(FOLDER / "make_model.py", folder, check=True, timeout=LIMIT_S)
    table = folder / "rank_table.json"  # one that no test beside this one has
    table.write_text(table.read_text().replace("127.0.0.1", f"host-{uuid4().hex}"))
    return folder


def started(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        list(map(str, words)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ENGINE_TARGET": "cpu"},
    )


def printed(*ranks: subprocess.Popen[str]) -> list[list[float]]:
    """Return the numbers of each rank's line of output data."""
    text = ""
    for rank in ranks:
        out, errors = rank.communicate(timeout=LIMIT_S)
        assert rank.returncode == 0, errors
        text += out
    lines = [line for line in text.splitlines() if "output data is: " in line]
    return [[float(word) for word in line.partition("is: ")[2].split()] for line in lines]


def expect_product(folder: Path, found: list[list[float]]) -> None:
    with engine.load(folder / "Matmul.onnx", target="cpu") as whole:
        y = whole(x=np.ones((4, 128), np.float32))["y"].flatten()[:10]
    assert len(found) == 2
    assert found[0] == found[1], "the same bits on both ranks"
    np.testing.assert_allclose(found[0], y, atol=1e-5 * np.abs(y).max())


def test_two_background_processes_with_a_rank_table(files):
    ranks = [
        started(
            sys.executable, SCRIPT, f"--model_path={files}/Matmul{rank}.onnx",
            f"--device_id={rank}", f"--rank_id={rank}", f"--config_file={files}/config.ini",
        )
        for rank in range(2)
    ]  # fmt: skip
    expect_product(files, printed(*ranks))


@pytest.mark.slow
def test_engine_launch(files):
    words = ["-m", "engine", "launch", "-n", "2", SCRIPT, f"--model_path={files}/Matmul.onnx"]
    expect_product(files, printed(started(sys.executable, *words)))


@pytest.mark.mpi
@pytest.mark.skipif(not MPIRUN, reason='no mpirun: pip install "inference-engine[mpi]"')
def test_mpirun(files):
    words = ["-n", "2", sys.executable, SCRIPT, f"--model_path={files}/Matmul.onnx"]
    expect_product(files, printed(started(MPIRUN, *words)))
