"""A rank's part of a sliced model whose sizes the file fixes cannot be resized."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import engine
from engine.formats.collectives import Part
from engine_testing import models


def part(folder: Path, dim: int | str) -> Path:
    """y = 2x + 1 for x: float32[dim, 3], as rank 0's part of two."""
    path = models.affine(folder)
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        first = value.type.tensor_type.shape.dim[0]
        if isinstance(dim, int):
            first.dim_value = dim
    for key, text in Part(0, 2, "s").metadata().items():
        model.metadata_props.add(key=key, value=text)
    onnx.save(model, path)
    return path


def test_a_fixed_size_of_a_part_cannot_be_changed(null_backend: str, tmp_path: Path) -> None:
    with engine.load(part(tmp_path, 4), target=null_backend) as model:
        with pytest.raises(engine.InputError, match=r"rank 0's of 2.*slice the model again"):
            model.resize(model.get_inputs(), [[6, 3]])
        assert model(np.ones((4, 3), np.float32))["y"].shape == (4, 3)
        model.resize(model.get_inputs(), [[4, 3]])  # its own


def test_an_open_size_of_a_part_can_be_fixed(null_backend: str, tmp_path: Path) -> None:
    with engine.load(part(tmp_path, "batch"), target=null_backend) as model:
        model.resize(model.get_inputs(), [[6, 3]])
        assert model(np.ones((6, 3), np.float32))["y"].shape == (6, 3)
