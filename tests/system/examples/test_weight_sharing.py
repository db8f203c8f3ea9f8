"""The tutorial's master and slaves run as they are, for another target, and leave nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from own_python import python

import engine

FOLDER = Path(__file__).parents[3] / "examples"
MODEL = FOLDER / "digits" / "digits.onnx"


def test_a_master_and_two_slaves_print_what_the_model_gives(tmp_path):
    script = FOLDER / "weight_sharing" / "weight_sharing.py"
    done = python(script, env={"ENGINE_TARGET": "cpu", "ENGINE_CACHE_DIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert set(done.stderr.splitlines()) == {"ENGINE_TARGET=cpu overrides the target ['ascend']"}
    with engine.load(MODEL) as model:
        outputs = model(image=np.ones((1, 1, 8, 8), np.float32))
    assert sorted(done.stdout.splitlines()) == sorted(
        f"process {index}, {name}: {' '.join(map(str, array.flatten()[:5]))}"
        for index in range(3)
        for name, array in outputs.items()
    )
    assert [*tmp_path.glob("v1/private/*"), *tmp_path.glob("v1/locks/*")] == []
