"""How processes end that have ONNX Runtime in them: in time, and with their own status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.testing import models

BEGIN = """
import copy, os, sys, threading, time
import numpy as np
import engine
path = sys.argv[1]
x = np.ones((2, 3), np.float32)
model = engine.load(path)
model.predict([x])
"""


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BEGIN + code, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "in_child",
    [
        "sys.exit(7)",
        "model.close(); sys.exit(7)",
        "del model; sys.exit(7)",
        "engine.load(path).predict([x]); sys.exit(7)",
    ],
)
def test_a_forked_child_that_exits_normally_ends_with_its_status(
    in_child: str, tmp_path: Path
) -> None:
    code = f"""
child = os.fork()
if child == 0:
    {in_child}
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run(code, models.affine(tmp_path))
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


def test_what_c_has_not_written_yet_is_written_when_a_forked_child_ends(tmp_path: Path) -> None:
    code = """
import ctypes
if os.fork() == 0:
    ctypes.CDLL(None).printf(b"from C\\n")
    sys.exit(0)
os.wait()
"""
    done = run(code, models.affine(tmp_path))
    assert (done.returncode, done.stdout) == (0, "from C\n"), done.stderr


def test_a_child_that_drops_the_parents_lane_does_not_hang(tmp_path: Path) -> None:
    code = """
try:
    model.predict([x.astype("float64")])
except engine.InputError as error:
    kept = error  # its traceback holds what the predict ran in
model.close()
child = os.fork()
if child == 0:
    del kept
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run(code, models.affine(tmp_path))
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


def test_an_interpreter_that_ends_while_daemon_threads_predict_ends_well(tmp_path: Path) -> None:
    code = """
def forever():
    while True:
        model.predict([x])

for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.3)
"""
    done = run(code, models.affine(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
