"""Four ranks' weights reach two ranks and one model, bit for bit."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from own_python import python

import engine
from engine import sharding

FOLDER = Path(__file__).parents[3] / "examples"
DIGITS = FOLDER / "digits"
SHAPES = {"weight0": (64, 256), "bias0": (256,), "weight1": (256, 10), "bias1": (10,)}


def test_the_weights_of_four_ranks_reach_two_and_one(tmp_path):
    done = python(FOLDER / "resharding" / "resharding.py", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    shown = (FOLDER / "resharding" / "README.md").read_text()
    [printed] = re.findall(r"```console\n\$ .*\n((?:.*\n)+?)```", shown)
    assert done.stdout == printed

    random = np.random.default_rng(0)
    full = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()
    }
    for rank in range(2):
        part = slice(128 * rank, 128 * rank + 128)
        expected = {
            "weight0": full["weight0"][:, part],
            "bias0": full["bias0"][part],
            "weight1": full["weight1"][part],
            "bias1": full["bias1"],
        }
        got = sharding.load_checkpoint(tmp_path / "sliced" / f"rank_{rank}" / f"digits{rank}.ckpt")
        assert sorted(got) == sorted(expected)
        for name, array in expected.items():
            value = got[name]
            assert isinstance(value, sharding.Parameter)
            np.testing.assert_array_equal(value.data, array)

    whole = onnx.load(DIGITS / "digits.onnx")
    for tensor in whole.graph.initializer:
        if tensor.name in full:
            tensor.CopyFrom(numpy_helper.from_array(full[tensor.name], tensor.name))
    onnx.save(whole, tmp_path / "whole.onnx")
    images = np.load(DIGITS / "test_images.npz")["image"]
    expected = engine.load(tmp_path / "whole.onnx")(image=images)
    for name in ("from_trained", "from_sliced"):
        got = engine.load(tmp_path / f"{name}.onnx")(image=images)
        for output, array in expected.items():
            assert got[output].tobytes() == array.tobytes(), (name, output)
