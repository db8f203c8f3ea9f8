"""Small models from onnx's text, as `net (float[n] x) => (float[n] y) { y = Mul(x, two) }`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper


def parsed(text: str, *, opset: int = 17, **weights: Any) -> ModelProto:
    """Return the model of a graph in text. weights: constants that it reads, by name.

    Operators of other domains have theirs in front, as `com.microsoft.Gelu(x)`.
    """
    domains = {"ai.onnx.ml": 3, "com.microsoft": 1}
    found = [name for name in domains if f"{name}." in text]
    opsets = ", ".join(f'"{name}": {domains.get(name, opset)}' for name in ("", *found))
    model = onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{opsets}]> {text}")
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def written(path: Path, text: str, **given: Any) -> Path:
    """Write such a model and return its path."""
    onnx.save(parsed(text, **given), path)
    return path
