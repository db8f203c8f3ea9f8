"""The way of a tensor to a worker process and back, beside a Pipe with pickle.

    python bench/transport.py           three sizes of a request
    python bench/transport.py -n 400    more rounds

Baseline: a process that receives a list of arrays over a multiprocessing Pipe and sends it back,
started as multiprocessing does by default (fork on Linux up to Python 3.13) or by `--start`: here
forked processes have been up to twice as slow as spawned ones.
This: MultiDeviceRunner with one worker, whose model is two Identity nodes; it checks its inputs,
copies them as any model writes its outputs, and gives the caller arrays that are his for any time.
Each is asked many times in a row: the first round trips after a pause find both processes asleep
and their caches full of what the other way has left.

Needs the cpu backend, the onnx package and Linux. `--json` for programs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from measure import Row, bar, compare, report
from onnx import TensorProto, helper

import engine

AT_MOST = 0.15
SIZES = {
    "(1,4,64,64) + (1,77,1024), 381 KB": ((1, 4, 64, 64), (1, 77, 1024), 100, AT_MOST),
    "(8,4,64,64) + (8,77,1024), 3 MB": ((8, 4, 64, 64), (8, 77, 1024), 4, None),
    "(1,8) + (1,8), 64 B": ((1, 8), (1, 8), 200, None),
}


def echo(pipe: Connection) -> None:
    """Send back what comes, until None does."""
    while (arrays := pipe.recv()) is not None:
        pipe.send(arrays)


def identity(folder: Path, *shapes: tuple[int, ...]) -> Path:
    """Write a model that returns its inputs."""
    places = range(len(shapes))

    def value(name: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [helper.make_node("Identity", [f"x{i}"], [f"y{i}"]) for i in places],
        "echo",
        [value(f"x{i}", shapes[i]) for i in places],
        [value(f"y{i}", shapes[i]) for i in places],
    )
    path = folder / f"{shapes[0]}.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), path)
    return path


def measure(
    what: str,
    arrays: list[np.ndarray[Any, Any]],
    path: Path,
    start: str | None,
    rounds: int,
    calls: int,
    at_most: float | None,
) -> list[Row]:
    """Compare the two ways for these arrays, after checking that both give them back."""
    own, other = multiprocessing.Pipe()
    process = multiprocessing.get_context(start).Process(target=echo, args=(other,), daemon=True)
    process.start()

    def piped() -> list[np.ndarray[Any, Any]]:
        own.send(arrays)
        return own.recv()  # type: ignore[no-any-return]

    with engine.MultiDeviceRunner(str(path), [0]) as runner:

        def ran() -> list[np.ndarray[Any, Any]]:
            return [output.get_data_to_numpy() for output in runner.predict(arrays)]

        for way in (piped, ran):
            found = way()
            assert all(np.array_equal(*pair) for pair in zip(found, arrays, strict=True)), way
        rows = compare(
            piped,
            {what: (ran, at_most)},
            rounds=rounds,
            calls=calls,
            progress=bar(what),
        )
    own.send(None)
    process.join()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--rounds", type=int, default=200)
    parser.add_argument("--start", choices=multiprocessing.get_all_start_methods())
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    chance = np.random.default_rng(0)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for what, (first, second, calls, at_most) in SIZES.items():
            arrays = [chance.standard_normal(shape, np.float32) for shape in (first, second)]
            path = identity(Path(folder), first, second)
            rows += measure(what, arrays, path, arguments.start, arguments.rounds, calls, at_most)
    report(rows, arguments.json)


if __name__ == "__main__":
    main()
