"""Measure the memory that loading a large MindIR takes beside the copy that ONNX Runtime makes.

    python bench/mindir_memory.py            every table
    python bench/mindir_memory.py split      1 GiB of weights in a data file beside the graph
    python bench/mindir_memory.py whole      300 MB of weights in the .mindir itself

Each load is a process of its own, which another watches: "peak" is its most anonymous memory
(RssAnon, read every two milliseconds) between having imported everything and the end of the first
predict, less what it had before. Pages of mapped files are the system's and do not count. "ONNX RT"
is the same of plain ONNX Runtime with the same net as ONNX, whose weights are in the same file:
what it needs itself, packed for its kernels (once for matrices, twice for convolutions). "beyond"
is what a load takes more than that.

The files are made here, of random weights; they take 1.1 GB of disk while this runs. Needs the cpu
backend and Linux. `--json` for programs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from select import select
from typing import TypeAlias

import numpy as np
from measure import parser_of

from engine.formats.onnx.writer import External, Graph, Node, Tensor, ValueInfo, model_bytes
from engine.types import DType
from engine_testing.encode import field, many, varint

os.environ.setdefault("ENGINE_CACHE", "off")  # a first load is measured

AT_MOST_MB = 100
HEADER_BYTES = 64  # of a data file
TABLES = {"split": (1 << 30, True), "whole": (300_000_000, False)}

Parts: TypeAlias = "list[bytes | int]"
"""The parts of a file; a number stands for so many bytes of weights."""


@dataclass(frozen=True)
class Net:
    """A chain of equal layers. primitive, operator: MindIR's and ONNX's; weight, x: shapes."""

    what: str
    primitive: str
    operator: str
    weight: tuple[int, ...]
    x: tuple[int, ...]

    @property
    def layer_bytes(self) -> int:
        """Weights of one layer; float32."""
        return 4 * prod(self.weight)


NETS = (
    Net("fully connected", "MatMul", "MatMul", (4096, 4096), (1, 4096)),
    Net("convolutions", "Conv2D", "Conv", (512, 512, 3, 3), (1, 512, 7, 7)),
)


@dataclass(frozen=True)
class Row:
    """One load; sizes in MB. baseline_mb: the peak of plain ONNX Runtime."""

    what: str
    weights_mb: float
    baseline_mb: float
    peak_mb: float
    beyond_mb: float
    verdict: str


def measure(folder: Path, net: Net, nbytes: int, is_split: bool) -> Row:
    layers = nbytes // net.layer_bytes
    file, onnx = write(folder, net, layers, is_split)
    weights_mb = layers * net.layer_bytes / 1e6
    baseline_mb, peak_mb = _peak_mb("onnxruntime", onnx, net), _peak_mb("engine", file, net)
    beyond_mb = peak_mb - baseline_mb
    return Row(
        f"{net.what}, {file.name}",
        weights_mb,
        baseline_mb,
        peak_mb,
        beyond_mb,
        "reached" if beyond_mb <= AT_MOST_MB else "missed",
    )


# ---------------------------------------------------------------------------------- making files


def write(folder: Path, net: Net, layers: int, is_split: bool) -> tuple[Path, Path]:
    """The net as MindIR, and as ONNX that has its weights where the MindIR has them."""
    names = [f"w{layer:03}" for layer in range(layers)]
    data = f"{net.primitive}_variables/data_0" if is_split else ""
    file = folder / (f"{net.primitive}_graph.mindir" if is_split else f"{net.primitive}.mindir")
    setting = field(1, "pad_mode") + field(5, "same") + field(16, 8)
    primitive = field(1, "layer:1") + field(2, net.primitive) + field(3, setting)
    places = _save(
        file,
        [
            field(1, "1.1") + field(2, "MindSpore") + field(5, "2.10.0"),
            *_message(7, _graph(net, names, data)),
            field(12, primitive),
        ],
    )
    if is_split:
        (folder / data).parent.mkdir()
        header = b"\1" + bytes(HEADER_BYTES - 1)
        places = _save(folder / data, [header, *[net.layer_bytes] * layers])
    onnx = folder / f"{net.primitive}.onnx"
    onnx.write_bytes(_onnx(net, names, data or file.name, places))
    return file, onnx


def _graph(net: Net, names: list[str], data: str) -> Parts:
    nodes = []
    x = "net:x"
    for name in names:
        inputs = many(1, [x, f"net:{name}"])
        x = f"net:y{name}"
        nodes.append(inputs + field(2, x) + field(3, x) + field(4, "REF::layer:1"))
    kind = field(2, many(1, net.x) + field(2, DType.FLOAT32.onnx))
    parts: Parts = [many(1, nodes), field(2, "net"), field(5, field(1, "net:x") + kind)]
    parts.append(field(6, field(1, x) + kind))
    for layer, name in enumerate(names):
        tensor = many(1, net.weight) + field(2, DType.FLOAT32.onnx) + field(7, f"net:{name}")
        if data:
            place = field(1, data) + field(2, HEADER_BYTES + layer * net.layer_bytes)
            parts.append(field(3, tensor + field(12, place + field(3, net.layer_bytes))))
        else:
            parts += _message(3, [tensor, *_message(9, [net.layer_bytes])])
    return parts


def _onnx(net: Net, names: list[str], data: str, places: list[int]) -> bytes:
    graph = Graph("net")
    attributes = {"auto_pad": "SAME_UPPER"} if net.operator == "Conv" else {}
    x = "x"
    for name, place in zip(names, places, strict=True):
        graph.nodes.append(Node(net.operator, [x, name], [f"y{name}"], attributes))
        x = f"y{name}"
        where = External(data, place, net.layer_bytes)
        graph.initializers.append(Tensor(name, DType.FLOAT32, net.weight, where))
    graph.inputs.append(ValueInfo("x", DType.FLOAT32, net.x))
    graph.outputs.append(ValueInfo(x, DType.FLOAT32, net.x))
    return model_bytes(graph, {"": 21})


def _message(number: int, parts: Parts) -> Parts:
    size = sum(part if isinstance(part, int) else len(part) for part in parts)
    return [varint(number << 3 | 2) + varint(size), *parts]


def _save(path: Path, parts: Parts) -> list[int]:
    """Write a file; returns where its weights are."""
    random = np.random.default_rng(0)
    places = []
    with path.open("wb") as file:
        for part in parts:
            if isinstance(part, int):
                places.append(file.tell())
                weights = random.random(part // 4, np.float32)
                part = (weights - np.float32(0.5)) / 64  # neither grows nor fades fast
            file.write(part)
    return places


# --------------------------------------------------------------------------------------- watching


_CHILD = """
import sys

