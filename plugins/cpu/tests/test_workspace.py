"""Sessions that share the memory of their activations."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

_CHILD = """
import sys, ctypes, gc
from pathlib import Path
import numpy as np

import engine
from engine_testing.heavy_models import wide


def anonymous_mb():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(l.split()[1]) / 1024 for l in lines if l.startswith("Anonymous:"))


def expected(terms, x):
    total, term = np.zeros_like(x), x
    for _ in range(terms):
        term = np.sin(term)
        total += term
    return total.max()


workspace, folder = sys.argv[1:]
config = {"cpu_context": {"workspace": workspace}}
x = np.linspace(0, 3, 1 << 20, dtype=np.float32)
kept, grown = [], []
for number, terms in enumerate([12, 10, 8, 6]):
    path = wide(Path(folder) / f"wide{number}.onnx", terms)
    built = engine.load(path, threads=1, config=config)
    before, wanted = anonymous_mb(), expected(terms, x)
    for _ in range(3):
        [y] = built(x=x).values()
        np.testing.assert_allclose(y, wanted, rtol=1e-5)
    grown.append(anonymous_mb() - before)
    kept.append(built)
start = anonymous_mb()
for built in kept:
    built.close()
del kept, built, y  # a result lies in the arena, and holds it
print(*grown, start - anonymous_mb())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc/self/smaps_rollup")
@pytest.mark.parametrize("workspace", [pytest.param("own", marks=pytest.mark.slow), "process"])
def test_the_next_model_uses_what_the_last_one_has_freed(workspace: str, tmp_path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_CHILD), workspace, str(tmp_path)],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    first, *further, given_back = map(float, child.stdout.split())
    assert first > 40, "twelve activations of 4 MiB"
    if workspace == "own":
        assert min(further) > 20
    else:
        assert max(further) < 5, "each needs less than the first"
    assert given_back > 0.8 * (first + sum(further)), "nothing is kept for models that are gone"
