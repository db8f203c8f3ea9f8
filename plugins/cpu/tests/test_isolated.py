"""The conformance kit over models that ONNX Runtime runs in a process of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import engine
from engine.backends import Backend
from engine.backends.isolation.backend import isolated
from engine.model.model import model_state
from engine_cpu.conformance import TestCpu as Cpu
from engine_testing import models


@pytest.mark.slow
def test_a_model_in_a_process_of_its_own_gives_the_same_bits_on_the_command_line_too(
    tmp_path: Path,
) -> None:
    x = np.random.default_rng(0).standard_normal((5, 32)).astype("f")
    np.save(tmp_path / "x.npy", x)
    path = models.dense(tmp_path)
    isolate = {"common_context": {"isolate": "true"}}
    with engine.load(path) as here, engine.load(path, config=isolate) as there:
        for rows in (5, 5, 5, 2):
            assert there(x[:rows])["y"].tobytes() == here(x[:rows])["y"].tobytes()
        worker = model_state(there).plan.executable.process().worker
        os.kill(worker.pid, signal.SIGKILL)
        assert worker.wait(60)
        assert there(x)["y"].tobytes() == here(x)["y"].tobytes()
    command = [sys.executable, "-m", "engine.cli", "run", str(path), "-i", f"x={tmp_path}/x.npy"]
    plain = subprocess.run([*command, "--json"], capture_output=True, check=True, text=True)
    apart = subprocess.run(
        [*command, "--json", "--set", "common_context.isolate=true"],
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    assert apart.stderr == plain.stderr == ""
    first, second = (json.loads(done.stdout)["outputs"] for done in (plain, apart))
    assert first == second


class IsolatedTrial(Cpu.trials):
    """Opens what a test asks for in a worker."""

    def __init__(self, backend: Backend, *more: object) -> None:
        super().__init__(isolated(backend), *more)  # type: ignore[arg-type]


@pytest.mark.slow
class TestIsolatedCpu(Cpu):
    trials = IsolatedTrial

    @pytest.fixture(autouse=True)
    def isolate(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("engine.plan.options._is_true", lambda *setting: True)


del Cpu
