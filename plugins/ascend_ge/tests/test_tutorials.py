"""MindSpore Lite's tutorials for Ascend, their import changed, on emulated devices.

The scripts are those of examples/, to the letter: what they print is what the CPU gives. The one of
ranks is in test_distributed.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
DIGITS = EXAMPLES / "digits" / "digits.onnx"
MATMUL = ROOT / "tests" / "data" / "mindir" / "matmul_256.mindir"

# The first tutorial: one card, by the graph engine.
SINGLE_CARD = """
import sys
import numpy as np
import engine as mslite

context = mslite.Context()
context.target = ["ascend"]
context.ascend.device_id = 0
context.ascend.provider = "ge"

model = mslite.Model()
model.build_from_file(sys.argv[1], mslite.ModelType.MINDIR, context)

inputs = model.get_inputs()
inputs[0].set_data_from_numpy(np.load("x.npy"))
outputs = model.predict(inputs)
np.save("y.npy", outputs[0].get_data_to_numpy())
"""

# The tutorial on updates: the names are of operators, the file's path stands in quotes.
UPDATE = """
import sys
import numpy as np
import engine as mslite

context = mslite.Context()
context.target = ["ascend"]
context.ascend.device_id = 0
context.ascend.provider = sys.argv[2]

model = mslite.Model()
model.build_from_file(sys.argv[1], mslite.ModelType.MINDIR, context, "config.ini")

inputs = model.get_inputs()
inputs[0].set_data_from_numpy(np.load("x.npy"))
np.save("before.npy", model.predict(inputs)[0].get_data_to_numpy())

new_weights = [mslite.Tensor(np.load("data.npy"))]
model.update_weights([new_weights])
np.save("after.npy", model.predict(inputs)[0].get_data_to_numpy())
"""

pytestmark = pytest.mark.usefixtures("emulated_path")


@pytest.fixture(autouse=True)
def _three_devices(emulated_path: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EMULATED_ASCEND", json.dumps({"devices": 3}))
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))


def run(*words: object, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_card_with_provider_ge(tmp_path: Path) -> None:
    mindspores = np.load(MATMUL.with_suffix(".npz"))
    np.save(tmp_path / "x.npy", mindspores["in_0"])
    run("-c", SINGLE_CARD, MATMUL, cwd=tmp_path)
    np.testing.assert_allclose(
        np.load(tmp_path / "y.npy"), mindspores["out_0"], rtol=1e-4, atol=1e-4
    )


def test_many_cards_a_process_and_a_pipe_each(tmp_path: Path) -> None:
    folder = EXAMPLES / "multi_device"
    path = tmp_path / "denoiser.onnx"
    run(folder / "make_model.py", path, cwd=tmp_path)
    words = (path, "--devices", "0,1", "--target", "ascend", "--batch", 2, "--runs", 1)
    printed = run(folder / "processes.py", *words, cwd=tmp_path).splitlines()
    assert printed[:2] == ["Success to build model 0", "Success to build model 1"]
    means = [float(mean) for mean in printed[-1].removeprefix("mean of each sample: ").split()]
    chance = np.random.default_rng(1)
    latents = chance.standard_normal((2, 4, 64, 64), np.float32)
    text = chance.standard_normal((2, 77, 1024), np.float32)
    evaluator = ReferenceEvaluator(onnx.load(path))
    for place in range(2):
        sample = slice(place, place + 1)
        outputs: Any = evaluator.run(None, {"latents": latents[sample], "text": text[sample]})
        latents[sample] -= 0.1 * outputs[0]
    assert means == pytest.approx([float(m) for m in latents.mean(axis=(1, 2, 3))], abs=2e-6)
    assert re.fullmatch(r"Total predict time = [\d.]+ s", printed[-2])


def test_one_master_and_two_slaves_share_weights(tmp_path: Path) -> None:
    printed = run(EXAMPLES / "weight_sharing" / "weight_sharing.py", cwd=tmp_path)
    image = np.ones((1, 1, 8, 8), np.float32)
    model = onnx.load(DIGITS)
    arrays: Any = ReferenceEvaluator(model).run(None, {"image": image})
    found = dict(re.findall(r"^(process \d, \w+): (.*)$", printed, re.MULTILINE))
    assert len(found) == 3 * len(arrays)
    for index in range(3):
        for output, array in zip(model.graph.output, arrays, strict=True):
            numbers = [float(word) for word in found[f"process {index}, {output.name}"].split()]
            np.testing.assert_allclose(numbers, array.flatten()[:5], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("provider", "added"), [("", False), ("ge", True)])
def test_a_weight_is_updated(tmp_path: Path, provider: str, added: bool) -> None:
    common = "[common_context]\nvariable_weights_update = add\n" if added else ""
    (tmp_path / "config.ini").write_text(
        f'[ascend_context]\nvariable_weights_file="update_weight_name_list.txt"\n{common}'
    )
    (tmp_path / "update_weight_name_list.txt").write_text("Default/MatMul-op0\n")
    random = np.random.default_rng(0)
    x = random.standard_normal((8, 256)).astype(np.float32)
    data = random.standard_normal((256, 128)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "data.npy", data)
    run("-c", UPDATE, MATMUL, provider, cwd=tmp_path)
    before, after = np.load(tmp_path / "before.npy"), np.load(tmp_path / "after.npy")
    expected = before + x @ data if added else x @ data
    np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-3)
    assert not np.allclose(before, after)
