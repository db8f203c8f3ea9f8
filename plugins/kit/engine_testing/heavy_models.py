"""Models that are large, or take long, on purpose; `models` offers them too."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from onnx import NodeProto, helper

from engine_testing.making import tensor, write

SLOW_STEPS = 32
SLOW_WIDTH = 256


def heavy(folder: Path) -> Path:
    """y = x @ identity, x float32[n, 1024]: 4 MiB of weights."""
    return write(
        folder,
        "heavy",
        [tensor("x", ["n", 1024])],
        [tensor("y", ["n", 1024])],
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        {"weight": np.eye(1024, dtype=np.float32)},
    )


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
