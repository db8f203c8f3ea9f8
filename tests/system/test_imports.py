"""Signal handlers that raise in the first predicts cut off no import, which has a lock."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.host.child import command, environment
from engine_testing import models

# The first predicts of each kind, from which late imports come, under interrupts. Python's own
# finder is slow, so that most interrupts come in the middle of an import.
FIRST_PREDICTS = """
import importlib.machinery, signal, sys, threading, time
import numpy as np
import engine

path, target, kind, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
x = np.ones((2, 3), np.float32)
model = engine.load(path, target=target)
late = []

class Late:
    def find_spec(self, name, *_):
        late.append((name, threading.current_thread() is threading.main_thread()))
        time.sleep(0.002)

def wrong():
    for value in (x[0], x.astype(np.float64), "x", [[1.0]]):
        try:
            model.predict([value])
        except (ValueError, TypeError):
            pass

first = {
    "plain": lambda: [model(x) for _ in range(4)],
    "timeout": lambda: model.predict([x], timeout_s=60),
    "outputs": lambda: model.predict([x], [engine.Tensor(np.zeros((2, 3), np.float32))]),
    "wrong": wrong,
}[kind]
sys.meta_path.insert(0, Late())
signal.signal(signal.SIGALRM, signal.default_int_handler)
interrupts = 0
until = time.monotonic() + 300
while interrupts < count and time.monotonic() < until:
    for name in [n for n in list(sys.modules) if n.startswith(("engine.runtime.", "engine_cpu."))]:
        if late and name in dict(late):
            del sys.modules[name]  # so that it is imported once more
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4 * (1 + interrupts % 50), 0.002)
        while True:
            first()
    except KeyboardInterrupt:
        interrupts += 1
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            pass
sys.meta_path.pop(0)
done = []
def others():
    import wave  # nobody has
    done.append(model(x)["y"].tolist())
thread = threading.Thread(target=others, daemon=True)
thread.start()
thread.join(60)
print(done == [[[3.0] * 3] * 2], sorted({name for name, is_main in late if is_main}))
"""


def first_predicts(path: Path, target: str, kind: str, count: int) -> str:
    """Return what is left of the first predicts under so many interrupts."""
    done = subprocess.run(
        command("-c", FIRST_PREDICTS, str(path), target, kind, str(count)),
        capture_output=True, text=True, timeout=500, env=environment(), check=False,
    )  # fmt: skip
    return done.stdout + done.stderr[-2000:] * bool(done.returncode)


KINDS = ("plain", "timeout", "outputs", "wrong")


@pytest.mark.parametrize("kind", KINDS)
def test_interrupts_of_a_first_predict_hold_up_no_other_threads_import(
    kind, null_backend, tmp_path
):
    assert first_predicts(models.affine(tmp_path), null_backend, kind, 15) == "True []\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_interrupts_of_first_predicts_hold_up_no_import(kind, tmp_path):
    pytest.importorskip("engine_cpu", reason="needs the cpu backend")
    assert first_predicts(models.affine(tmp_path), "cpu", kind, 2500) == "True []\n"
