"""Measure the memory of a master and two slaves that share weights by handle.

    python bench/sharing.py            400 MB of weights
    python bench/sharing.py --mb 100   smaller

    cache off   the compiled form is in a private folder of the master's
    cache on    it is the compile cache's entry, made before

A size is the sum of the PSS of the three processes (each page counted once, shared among those that
map it) beyond what they had when they had imported everything, and the growth of shared memory
(Shmem of /proc/meminfo: tmpfs is used to hide nothing), over the size of the weights. After the
first predict of each, whose outputs are compared whole, by their digest. "plain" is the same with
onnxruntime.InferenceSession in three processes; "alone" the slaves' part when the master has ended.

Random weights; three times their size on disk while this runs. One thread. Needs the cpu backend,
the onnx package and Linux. `--json` for programs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from measure import parser_of, pss_bytes, shared_bytes
from onnx import TensorProto, helper, numpy_helper

WIDTH = 2048
LAYER_BYTES = 4 * WIDTH * WIDTH
AT_MOST = 1.15
PROCESSES = 3


@dataclass(frozen=True)
class Row:
    """Sizes in MB; ratios over the weights."""

    what: str
    weights_mb: float
    plain_mb: float
    plain: float
    engine_mb: float
    engine: float
    alone: float
    at_most: float
    equal: bool


def chain(path: Path, layers: int) -> Path:
    """A chain of equal layers."""
    random = np.random.default_rng(0)
    nodes, weights, current = [], [], "x"
    for number in range(layers):
        weight = random.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"w{number}"))
        nodes.append(helper.make_node("MatMul", [current, f"w{number}"], [f"m{number}"]))
        nodes.append(helper.make_node("Relu", [f"m{number}"], [f"r{number}"]))
        current = f"r{number}"
    graph = helper.make_graph(
        nodes, "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", WIDTH])],
        [helper.make_tensor_value_info(current, TensorProto.FLOAT, ["b", WIDTH])],
        weights,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


_CHILD = """
import hashlib
import json
import sys
import numpy as np
import onnxruntime as ort
import engine
import engine_cpu.session
way, path = sys.argv[1:]
options = ort.SessionOptions()
options.intra_op_num_threads = 1
x = np.random.default_rng(1).standard_normal((2, 2048)).astype(np.float32)
print(engine.Model().get_model_info("current_pid"), flush=True)
config = json.loads(sys.stdin.readline())
handle = ""
if way == "engine":
    model = engine.load(path, threads=1, config=config)
    [y] = model(x=x).values()
    handle = model.get_model_info("shareable_weight_mem_handle")
else:
    model = ort.InferenceSession(path, options)
    [y] = model.run(None, {"x": x})
print(json.dumps({"y": hashlib.sha256(y.tobytes()).hexdigest(), "handle": handle}), flush=True)
sys.stdin.readline()
"""


class Child:
    """A process that has imported everything, and builds when it is told with what."""

    def __init__(self, way: str, path: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, way, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.pid = self._process.pid
        self.said = self._line()

    def build(self, config: dict[str, dict[str, str]]) -> dict[str, str]:
        """Return the digest of its output, and its handle."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(config) + "\n")
        self._process.stdin.flush()
        answer: dict[str, str] = json.loads(self._line())
        return answer

    def end(self) -> None:
        """Let it end."""
        self._process.communicate("end\n")

    @property
    def pss_bytes(self) -> int:
        """Return the process's memory, of shared pages its part."""
        return pss_bytes(self.pid)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a process failed")
        return line


def measure(way: str, path: Path, environment: dict[str, str]) -> tuple[int, int, set[str]]:
    """Return what the three take, what is left of that without the first, and their outputs."""
    shared_before = shared_bytes()
    children = [Child(way, path, environment) for _ in range(PROCESSES)]
    before = [child.pss_bytes for child in children]
    pids = ", ".join(child.said.strip() for child in children[1:])
    first = children[0].build({"ascend_context": {"shareable_weight_pid_list": pids}})
    handle = {"ascend_context": {"shareable_weight_mem_handle": first["handle"]}}
    answers = [first, *(child.build(handle) for child in children[1:])]
    taken = sum(child.pss_bytes for child in children) - sum(before)
    taken += max(0, shared_bytes() - shared_before)
    children[0].end()
    alone = sum(child.pss_bytes for child in children[1:]) - sum(before[1:])
    for child in children[1:]:
        child.end()
    return taken, alone, {answer["y"] for answer in answers}


def main() -> None:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("--mb", type=int, default=400, metavar="N", help="size of the weights")
    arguments = parser.parse_args()
    layers = max(1, arguments.mb * 10**6 // LAYER_BYTES)
    nbytes = layers * LAYER_BYTES
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = chain(folder / "chain.onnx", layers)
        environment = {"ENGINE_CACHE_DIR": str(folder / "cache"), "ENGINE_CACHE": "off"}
        plain, _, expected = measure("plain", path, environment)
        for cache in ("off", "on"):
            environment["ENGINE_CACHE"] = cache
            if cache == "on":
                maker = Child("engine", path, environment)
                maker.build({})
                maker.end()
            taken, alone, outputs = measure("engine", path, environment)
            rows.append(
                Row(
                    f"cache {cache}",
                    nbytes / 1e6,
                    plain / 1e6,
                    plain / nbytes,
                    taken / 1e6,
                    taken / nbytes,
                    alone / nbytes,
                    AT_MOST,
                    len(expected) == 1 and outputs == expected,
                )
            )
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{'what':12} {'weights':>9} {'plain':>10} {'ratio':>6} {'engine':>10} {'ratio':>6} "
          f"{'alone':>6} {'at most':>8}  bit-equal")  # fmt: skip
    for row in rows:
        print(f"{row.what:12} {row.weights_mb:6.0f} MB {row.plain_mb:7.0f} MB {row.plain:6.2f} "
              f"{row.engine_mb:7.0f} MB {row.engine:6.2f} {row.alone:6.2f} {row.at_most:8.2f}  "
              f"{'yes' if row.equal else 'NO'}")  # fmt: skip


if __name__ == "__main__":
    main()
