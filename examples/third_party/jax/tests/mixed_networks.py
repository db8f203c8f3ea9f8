"""Print how a UNet and a BERT run on `["jax", "cpu"]`: segments, and time beside cpu's alone.

python tests/mixed_networks.py        # whole, and with operators that jax is made to leave
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import graphs
import numpy as np

import engine
from engine_jax import model as jax_model
from engine_jax.registry import OPERATORS

CASES: tuple[tuple[Callable[[Path], Path], tuple[str, ...]], ...] = (
    (graphs.unet, ()), (graphs.unet, ("Sigmoid",)), (graphs.unet, ("Resize", "Softmax")),
    (graphs.bert, ()), (graphs.bert, ("Erf",)), (graphs.bert, ("Softmax", "Tanh")),
)  # fmt: skip


def segments(model: engine.Model) -> int:
    backends = [node.backend for node in model.placement]
    return 1 + sum(one != other for one, other in pairwise(backends))


def inputs(model: engine.Model) -> list[Any]:
    random = np.random.default_rng(1)
    shapes = {"tokens": (2, 24), "mask": (2, 24), "x": (2, 4, 32, 32), "t": (2, 1)}
    return [
        random.integers(1, 2 if tensor.name == "mask" else 100, shapes[tensor.name])
        if tensor.dtype == engine.DataType.INT64
        else random.standard_normal(shapes[tensor.name]).astype(np.float32)
        for tensor in model.get_inputs()
    ]


def compared(path: Path) -> tuple[int, float, float]:
    """Return the segments, the largest difference from cpu, and the time over cpu's.

    The two take turns; the least times are compared.
    """
    with (
        engine.load(str(path), target="cpu") as alone,
        engine.load(str(path), target=["jax", "cpu"]) as mixed,
    ):
        given, difference = inputs(alone), 0.0
        results = [[y.get_data_to_numpy() for y in each.predict(given)] for each in (alone, mixed)]
        for wanted, got in zip(*results, strict=True):
            difference = max(difference, float(np.abs(wanted - got).max() / np.abs(wanted).max()))
        least = [float("inf")] * 2
        for _ in range(60):
            for at, model in enumerate((alone, mixed)):
                start = time.monotonic()
                model.predict(given)
                least[at] = min(least[at], time.monotonic() - start)
        return segments(mixed), difference, least[1] / least[0]


def main() -> None:
    if len(sys.argv) > 1:
        jax_model.LEAST_NODES = int(sys.argv[1])
    print("| network | left by jax | segments | largest difference | time over cpu's |")
    print("|---|---|---|---|---|")
    for build, missing in CASES:
        taken = {name: OPERATORS.pop(name) for name in missing}
        with tempfile.TemporaryDirectory() as folder:
            count, difference, ratio = compared(build(Path(folder)))
        OPERATORS.update(taken)
        name = f"{build.__name__} | {', '.join(missing) or 'nothing'}"
        print(f"| {name} | {count} | {difference:.1e} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
