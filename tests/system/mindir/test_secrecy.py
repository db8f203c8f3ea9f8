"""Encrypted models are decrypted in memory: the plaintext is never in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from engine.formats import encryption
from engine_testing.shared_memory import left_since, names

KEY = bytes(range(16))
LENET = Path(__file__).parents[2] / "data" / "mindir" / "lenet_bn.mindir"
# Opens and makes nothing of its own once it watches; prints what Python code opens for writing,
# and how many bytes went through write() and its kin, native code's included.
CHILD = """
import os, sys
from pathlib import Path

MAKES = {"os.mkdir", "os.link", "os.symlink", "os.rename", "os.truncate", "shutil.copyfile"}

def watch(event, args):
    writes = isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR) \
        if event == "open" else event in MAKES
    if writes:
        print(event, *args[:2])

def written():
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))

import numpy as np
import engine
sys.dont_write_bytecode = True
sys.addaudithook(watch)
before = written()
model = engine.Model()
model.build_from_file(sys.argv[1], engine.ModelType.MINDIR, dec_key=bytes.fromhex(sys.argv[2]))
with model:
    shapes = [[dim or 1 for dim in spec.shape] for spec in model.inputs]
    model.predict([np.ones(shape, np.float32) for shape in shapes])
print("written:", written() - before)
"""


def mindir() -> bytes:
    return LENET.read_bytes()


def plain_onnx() -> bytes:
    """y = x @ w + b, of 400 kB."""
    w, b = np.random.default_rng(0).random((2, 316, 316), np.float32)
    return _model([helper.make_node("Gemm", ["x", "w", "b"], ["y"])], {"w": w, "b": b[0]})


def prepared_onnx() -> bytes:
    """The same with an operator that onnxruntime runs only once it is said in other terms."""
    w, b = np.random.default_rng(1).random((2, 316, 316), np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["z"]),
        helper.make_node("Cast", ["z"], ["c"], to=onnx.TensorProto.BFLOAT16),
        helper.make_node("Selu", ["c"], ["s"]),
        helper.make_node("Cast", ["s"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    return _model(nodes, {"w": w, "b": b[0]}, opset=22)


def _model(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], opset: int = 17) -> bytes:
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 316]) for name in "xy")
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says what a process writes")
@pytest.mark.parametrize(
    "make", [mindir, plain_onnx, prepared_onnx], ids=lambda each: each.__name__
)
def test_nothing_decrypted_is_written_anywhere(make, tmp_path: Path) -> None:
    plain = make()
    path = tmp_path / "secret.mindir"
    path.write_bytes(encryption.encrypt(plain, KEY))
    marker = plain[len(plain) // 2 :][:64]  # weights
    assert marker not in path.read_bytes()
    places = {name: tmp_path / name for name in ("TMPDIR", "HOME", "XDG_CACHE_HOME", "CWD")}
    for place in places.values():
        place.mkdir()
    shared = names()
    # Importing the backend here has set it; what counts is that it is set there too.
    inherited = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), KEY.hex()],
        env={**inherited, **{name: str(place) for name, place in places.items()}},
        cwd=places["CWD"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *opened, last = done.stdout.splitlines()
    assert opened == []
    assert int(last.removeprefix("written: ")) < 5_000 < len(plain)
    assert [each for place in places.values() for each in place.rglob("*")] == []
    assert not left_since(shared)
