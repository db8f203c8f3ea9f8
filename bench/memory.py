"""Measure the memory of models that hold the same weights, with the compile cache and without.

    python bench/memory.py            every row, 400 MB of weights
    python bench/memory.py --mb 100   smaller

    one process      4 models of one file in one process
    four processes   4 processes with one model each, built at once
    backbone         two different models of which nearly all weights are the same, one process
    group            the same two, in a ModelGroup and with the cache off
    workspace        4 models of one process that are all activations, over the largest alone; in a
                     ModelGroup

A size is the sum of the PSS of the processes (each page counted once, shared among those that map
it) beyond that of processes which have only imported everything, and the growth of shared memory
(Shmem of /proc/meminfo: tmpfs is used to hide nothing), over the size of the weights. After the
first predict of each model, which is held against a plain session's, bit by bit. "plain" is the
same with onnxruntime.InferenceSession. The cache is empty at first: what is measured is the state
after all entries were written and the models opened from them.

Random weights; nine times their size on disk while this runs. One thread. Needs the cpu backend,
the onnx package and Linux. `--json` for programs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from measure import parser_of, pss_bytes, shared_bytes
from onnx import TensorProto, helper, numpy_helper

WIDTH = 2048
LAYER_BYTES = 4 * WIDTH * WIDTH
WIDE_ROWS = 1024  # an activation of 8 MiB
AT_MOST = {"one process": 1.10, "four processes": 1.15, "backbone": 1.15, "group": 1.15}


@dataclass(frozen=True)
class Row:
    """Sizes in MB; ratios over the unit: the weights, or the memory of one model."""

    what: str
    unit_mb: float
    plain_mb: float
    plain: float
    engine_mb: float
    engine: float
    base_mb: float
    at_most: float | None
    equal: bool


def chain(path: Path, layers: int, head: int) -> Path:
    """A chain of equal layers and a small head of its own."""
    shared, own = np.random.default_rng(0), np.random.default_rng(head)
    weights = [shared.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5 for _ in range(layers)]
    weights.append(own.standard_normal((WIDTH, 64)) / WIDTH**0.5)
    nodes, current = [], "x"
    for number in range(len(weights)):
        nodes.append(helper.make_node("MatMul", [current, f"w{number}"], [f"m{number}"]))
        nodes.append(helper.make_node("Relu", [f"m{number}"], [f"r{number}"]))
        current = f"r{number}"
    graph = helper.make_graph(
        nodes, "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", WIDTH])],
        [helper.make_tensor_value_info(current, TensorProto.FLOAT, ["b", 64])],
        [numpy_helper.from_array(w.astype(np.float32), f"w{n}") for n, w in enumerate(weights)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def wide(path: Path, number: int) -> Path:
    """Sines of sines, all of which the last node adds: activations and no weights."""
    count = 8 - number
    nodes = [helper.make_node("Sin", [f"t{n}" if n else "x"], [f"t{n + 1}"]) for n in range(count)]
    nodes.append(helper.make_node("Sum", [f"t{n + 1}" for n in range(count)], ["sum"]))
    nodes.append(helper.make_node("ReduceMax", ["sum"], ["y"], keepdims=0))
    graph = helper.make_graph(
        nodes, "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


_CHILD = """
import sys
from hashlib import sha256
import numpy as np
import onnxruntime as ort
import engine
way, rows, *paths = sys.argv[1:]
config = None
if way == "group":
    group = engine.ModelGroup(engine.ModelGroupFlag.SHARE_WEIGHT_WORKSPACE)
    group.add_model(paths)
    config = {"common_context": {"compile_cache": "off"}}
options = ort.SessionOptions()
options.intra_op_num_threads = 1
x = np.random.default_rng(1).standard_normal((int(rows), 2048)).astype(np.float32)
print("ready", flush=True)
sys.stdin.readline()
kept = []
for path in paths:
    if way != "plain":
        model = engine.load(path, threads=1, config=config)
        model(x=x)
    else:
        model = ort.InferenceSession(path, options)
        model.run(None, {"x": x})
    kept.append(model)
