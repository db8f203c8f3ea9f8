"""Measure `engine.onnxruntime` beside onnxruntime itself.

    python bench/dropin.py                the cost of a call: tiny models of 1 and of 8 inputs

The baseline is onnxruntime's own `InferenceSession(path).run`, on the same feeds. Ratios below 1
are faster than that. Needs the cpu backend and onnx. `--json` for programs.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import models
import numpy as np
from measure import Row, bar, compare, report

import engine.onnxruntime as ours
from engine.onnxruntime import genuine

LIMITS = {"tiny": 1.10, "many": 0.90}


def calls(folder: Path, rounds: int) -> list[Row]:
    rows = []
    for name, limit in LIMITS.items():
        path = models.MODELS[name](folder)
        theirs, own = genuine.InferenceSession(path), ours.InferenceSession(path)
        shapes = {arg.name: [d if isinstance(d, int) else 1 for d in arg.shape]
                  for arg in theirs.get_inputs()}  # fmt: skip
        random = np.random.default_rng(0)
        feed = {name: random.random(shape, np.float32) for name, shape in shapes.items()}
        outputs = [arg.name for arg in theirs.get_outputs()]
        for array, expected in zip(own.run(None, feed), theirs.run(None, feed), strict=True):
            np.testing.assert_array_equal(array, expected)
        rows += compare(
            lambda s=theirs, f=feed: s.run(None, f),
            {
                f"run(None, feed), {len(feed)} in": (lambda s=own, f=feed: s.run(None, f), limit),
                f"run([names], feed), {len(feed)} in": (
                    lambda s=own, f=feed, o=outputs: s.run(o, f),
                    limit,
                ),
            },
            rounds=rounds,
            calls=200,
            progress=bar(f"calls, {name}"),
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report(calls(Path(folder), given.rounds), given.json)


if __name__ == "__main__":
    main()
