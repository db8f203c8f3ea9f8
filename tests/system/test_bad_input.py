"""Damaged and hostile files through the whole stack: an error each, no crash, no hang, no bloat.

Files that the core refuses never reach a runtime. Files that are valid ONNX but ask a runtime for
absurd memory or time do; they are run in a process of limited memory and must end in an error.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import hostile
import numpy as np
import pytest
from own_python import python

import engine
from engine_testing import encode, models

CASES = dict(hostile.cases())
BOMBS = dict(hostile.bombs())
REFUSED_BY_EACH = (
    "empty", "missing", "pipe", "truncated", "no_graph", "cycle", "tensor_too_short",
    "external_link_out", "deep_subgraphs", "encrypted_mindir",
)  # fmt: skip
"""One for each part of the reader that refuses; tests/formats/test_hostile.py has all of them."""

MEMORY_BYTES = 4 << 30
"""Address space of a process that runs a bomb; a healthy run takes well under 1 GiB of it."""

BOMB = """
import json, resource, sys
import numpy as np
import engine
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
result = {"kind": "ran"}
try:
    with engine.load(sys.argv[1]) as model:
        for _ in range(2):
            model.predict([np.ones(4, np.float32)], timeout_s=5)
except engine.EngineError as error:
    result = {"kind": type(error).__name__, "text": str(error)}
result["peak_kb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps(result))
"""


@pytest.mark.parametrize("name", REFUSED_BY_EACH)
def test_a_hostile_file_is_a_model_error_that_names_it(name, tmp_path):
    path = CASES[name](tmp_path)
    with pytest.raises(engine.ModelError, match="build_from_file failed") as caught:
        engine.Model().build_from_file(str(path), engine.ModelType.MINDIR)
    message = str(caught.value)
    assert str(path) in message or path.name in message
    assert "\n" not in message


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_model_that_asks_for_absurd_memory_or_time_ends_in_an_error(name, tmp_path):
    path = BOMBS[name](tmp_path)
    done = python("-c", BOMB, path, MEMORY_BYTES)
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr[-2000:]}"
    result = json.loads(done.stdout)
    assert result["kind"] in ("ModelError", "DeadlineExceeded"), result


@pytest.mark.parametrize(
    "block", [pytest.param(b, marks=pytest.mark.slow) for b in range(1, 40)] + [0]
)
def test_randomly_damaged_models_run_or_are_refused(block, tmp_path):
    for seed in range(100 * block, 100 * (block + 1)):
        damage(seed, tmp_path)


def damage(seed: int, folder: Path) -> None:
    """Damage a real model in one of several ways; building and running it must not crash."""
    chance = random.Random(seed)
    makers = (models.affine, models.several, models.branch, models.slow, digits)
    path = chance.choice(makers)(folder)
    data = bytearray(path.read_bytes())
    how = chance.randrange(4)
    if how == 0:
        del data[chance.randrange(len(data)) :]
    elif how == 1:
        for _ in range(chance.randrange(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif how == 2:
        place = chance.randrange(len(data))
        data[place:place] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9)))
    else:
        begin, end = sorted(chance.randrange(len(data)) for _ in range(2))
        data[begin:begin] = data[begin : min(end, begin + 4096)]
    path.write_bytes(data)
    try:
        with engine.load(path) as model:
            inputs = {
                spec.name: np.ones(
                    [dim if isinstance(dim, int) else 2 for dim in spec.shape or ()],
                    spec.dtype.numpy,
                )
                for spec in model.inputs
                if np.prod([d for d in spec.shape or () if isinstance(d, int)]) < 1e6
            }
            model.predict(inputs, timeout_s=5)
    except (engine.EngineError, ValueError):
        pass  # refused, with one of this package's own errors or for an impossible shape


def digits(folder: Path) -> Path:
    path = folder / "digits.onnx"
    path.write_bytes((Path(__file__).parents[2] / "examples/digits/digits.onnx").read_bytes())
    return path


def test_an_axis_that_crashes_shape_inference_is_an_error_that_names_it(tmp_path):
    """ONNX Runtime refuses it; what then asks onnx for types must not end the process."""
    axis = encode.attribute("axis", 3, 7267600717026457778, 2)
    node = encode.node("LayerNormalization", ["x", "s"], ["y", "m"], [axis])
    path = tmp_path / "model.onnx"
    path.write_bytes(encode.chain(node, initializers=[encode.floats("s", 3)]))
    done = python("-m", "engine", "inspect", "--target", "cpu", path)
    assert done.returncode > 0, f"exit status {done.returncode}: {done.stderr[-2000:]}"
    assert "LayerNormalization" in done.stderr
    assert "Traceback" not in done.stderr


def test_external_data_outside_the_folder_is_never_read(tmp_path):
    inside = tmp_path / "model"
    inside.mkdir()
    path = models.external(inside)
    with engine.load(path) as model:
        assert model.predict(
            [np.ones([max(dim, 1) for dim in s.shape], "f") for s in model.get_inputs()]
        )
    [data] = [file for file in inside.iterdir() if file != path]
    secret = tmp_path / "secret"
    os.replace(data, secret)
    data.symlink_to(secret)
    with pytest.raises(engine.ModelError, match=r"outside|symlink|link"):
        engine.load(path)
