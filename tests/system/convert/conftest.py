"""Fixtures of the tests of conversion."""

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

from quantize_models import CALIBRATING

Array = np.ndarray[Any, Any]
_DIGITS = Path(__file__).parents[3] / "examples" / "digits"


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


# Of the tests of quantization.


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture(scope="session")
def digits() -> onnx.ModelProto:
    return onnx.load(_DIGITS / "digits.onnx")


@pytest.fixture(scope="session")
def images() -> tuple[Array, Array]:
    with np.load(_DIGITS / "test_images.npz") as archive:
        return archive["image"], archive["label"]


@pytest.fixture(scope="session")
def folder(images: tuple[Array, Array], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibration data of the digits."""
    path = tmp_path_factory.mktemp("samples")
    for place in range(CALIBRATING):
        images[0][place : place + 1].tofile(path / f"{place:03}.bin")
    return path


@pytest.fixture
def full(folder: Path) -> dict[str, dict[str, str]]:
    return {
        "common_quant_param": {"quant_type": "FULL_QUANT"},
        "full_quant_param": {},
        "data_preprocess_param": {"calibrate_path": f"image:{folder}", "input_type": "BIN"},
    }
