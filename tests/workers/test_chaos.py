"""A few seconds of bench/chaos.py: workers are killed under load, and nobody notices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "chaos.py"


@pytest.mark.slow
def test_nothing_is_lost_answered_twice_wrong_or_left_while_workers_are_killed() -> None:
    pytest.importorskip("engine_cpu", reason="needs the cpu backend")
    command = [sys.executable, str(BENCH), "--seconds", "6", "--every", "0.5", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] >= 5
    assert found["restarts"] >= 3
    assert found["answered"] > 100
