"""Diffs of models with planted faults, for the tests of engine.diff."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from deep_models import deep, planted
from graphs import written

import engine
from engine.report.fault.found import Diff


def diff_of(place: Path, fault: str, seed: int, count: int = 300, **given: Any) -> tuple[Diff, str]:
    """Return the diff of a model with a fault planted and the model without, and the value."""
    model = deep(count, seed)
    faulty, value = planted(model, fault, seed)
    onnx.save(model, place / "model.onnx")
    onnx.save(faulty, place / "faulty.onnx")
    return engine.diff(place / "faulty.onnx", place / "model.onnx", **given), value


def named(found: Diff) -> set[str]:
    """Return the values that the nodes of a fault make."""
    assert found.fault is not None
    return {output for node in found.fault.nodes for output in node.outputs}


def fused_overflow(path: Path, depth: int = 6) -> Path:
    """A model whose Conv and BatchNormalization overflow float32 only when folded into one.

    The Conv's weights are near 1e30 and its input near 1e-30. The scale of 1e10 takes its result
    to 1e10, which float32 has, and folded into the weights to 1e40, which it has not.
    """
    chain = ["h0 = Tanh(x)", *(f"h{i + 1} = Sigmoid(h{i})" for i in range(depth))]
    text = " ".join(chain)
    after = " ".join(f"z{i + 1} = Tanh(z{i})" for i in range(depth))
    numbers = np.random.default_rng(0)
    ones = np.ones(4, np.float32)
    return written(
        path,
        f"""g (float[2, 4, 8, 8] x) => (float[2, 4, 8, 8] y) {{
            {text} tiny = Mul(h{depth}, down) c = Conv<pads = [1, 1, 1, 1]>(tiny, w)
            n = BatchNormalization(c, scale, zeros, zeros, ones) z0 = Mul(n, up)
            {after} y = Neg(z{depth}) }}""",
        w=(1e29 * numbers.standard_normal((4, 4, 3, 3))).astype(np.float32),
        scale=1e10 * ones,
        zeros=0 * ones,
        ones=ones,
        down=np.float32(1e-30),
        up=np.float32(1e-10),
    )
