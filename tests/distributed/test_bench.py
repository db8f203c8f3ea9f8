"""Measuring ranks: each predicts as often as the others, whatever its clock says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import rank_models

pytest.importorskip("click", reason="the command line is not installed")
pytest.importorskip("engine_cpu", reason="the backend that runs the parts is not installed")

LIMIT_S = 150


def launch(folder: Path, *program: object) -> subprocess.CompletedProcess[str]:
    rank_models.sliced_mlp(folder)
    return subprocess.run(
        [sys.executable, "-m", "engine.cli", "launch", "-n", "2", *map(str, program)],
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_S,
        check=False,
    )


def test_ranks_are_measured_by_runs_though_neither_is_told_how_many(tmp_path):
    done = launch(tmp_path, "--log-dir", "logs", "-m", "engine", "bench", "mlp.onnx", "--json")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        result = json.loads((tmp_path / f"logs/rank{rank}.out").read_text())
        assert (result["runs"], result["clients"]) == (100, 1)
        said = (tmp_path / f"logs/rank{rank}.err").read_text()
        assert "note: the model is one of 2 ranks' parts, which predict as often as each" in said
        assert "10 runs to warm up and 100 measured (--runs)" in said


@pytest.mark.parametrize(
    ("option", "value"),
    [("--duration", "1"), ("--clients", "2")],
)
def test_what_ranks_would_end_at_different_runs_is_refused(tmp_path, option, value):
    done = launch(tmp_path, "-m", "engine", "bench", "mlp.onnx", option, value)
    assert done.returncode == 2
    assert f"{option}: the model is one of 2 ranks' parts" in done.stderr
    assert "use --runs N instead" in done.stderr


RANK = """
import engine

model = engine.load("mlp.onnx")
for wrong in ({"duration_s": 1}, {"clients": 2}):
    try:
        engine.bench(model, **wrong)
    except ValueError as error:
        print(error)
print(engine.bench(model).runs, engine.bench(model, runs=7, warmup_s=0).runs)
"""


def test_the_function_measures_ranks_so_too(tmp_path):
    (tmp_path / "main.py").write_text(RANK)
    done = launch(tmp_path, "main.py")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        for name in ("duration_s", "clients"):
            line = f"[{rank}] {name}: the model is one of 2 ranks' parts, which predict as often"
            assert line in done.stdout
        assert f"[{rank}] 100 7" in done.stdout
