"""Weights that each rank of a sliced model holds, and the price of weights that are gathered.

python bench/slices.py            models that real ones are made of, and the most that a rank
                                  of two holds of each: asked for is at most 0.55
python bench/slices.py --tp 4     of four ranks
python bench/slices.py m.onnx ... of other models
python bench/slices.py --price    an LSTM of 1024: two ranks that gather its weights with each
                                  predict, over one process of one thread that has them all
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from models import Graph
from onnx import TensorProto
from tensor_parallel import Process

from engine.distributed import job
from engine.distributed.store import StoreServer
from engine.sharding import slice_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
HIDDEN = 1024


def gpt2_like(
    folder: Path, vocabulary: int = 50257, hidden: int = 256, heads: int = 4, layers: int = 2
) -> Path:
    """A decoder whose table of words is its last product's weights, too."""
    g = Graph()
    table = g.weight(vocabulary, hidden)
    split = g.constant(np.array([0, 0, heads, hidden // heads], np.int64))
    join = g.constant(np.array([0, 0, hidden], np.int64))

    def dense(x: str, inside: int, out: int) -> str:
        return g.add("Add", [g.add("MatMul", [x, g.weight(inside, out)]), g.weight(out)])

    def norm(x: str) -> str:
        return g.add("LayerNormalization", [x, g.weight(hidden), g.weight(hidden)], axis=-1)

    x = g.add("Gather", [table, "ids"])
    for _ in range(layers):
        n = norm(x)
        q, k, v = (g.add("Reshape", [dense(n, hidden, hidden), split]) for _ in range(3))
        q, v = (g.add("Transpose", [t], perm=[0, 2, 1, 3]) for t in (q, v))
        scores = g.add("MatMul", [q, g.add("Transpose", [k], perm=[0, 2, 3, 1])])
        mixed = g.add("MatMul", [g.add("Softmax", [scores], axis=-1), v])
        mixed = g.add("Reshape", [g.add("Transpose", [mixed], perm=[0, 2, 1, 3]), join])
        x = g.add("Add", [x, dense(mixed, hidden, hidden)])
        inner = g.add("Relu", [dense(norm(x), hidden, 4 * hidden)])
        x = g.add("Add", [x, dense(inner, 4 * hidden, hidden)])
    y = g.add("MatMul", [norm(x), g.add("Transpose", [table], perm=[1, 0])])
    shape = ["batch", "length"]
    return g.save(folder / "gpt2_like.onnx", {"ids": (INT64, shape)}, {y: [*shape, vocabulary]})


def lstm(folder: Path, direction: str = "forward") -> Path:
    """One LSTM over [time, batch, 1024]."""
    g = Graph()
    count = 2 if direction == "bidirectional" else 1
    hidden = HIDDEN // count
    weights = [g.weight(count, 4 * hidden, HIDDEN), g.weight(count, 4 * hidden, hidden)]
    y = g.add("LSTM", ["x", *weights], hidden_size=hidden, direction=direction)
    return g.save(
        folder / f"lstm_{direction}.onnx",
        {"x": (FLOAT, ["time", "batch", HIDDEN])},
        {y: ["time", count, "batch", hidden]},
    )


def gemm(folder: Path, inside: int, out: int) -> Path:
    g = Graph()
    y = g.add("Gemm", ["x", g.weight(inside, out), g.weight(out)])
    return g.save(
        folder / f"gemm_{inside}_{out}.onnx", {"x": (FLOAT, ["n", inside])}, {y: ["n", out]}
    )


MODELS: dict[str, Callable[[Path], Path]] = {
    "GPT-2-like, vocabulary 50,257": gpt2_like,
    "LSTM of 1024": lstm,
    "LSTM of 512, both directions": lambda folder: lstm(folder, "bidirectional"),
    "Gemm [8210, 1024]": lambda folder: gemm(folder, 8210, 1024),
    "Gemm [120, 6625]": lambda folder: gemm(folder, 120, 6625),
}


def weights(folder: Path, models: dict[str, Path], tp: int) -> None:
    """Print a row for each model: the most weights of a rank, and what a predict exchanges."""
    print(f"| model | weights | most of {tp} ranks | exchanges of a predict | off by |")
    print("|---|---|---|---|---|")
    for name, path in models.items():
        report = slice_model(path, folder / f"out_{path.stem}", tp=tp, replicas=True)
        most = max(rank.weight_bytes for rank in report.ranks) / report.weight_bytes
        exchanges = ", ".join(f"{count} {kind}" for kind, count in report.collectives.items())
        off = max((d.difference / max(d.largest, 1e-30) for d in report.differences), default=0)
        print(
            f"| {name} | {report.weight_bytes / 1e6:.1f} MB | {most:.3f} | {exchanges} "
            f"| {off:.0e} |"
        )


def price(folder: Path, steps: Sequence[int], rounds: int) -> None:
    """Print how long two ranks of an LSTM take, over one process that has all of its weights."""
    path = lstm(folder)
    slice_model(path, folder / "out", tp=2)
    text, row = ",".join(map(str, steps)), (1, HIDDEN)
    with StoreServer() as server:
        ranks = [
            Process(
                folder / "out" / f"{path.stem}{r}.onnx", 1, text, row, job.environment(server, r, 2)
            )
            for r in range(2)
        ]
        groups = {"whole": [Process(path, 1, text, row)], "ranks": ranks}
        every = [process for group in groups.values() for process in group]
        try:
            for process in every:
                process.wait()
            for count in steps:
                taken: dict[str, list[float]] = {name: [] for name in groups}
                for _ in range(rounds):
                    for name, group in groups.items():
                        for process in group:
                            process.tell(count, 4)
                        taken[name].append(max(float(process.read()) for process in group))
                ratio = statistics.median(b / a for a, b in zip(taken["whole"], taken["ranks"]))
                shown = {name: f"{statistics.median(t) * 1e3:.1f} ms" for name, t in taken.items()}
                print(f"{count} steps: {shown}, ranks over whole {ratio:.2f}")
        finally:
            for process in every:
                process.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--price", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    given: Any = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.price:
            price(folder, (16, 64, 256), given.rounds)
        elif given.models:
            weights(folder, {path.stem: path for path in given.models}, given.tp)
        else:
            weights(folder, {name: make(folder) for name, make in MODELS.items()}, given.tp)


if __name__ == "__main__":
    main()
