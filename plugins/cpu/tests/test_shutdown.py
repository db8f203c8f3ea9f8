"""Processes with ONNX Runtime in them end in time and with their own status."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine_testing import models

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
        timeout=150,
    )


def test_a_forked_child_that_exits_normally_ends_with_its_status(tmp_path: Path) -> None:
    in_child = [
        "sys.exit(7)",
        "model.close(); sys.exit(7)",
        "del model; sys.exit(7)",
        "engine.load(path).predict([x]); sys.exit(7)",
    ]
    code = f"""
for code in {in_child}:
    child = os.fork()
    if child == 0:
        exec(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    done = run(code, models.affine(tmp_path))
    assert (done.returncode, done.stdout) == (0, 4 * "7\n"), done.stderr


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


def test_a_child_that_drops_the_parents_thread_state_does_not_hang(tmp_path: Path) -> None:
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


SLOW = """
from engine_testing.making import graph
from pathlib import Path
size, steps = {size}, {steps}
names = ["x", *(f"v{{i}}" for i in range(1, steps)), "y"]
nodes = "\\n".join(f"{{b}} = MatMul ({{a}}, {{a}})" for a, b in zip(names, names[1:]))
kind = f"float[{{size}}, {{size}}]"
text = f"({{kind}} x) => ({{kind}} y) {{{{ {{nodes}} }}}}"
path = graph(Path(path).parent, "slow", text)
slow = engine.load(path)
big = np.zeros((size, size), np.float32)
threading.Thread(target=lambda: slow.predict([big], **{options}), daemon=True).start()
time.sleep(0.5)
print(time.monotonic())
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("size", "steps", "options"),
    [
        pytest.param(1500, 2000, {}, id="many nodes"),
        pytest.param(1500, 2000, {"timeout_s": 1000}, id="a deadline", marks=pytest.mark.slow),
        pytest.param(9000, 1, {}, id="one long node", marks=pytest.mark.slow),
    ],
)
def test_an_interpreter_that_ends_in_a_daemon_threads_long_predict_ends_soon_and_well(
    size: int, steps: int, options: dict[str, float], tmp_path: Path
) -> None:
    done = run(SLOW.format(size=size, steps=steps, options=options), models.affine(tmp_path))
    assert (done.returncode, done.stderr) == (7, "")
    assert time.monotonic() - float(done.stdout) < 20
