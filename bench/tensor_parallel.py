"""A sliced MLP on two ranks of one thread each, against one process of one and of two threads.

    python bench/tensor_parallel.py                  4096-16384-4096, batch 16 and 64
    python bench/tensor_parallel.py --pp             two pipeline stages, batch 16 in micro-batches
    python bench/tensor_parallel.py --memory 3       slice a model of 3 GB, and run its ranks:
                                                     peak anonymous memory of each

All processes are warm at once and timed in turn, a round each, so that all see the same machine.
The figure is the median over rounds of each round's ratio. Asked for: 2 ranks x 1 thread at
least 1.8 of 1 process x 1 thread, and 0.97 of 1 process x 2 threads. "ceiling" is what two
processes of half the model each, which exchange nothing, gain in the same rounds: what the machine
has to give. Asked for of memory: 1 GB for the slicer, and 1.2 times a rank's own weights for the
rank: with the compile cache, empty ("cold") and filled ("warm"), and without.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from engine.distributed import job
from engine.distributed.store import StoreServer
from engine.sharding import slice_model

RANK = """
import sys, time
import numpy as np
import engine

path, threads, batches = sys.argv[1], int(sys.argv[2]), [int(b) for b in sys.argv[3].split(",")]
model = engine.load(path, threads=threads)
inputs = {b: np.random.default_rng(b).standard_normal((b, *WIDTH)).astype("f") for b in batches}
for x in inputs.values():
    for _ in range(3):
        model(x=x)
print("ready", flush=True)
for line in sys.stdin:
    batch, calls = map(int, line.split())
    start = time.perf_counter()
    for _ in range(calls):
        model(x=inputs[batch])
    print((time.perf_counter() - start) / calls, flush=True)
