"""Some seconds of bench/serve_chaos.py: workers are killed under load, and no client notices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench" / "serve_chaos.py"


@pytest.mark.slow
def test_nothing_is_lost_wrong_or_left_while_workers_die_models_reload_and_clients_vanish() -> None:
    command = [sys.executable, str(BENCH), "--seconds", "10", "--clients", "16", "--every", "0.5"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)
    assert found["answered"] > 100
    assert found["kills"] >= 5
    for what in ("lost", "wrong", "left_descriptors", "left_processes", "left_in_shm", "status"):
        assert (what, found[what]) == (what, 0), done.stderr