if way != "plain":
    from engine.weights import writing
    writing.wait()
for model in kept:
    [y] = model(x=x).values() if way != "plain" else model.run(None, {"x": x})
    print(sha256(y.tobytes()).hexdigest(), end=" ")
print(flush=True)
sys.stdin.readline()
"""


def measure(
    what: str,
    paths: list[list[Path]],
    unit_bytes: int,
    cache: Path,
    way: str = "engine",
    rows: int = 2,
) -> Row:
    """Measure one process for each list of paths. way: "engine" or "group". rows: of the input."""
    plain_bytes, expected, base_bytes = sizes("plain", paths, cache, rows)
    own_bytes, answers, _ = sizes(way, paths, cache, rows)
    return Row(
        what,
        unit_bytes / 1e6,
        plain_bytes / 1e6,
        plain_bytes / unit_bytes,
        own_bytes / 1e6,
        own_bytes / unit_bytes,
        base_bytes / 1e6,
        AT_MOST.get(what),
        answers == expected,
    )


def sizes(way: str, paths: list[list[Path]], cache: Path, rows: int) -> tuple[int, list[str], int]:
    """Return what processes grow by, what they answer, and what they had before."""
    shared_before = shared_bytes()
    children = [_start(way, group, cache, rows) for group in paths]
    before = sum(pss_bytes(child.pid) for child in children)
    for child in children:
        _tell(child)
    answers = [child.stdout.readline() for child in children if child.stdout is not None]
    after = sum(pss_bytes(child.pid) for child in children)
    shared = max(0, shared_bytes() - shared_before)
    for child in children:
        child.communicate("end\n")
    return after - before + shared, answers, before


def _start(way: str, paths: list[Path], cache: Path, rows: int) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, way, str(rows), *map(str, paths)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "ENGINE_CACHE_DIR": str(cache), "ENGINE_CACHE": "on"},
    )
    assert child.stdout is not None
    if child.stdout.readline() != "ready\n":
        raise SystemExit("a process failed")
    return child


def _tell(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def main() -> None:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("--mb", type=int, default=400, metavar="N", help="size of the weights")
    arguments = parser.parse_args()
    layers = max(1, arguments.mb * 10**6 // LAYER_BYTES)
    head_bytes = 4 * WIDTH * 64
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first, second = (chain(folder / f"{n}.onnx", layers, n) for n in (1, 2))
        cache = folder / "cache"
        time.sleep(2.5)  # a younger file is hashed each time
        one, both = layers * LAYER_BYTES + head_bytes, layers * LAYER_BYTES + 2 * head_bytes
        rows = [
            measure("one process", [[first] * 4], one, folder / "one"),
            measure("four processes", [[first]] * 4, one, folder / "four"),
            measure("backbone", [[first, second]], both, folder / "both"),
            measure("group", [[first, second]], both, cache, "group"),
        ]
        models = [wide(folder / f"wide{n}.onnx", n) for n in range(4)]
        largest_bytes, _, _ = sizes("plain", [models[:1]], cache, WIDE_ROWS)
        rows.append(measure("workspace", [models], largest_bytes, cache, "group", WIDE_ROWS))
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{'what':15} {'unit':>9} {'plain':>10} {'ratio':>6} {'engine':>10} {'ratio':>6} "
          f"{'at most':>8}  bit-equal  before")  # fmt: skip
    for row in rows:
        limit = "" if row.at_most is None else f"{row.at_most:.2f}"
        print(f"{row.what:15} {row.unit_mb:6.0f} MB {row.plain_mb:7.0f} MB {row.plain:6.2f} "
              f"{row.engine_mb:7.0f} MB {row.engine:6.2f} {limit:>8}  "
              f"{'yes' if row.equal else 'NO':9}  {row.base_mb:.0f} MB")  # fmt: skip


if __name__ == "__main__":
    main()
