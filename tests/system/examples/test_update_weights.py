"""The script of MindSpore Lite's tutorial on dynamic weight update, its import changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from own_python import python

ROOT = Path(__file__).parents[3]
MINDIR = ROOT / "tests" / "data" / "mindir" / "matmul_256.mindir"

# The names are of the operators: the tutorial's file has them so. Upstream reads it from where the
# script runs.
CONFIG = """\
[ascend_context]
variable_weights_file="update_weight_name_list.txt"
"""
SCRIPT = """\
import sys
import numpy as np
import engine as mslite

# init context, and set target is ascend
context = mslite.Context()
context.target = ["ascend"]
context.ascend.device_id = 0

# build model from file
model = mslite.Model()
model.build_from_file(sys.argv[1], mslite.ModelType.MINDIR, context, "config.ini")

inputs = model.get_inputs()
inputs[0].set_data_from_numpy(np.load("x.npy"))
np.save("before.npy", model.predict(inputs)[0].get_data_to_numpy())

# update weights
data = np.load("data.npy")
new_weight = mslite.Tensor(data)
new_weights = [new_weight]
model.update_weights([new_weights])
np.save("after.npy", model.predict(inputs)[0].get_data_to_numpy())
"""


def test_the_tutorials_script_updates_a_weight_on_the_cpu(tmp_path):
    (tmp_path / "config.ini").write_text(CONFIG)
    (tmp_path / "update_weight_name_list.txt").write_text("Default/MatMul-op0\n")
    random = np.random.default_rng(0)
    x = random.standard_normal((8, 256)).astype(np.float32)
    data = random.standard_normal((256, 128)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "data.npy", data)
    done = python("-c", SCRIPT, MINDIR, cwd=tmp_path, env={"ENGINE_TARGET": "cpu"})
    assert done.returncode == 0, done.stderr
    assert "has no effect" not in done.stderr
    before, after = np.load(tmp_path / "before.npy"), np.load(tmp_path / "after.npy")
    np.testing.assert_allclose(after, x @ data, rtol=1e-4, atol=1e-4)
    assert not np.allclose(before, after)
