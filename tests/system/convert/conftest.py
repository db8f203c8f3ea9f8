"""What the tests of conversion share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import engine

sys.path.insert(0, str(Path(__file__).parent))

Array = np.ndarray[Any, Any]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., dict[str, Array]]:
    """Give a model, which must be valid, and its inputs by name to the cpu backend."""

    def run(model: onnx.ModelProto, **inputs: Array) -> dict[str, Array]:
        onnx.checker.check_model(model, full_check=True)
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        with engine.load(path, target="cpu") as built:
            return dict(built(**inputs))

    return run
