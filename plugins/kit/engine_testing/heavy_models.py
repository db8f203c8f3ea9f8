"""Models that are large, or take long, on purpose; `models` offers them too."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, helper

from engine_testing.making import graph, tensor, write

SLOW_STEPS = 32
SLOW_WIDTH = 256
LAYER_WIDTH = 512
"""A layer of so many columns has 1 MiB of float32."""


def heavy(folder: Path) -> Path:
    """y = x @ identity, x float32[n, 1024]: 4 MiB of weights."""
    text = "(float[n, 1024] x) => (float[n, 1024] y) { y = MatMul (x, weight) }"
    return graph(folder, "heavy", text, {"weight": np.eye(1024, dtype=np.float32)})


def layer(seed: int, width: int = LAYER_WIDTH) -> npt.NDArray[np.float32]:
    """Return weights for `layers`: random ones, which keep the size of what they multiply."""
    values = np.random.default_rng(seed).standard_normal((LAYER_WIDTH, width))
    weights: npt.NDArray[np.float32] = (values / LAYER_WIDTH**0.5).astype(np.float32)
    return weights


def layers(path: Path, weights: Sequence[npt.NDArray[np.float32]]) -> Path:
    """y = relu(relu(x w0) w1) ..., x float32[b, LAYER_WIDTH]; each file has weights' own names."""
    constants: dict[str, npt.NDArray[Any]] = {
        f"{path.stem}_{number}": values for number, values in enumerate(weights)
    }
    nodes, last = "", "x"
    for number, name in enumerate(constants):
        nodes += f"m{number} = MatMul ({last}, {name})  r{number} = Relu (m{number})\n"
        last = f"r{number}"
    kinds = f"(float[b, {LAYER_WIDTH}] x) => (float[b, {weights[-1].shape[1]}] {last})"
    return graph(path.parent, path.stem, f"{kinds} {{ {nodes} }}", constants)


def wide(path: Path, terms: int) -> Path:
    """y = max(sin(x) + sin(sin(x)) + ...), x float32[1 << 20]: each term is kept, with 4 MiB."""
    names = ["x", *(f"t{number}" for number in range(terms))]
    nodes = "\n".join(f"{after} = Sin ({before})" for before, after in itertools.pairwise(names))
    nodes += f"\ns = Sum ({', '.join(names[1:])})  y = ReduceMax <keepdims = 0> (s)"
    text = f"(float[{1 << 20}] x) => (float y) {{ {nodes} }}"
    return graph(path.parent, path.stem, text)


def waves(folder: Path) -> Path:
    """y = sin(sin(... sin(x))), 20 times, x float32[1 << 20]: 4 MiB in, 4 MiB out."""
    names = ["x", *(f"s{number}" for number in range(1, 20)), "y"]
    nodes = "\n".join(f"{after} = Sin ({before})" for before, after in itertools.pairwise(names))
    size = 1 << 20
    return graph(folder, "waves", f"(float[{size}] x) => (float[{size}] y) {{ {nodes} }}")


def slow(folder: Path) -> Path:
    """y = relu(x) rolled by SLOW_STEPS along axis 1, x float32[rows, SLOW_WIDTH].

    SLOW_STEPS pairs of MatMul and Relu, each 2 * rows * SLOW_WIDTH ** 2 operations: `rows` sets
    how long a predict takes, and between two nodes there is always a place to stop.
    """
    names = ["x", *(f"step_{step}" for step in range(1, SLOW_STEPS)), "y"]
    nodes: list[NodeProto] = []
    for before, after in itertools.pairwise(names):
        nodes.append(helper.make_node("MatMul", [before, "roll"], [f"{after}_moved"]))
        nodes.append(helper.make_node("Relu", [f"{after}_moved"], [after]))
    return write(
        folder,
        "slow",
        [tensor("x", ["rows", SLOW_WIDTH])],
        [tensor("y", ["rows", SLOW_WIDTH])],
        nodes,
        {"roll": np.roll(np.eye(SLOW_WIDTH, dtype=np.float32), 1, axis=1)},
    )


def truncated(folder: Path) -> Path:
    """The first half of `heavy`'s bytes: no runtime can read it."""
    path = heavy(folder)
    whole = path.read_bytes()
    broken = folder / "truncated.onnx"
    broken.write_bytes(whole[: len(whole) // 2])
    return broken
