"""Ranks that `engine launch` started tell their observers of each request once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import rank_models

from engine.backends.doors import EXTENSIONS
from engine_testing import plugins

pytest.importorskip("click", reason="the command line is not installed")
pytest.importorskip("engine_cpu", reason="the backend that runs the parts is not installed")

NOTES = """
events = []

class Notes:
    observes = True

    def __init__(self, options):
        pass

    def on_build(self, event): events.append(("build", str(event.status)))
    def on_request(self, event): events.append(("request", str(event.status)))
    def on_close(self, event): events.append(("close", ""))
"""

MAIN = """
import json
from contextlib import suppress

import numpy as np
import engine
import rank_notes

model = engine.load("mlp.onnx")
token = engine.CancelToken()
token.cancel()
good, wrong = np.ones((4, 6), np.float32), np.ones((5, 1, 7), np.float32)
for request in range(40):
    with suppress(engine.InputError, engine.errors.Cancelled):
        x = wrong if request % 15 == 5 else good
        model.predict([x], cancel=token if request % 20 == 7 else None)
model.close()
print(json.dumps(rank_notes.events))
"""


def test_forty_requests_are_forty_events_on_each_rank(plugin_folder: Path, tmp_path: Path) -> None:
    plugins.install(
        plugin_folder, "rank_notes", "rank_notes:Notes", group=EXTENSIONS.group, source=NOTES
    )
    rank_models.sliced_mlp(tmp_path)
    (tmp_path / "main.py").write_text(MAIN)
    words = [sys.executable, "-m", "engine.cli", "launch", "-n", "2", "--log-dir", "logs"]
    done = subprocess.run(
        [*words, "main.py"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150,
        env={**os.environ, "PYTHONPATH": str(plugin_folder), "ENGINE_EXTENSIONS": "rank_notes"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        events = json.loads((tmp_path / f"logs/rank{rank}.out").read_text())
        assert [events[0], events[-1]] == [["build", "completed"], ["close", ""]]
        statuses = ["completed"] * 40
        statuses[5] = statuses[20] = statuses[35] = "failed"
        statuses[7] = statuses[27] = "cancelled"
        assert events[1:-1] == [["request", status] for status in statuses]