import numpy as np
import onnxruntime as ort
import engine
how, path, kind, shape = sys.argv[1:]
x = np.zeros([int(dim) for dim in shape.split(",")], np.float32)
with engine.load(kind) as small:  # imports what is imported late
    small.predict([np.zeros(small.get_inputs()[0].shape, np.float32)])
print("ready", flush=True)
sys.stdin.readline()
if how == "engine":
    with engine.load(path) as model:
        model.predict([x])
else:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    session.run(None, {"x": x})
print("done", flush=True)
sys.stdin.readline()
"""


def _peak_mb(how: str, path: Path, net: Net) -> float:
    """The most anonymous memory of a process that loads a model and runs it once."""
    with tempfile.TemporaryDirectory() as folder:
        tiny = replace(net, weight=(4, 4, 1, 1)[: len(net.weight)], x=(1, 4, 1, 1)[: len(net.x)])
        small, _ = write(Path(folder), tiny, 1, False)
        shape = ",".join(map(str, net.x))
        with subprocess.Popen(
            [sys.executable, "-c", _CHILD, how, str(path), str(small), shape],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            if child.stdout.readline() != b"ready\n":
                raise SystemExit(f"the process that loads {path.name} failed")
            before = peak = anonymous_bytes(child.pid)
            child.stdin.write(b"go\n")
            child.stdin.flush()
            while not select([child.stdout], [], [], 0.002)[0]:
                peak = max(peak, anonymous_bytes(child.pid))
            if child.stdout.readline() != b"done\n":
                raise SystemExit(f"the process that loads {path.name} failed")
            child.stdin.close()
    return (peak - before) / 1e6


def anonymous_bytes(process: int) -> int:
    """Return a process's anonymous memory now; 0 where it has ended."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    return 0


def main() -> None:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("tables", nargs="*", metavar="table", help=f"of {', '.join(TABLES)}")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.tables or TABLES:
        if name not in TABLES:
            parser.error(f"unknown table {name!r}, expected one of: {', '.join(TABLES)}")
        for net in NETS:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(Path(folder), net, *TABLES[name]))
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{'what':44} {'weights':>9} {'ONNX RT':>9} {'peak':>9} {'beyond':>9} {'at most':>7}")
    for row in rows:
        print(
            f"{row.what:44} {row.weights_mb:6.0f} MB {row.baseline_mb:6.0f} MB "
            f"{row.peak_mb:6.0f} MB {row.beyond_mb:6.0f} MB {AT_MOST_MB:4} MB {row.verdict}"
        )


if __name__ == "__main__":
    main()
