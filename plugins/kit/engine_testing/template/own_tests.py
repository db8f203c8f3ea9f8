"""Tests of this backend alone; the kit tests the duties that all backends have."""

from pathlib import Path

import numpy as np
import pytest

import engine
from engine_mine import NAME
from engine_testing import models


def test_a_model_runs_on_this_backend(tmp_path: Path) -> None:
    x = np.array([[1, 2, 3]], np.float32)
    with engine.load(models.affine(tmp_path), target=NAME) as model:
        assert model(x=x)["y"].tolist() == [[3, 5, 7]]  # 2 x + 1
        assert {node.backend for node in model.placement} == {NAME}


def test_an_operator_that_the_user_refuses_is_named(tmp_path: Path) -> None:
    config = {f"{NAME}_context": {"unsupported_ops": "Add"}}
    with pytest.raises(engine.ModelError, match="no implementation of 'Add'"):
        engine.load(models.affine(tmp_path), target=NAME, config=config)