"""


def mlp(
    path: Path, width: int, hidden: int, layers: int = 1, rows: tuple[str | int, ...] = ("n",)
) -> Path:
    """Write the model with its weights beside it, a tensor at a time."""
    chance = np.random.default_rng(0)
    nodes, weights = [], []
    data = path.with_suffix(".data")
    x = "x"
    with data.open("wb") as file:
        for layer in range(layers):
            for name, shape in ((f"a{layer}", (width, hidden)), (f"b{layer}", (hidden, width))):
                array = chance.standard_normal(shape, np.float32) * np.float32(shape[0] ** -0.5)
                tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
                tensor.data_location = TensorProto.EXTERNAL
                place = {"location": data.name, "offset": file.tell(), "length": array.nbytes}
                for key, value in place.items():
                    tensor.external_data.add(key=key, value=str(value))
                file.write(array.data)
                weights.append(tensor)
            nodes += [
                helper.make_node("MatMul", [x, f"a{layer}"], [f"h{layer}"], f"first{layer}"),
                helper.make_node("Relu", [f"h{layer}"], [f"r{layer}"], f"relu{layer}"),
                helper.make_node("MatMul", [f"r{layer}", f"b{layer}"], [f"y{layer}"], f"s{layer}"),
            ]
            x = f"y{layer}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*rows, width])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [*rows, width])],
        weights,
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return path


class Process:
    """A process that runs a model when it is told to."""

    def __init__(
        self, path: Path, threads: int, batches: str, row: tuple[int, ...], env: Any = None
    ) -> None:
        script = RANK.replace("WIDTH", str(row))
        self._child = subprocess.Popen(
            [sys.executable, "-c", script, str(path), str(threads), batches],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait(self) -> None:
        assert self.read() == "ready"

    def tell(self, batch: int, calls: int) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{batch} {calls}\n")
        self._child.stdin.flush()

    def read(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()

    def end(self) -> None:
        self._child.communicate()


def speed(folder: Path, batches: list[int], rounds: int, width: int, hidden: int) -> list[Any]:
    """Return a row for each batch: milliseconds, and the ratios."""
    path = mlp(folder / "mlp.onnx", width, hidden)
    half = mlp(folder / "half.onnx", width, hidden // 2)
    slice_model(path, folder / "out", tp=2)
    text, row = ",".join(map(str, batches)), (width,)
    with StoreServer() as server:
        ranks = [
            Process(folder / "out" / f"mlp{r}.onnx", 1, text, row, job.environment(server, r, 2))
            for r in range(2)
        ]
        contenders = {
            "1 x 1": [Process(path, 1, text, row)],
            "1 x 2": [Process(path, 2, text, row)],
            "halves": [Process(half, 1, text, row) for _ in range(2)],
            "2 x 1": ranks,
        }
        return _timed(contenders, batches, rounds, "2 x 1")


def pipeline(folder: Path, batches: list[int], rounds: int, micro: list[int]) -> list[Any]:
    """Return a row for each batch: two stages, whole and in micro-batches, and one process."""
    length, width, hidden = 128, 256, 1024
    path = mlp(folder / "mlp.onnx", width, hidden, 8, ("n", length))
    half = mlp(folder / "half.onnx", width, hidden, 4, ("n", length))
    text, row, rows = ",".join(map(str, batches)), (length, width), []
    for batch in batches:
        with ExitStack() as stack:
            contenders = {
                "1 x 1": [Process(path, 1, text, row)],
                "1 x 2": [Process(path, 2, text, row)],
                "halves": [Process(half, 1, text, row) for _ in range(2)],
            }
            for part in (batch, *micro):
                out = folder / f"out{part}"
                shapes = {"x": [part, *row]}
                slice_model(path, out, pp=2, input_shapes=shapes, micro_batches=True)
                server = stack.enter_context(StoreServer())
                contenders[f"stages, parts of {part}"] = [
                    Process(out / f"mlp{r}.onnx", 1, text, row, job.environment(server, r, 2))
                    for r in range(2)
                ]
            rows += _timed(contenders, [batch], rounds, f"stages, parts of {micro[0]}")
    return rows


def _timed(
    contenders: dict[str, list[Process]], batches: list[int], rounds: int, ours: str
) -> list[Any]:
    """Let the contenders run in turn; returns medians, and medians of each round's ratios."""
    every = [process for group in contenders.values() for process in group]
    rows = []
    try:
        for process in every:
            process.wait()
        for batch in batches:
            taken: dict[str, list[float]] = {name: [] for name in contenders}
            for _ in range(rounds):
                for name, group in contenders.items():
                    for process in group:
                        process.tell(batch, 4)
                    taken[name].append(max(float(process.read()) for process in group))

            def over(name: str, own: str, taken: dict[str, list[float]] = taken) -> float:
                return statistics.median(a / b for a, b in zip(taken[name], taken[own]))

            rows.append(
                {
                    "batch": batch,
                    **{f"{n} ms": statistics.median(t) * 1e3 for n, t in taken.items()},
                    "over 1 x 1": over("1 x 1", ours),
                    "over 1 x 2": over("1 x 2", ours),
                    "ceiling": over("1 x 1", "halves"),
                    "2 threads": over("1 x 1", "1 x 2"),
                    "of ceiling": over("halves", ours),
                }
            )
    finally:
        for process in every:
            process.end()
    return rows


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@contextmanager
def peaks(pids: Sequence[int]) -> Iterator[list[int]]:
    """Yield the most anonymous memory that each process has had, until the block ends."""
    found, is_over = [0] * len(pids), threading.Event()

    def watch() -> None:
        while not is_over.wait(0.01):
            for place, pid in enumerate(pids):
                found[place] = max(found[place], anonymous_bytes(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        is_over.set()
        watcher.join()


def memory(folder: Path, gigabytes: float, width: int, hidden: int) -> Iterator[dict[str, Any]]:
    """Slice a large model and run its ranks; yield the most anonymous memory of each process."""
    layers = max(1, round(gigabytes * 1e9 / (2 * width * hidden * 4)))
    path = mlp(folder / "large.onnx", width, hidden, layers)
    start = time.perf_counter()
    with peaks([os.getpid()]) as peak:
        report = slice_model(path, folder / "out", tp=2)
    yield {
        "weights GB": report.weight_bytes / 1e9,
        "peak anonymous MB": peak[0] / 1e6,
        "seconds": time.perf_counter() - start,
        "difference": [one.difference / one.largest for one in report.differences],
    }
    own = [rank.weight_bytes for rank in report.ranks]
    cache = {"ENGINE_CACHE_DIR": str(folder / "cache")}
    for title, more in (("cold", cache), ("warm", cache), ("no cache", {"ENGINE_CACHE": "off"})):
        yield {"ranks": title, **run(folder / "out" / "large", width, own, more)}


def run(stem: Path, width: int, own: Sequence[int], env: Mapping[str, str]) -> dict[str, Any]:
    """Run both ranks; returns the most anonymous memory of each over its own weights."""
    with StoreServer() as server:
        ranks = [
            Process(
                Path(f"{stem}{r}.onnx"), 1, "16", (width,), {**job.environment(server, r, 2), **env}
            )
            for r in range(2)
        ]
        start = time.perf_counter()
        with peaks([rank.pid for rank in ranks]) as peak:
            for rank in ranks:
                rank.wait()
            taken = time.perf_counter() - start
            for _ in range(3):
                for rank in ranks:
                    rank.tell(16, 1)
                for rank in ranks:
                    rank.read()
            now = [anonymous_bytes(rank.pid) for rank in ranks]
        for rank in ranks:
            rank.end()
    return {
        "own weights MB": own[0] / 1e6,
        "peak anonymous MB": [round(one / 1e6) for one in peak],
        "over own weights": max(one / weights for one, weights in zip(peak, own)),
        "running MB": [round(one / 1e6) for one in now],
        "seconds until ready": taken,
    }


def show(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(row), flush=True)
    else:
        shown = (f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
        print("; ".join(shown), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batches", default="16,64")
    parser.add_argument("--sizes", default="4096,16384", help="width and hidden size")
    parser.add_argument("--pp", action="store_true", help="pipeline stages instead")
    parser.add_argument("--micro", default="2,1,4", help="rows of micro-batches")
    parser.add_argument("--memory", type=float, metavar="GB", help="slice a model of this size")
    parser.add_argument("--folder", type=Path, help="where models are written for a while")
    options = parser.parse_args()
    width, hidden = map(int, options.sizes.split(","))
    with tempfile.TemporaryDirectory(dir=options.folder) as text:
        folder = Path(text)
        batches = [int(batch) for batch in options.batches.split(",")]
        if options.memory:
            rows: Iterable[dict[str, Any]] = memory(folder, options.memory, 4096, 8192)
        elif options.pp:
            micro = [int(part) for part in options.micro.split(",")]
            rows = pipeline(folder, [16], options.rounds, micro)
        else:
            rows = speed(folder, batches, options.rounds, width, hidden)
        for row in rows:
            show(row, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
