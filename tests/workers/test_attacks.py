"""Short runs of bench/attacks.py and bench/slow_ends.py: nothing is lost, wrong or left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
PROCESSES = {"build", "store", "starts", "interrupt", "handler"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def found(script: str, *arguments: str) -> Any:
    pytest.importorskip("engine_cpu", reason="needs the cpu backend")
    command = [sys.executable, str(BENCH / script), *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_attacks_on_processes_ranks_and_the_cache_crash_lose_and_change_nothing() -> None:
    rows = found("attacks.py", "--times", "4")  # `cache` and `strangers` where there are users
    assert rows.keys() >= PROCESSES
    for row in rows.values():
        assert row["runs"] >= 4
        assert (row["crashes"], row["lost"], row["wrong"]) == (0, 0, 0)


def test_workers_that_exit_slowly_end_by_themselves_and_leave_nothing() -> None:
    outcome = found("slow_ends.py", "--slow", "3", "--busy", "0")
    assert not any(outcome["left"].values())
    cases = outcome["cases"]
    assert (cases["isolated"]["ended"], cases["isolated"]["killed"]) == (1, 0)
    assert (cases["runner"]["ended"], cases["runner"]["killed"]) == (2, 0)
    assert not any(case["problem"] for case in cases.values())
