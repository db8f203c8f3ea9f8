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

BENCH = """
import contextlib, io, json, sys
import engine
from engine.cli import main

def command(*options):
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = main(["bench", "mlp.onnx", *options])
    return status, out.getvalue(), errors.getvalue()

refused = [command("--duration", "1"), command("--clients", "2")]
measured = command("--json")
model = engine.load("mlp.onnx")
errors = []
for wrong in ({"duration_s": 1}, {"clients": 2}):
    try:
        engine.bench(model, **wrong)
    except ValueError as error:
        errors.append(str(error))
runs = [engine.bench(model).runs, engine.bench(model, runs=7, warmup_s=0).runs]
print(json.dumps({"refused": refused, "measured": measured, "errors": errors, "runs": runs}))
"""
PARTS = "the model is one of 2 ranks' parts, which predict as often"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list]]:
    """The findings of each of two ranks."""
    folder: Path = tmp_path_factory.mktemp("bench")
    rank_models.sliced_mlp(folder)
    (folder / "main.py").write_text(BENCH)
    words = [sys.executable, "-m", "engine.cli", "launch", "-n", "2", "--log-dir", "logs"]
    done = subprocess.run(
        [*words, "main.py"],
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"logs/rank{rank}.out").read_text()) for rank in range(2)]


def test_ranks_are_measured_by_runs_though_neither_is_told_how_many(ranks):
    for rank in ranks:
        status, out, said = rank["measured"]
        result = json.loads(out)
        assert (status, result["runs"], result["clients"]) == (0, 100, 1)
        assert f"note: {PARTS} as each" in said
        assert "10 runs to warm up and 100 measured (--runs)" in said


def test_what_ranks_would_end_at_different_runs_is_refused(ranks):
    for rank in ranks:
        for option, (status, _, said) in zip(("--duration", "--clients"), rank["refused"]):
            assert status == 2
            assert f"{option}: the model is one of 2 ranks' parts" in said
            assert "use --runs N instead" in said


def test_the_function_measures_ranks_so_too(ranks):
    for rank in ranks:
        assert rank["runs"] == [100, 7]
        for name, error in zip(("duration_s", "clients"), rank["errors"], strict=True):
            assert error.startswith(f"{name}: {PARTS}")
