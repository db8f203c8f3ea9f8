"""Measure `engine.onnxruntime` beside onnxruntime itself.

    python bench/dropin.py                the cost of a call: tiny models of 1 and of 8 inputs
    python bench/dropin.py sessions       the CPU time of making a session, again and again

The baseline is onnxruntime's own `InferenceSession`, on the same models and feeds. Ratios below 1
are faster than that. The compile cache is off unless ENGINE_CACHE says otherwise. Needs the cpu
backend and onnx. `--json` for programs.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
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


def sessions(folder: Path, rounds: int) -> list[Row]:
    files = []
    for classes in range(2, 34):
        (folder / str(classes)).mkdir()
        files.append(str(models.classifier(folder / str(classes), classes)))
    small, large = str(models.tiny(folder)), str(models.mobilenet_v2(folder))
    made = {
        "a tiny model's file": ([small], 20, None),
        "32 small files, by turns": (files, 32, None),
        "MobileNetV2's file": ([large], 1, 1.03),
        "MobileNetV2's bytes": ([Path(large).read_bytes()], 1, 1.03),
    }
    rows = []
    for what, (given, calls, limit) in made.items():
        turn, turns = itertools.cycle(given), itertools.cycle(given)
        rows += compare(
            lambda turn=turn: genuine.InferenceSession(next(turn)),
            {what: (lambda turn=turns: ours.InferenceSession(next(turn)), limit)},
            rounds=rounds,
            calls=calls,
            clock=time.process_time,
            progress=bar(what),
        )
    return rows


MEASURES = {"calls": calls, "sessions": sessions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=MEASURES, default="calls")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report(MEASURES[given.what](Path(folder), given.rounds), given.json)


if __name__ == "__main__":
    main()
