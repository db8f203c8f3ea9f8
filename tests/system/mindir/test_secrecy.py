"""Encrypted models are decrypted in memory: the plaintext is never in a file."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from graphs import parsed
from own_python import python

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
    return _model("y = Gemm(x, w, b)", seed=0)


def prepared_onnx() -> bytes:
    """The same with an operator that onnxruntime runs only once it is said in other terms."""
    nodes = ["z = Gemm(x, w, b)", "c = Cast <to = 16> (z)", "s = Selu(c)", "y = Cast <to = 1> (s)"]
    return _model("\n".join(nodes), seed=1, opset=22)


def _model(nodes: str, seed: int, opset: int = 17) -> bytes:
    w, b = np.random.default_rng(seed).random((2, 316, 316), np.float32)
    text = f"g (float[1, 316] x) => (float[1, 316] y) {{ {nodes} }}"
    return parsed(text, opset=opset, w=w, b=b[0]).SerializeToString()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says what a process writes")
@pytest.mark.parametrize(
    "make", [mindir, plain_onnx, prepared_onnx], ids=lambda each: each.__name__
)
def test_nothing_decrypted_is_written_anywhere(make, tmp_path, monkeypatch):
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
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    env = {name: str(place) for name, place in places.items()}
    done = python("-c", CHILD, path, KEY.hex(), env=env, cwd=places["CWD"])
    assert done.returncode == 0, done.stderr
    *opened, last = done.stdout.splitlines()
    assert opened == []
    assert int(last.removeprefix("written: ")) < 5_000 < len(plain)
    assert [each for place in places.values() for each in place.rglob("*")] == []
    assert not left_since(shared)
