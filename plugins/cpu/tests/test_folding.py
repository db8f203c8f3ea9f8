"""A model whose constants take much to fold, but not absurdly much, is loaded without folding."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import engine
from engine_testing.encode import chain, ints, node


def test_products_of_constants_load_at_once_and_stop_at_the_deadline(tmp_path: Path) -> None:
    steps = [node("MatMul", [f"p{i}" if i else "a", "a"], [f"p{i + 1}"]) for i in range(9)]
    path = tmp_path / "bomb.onnx"
    path.write_bytes(
        chain(
            node("ConstantOfShape", ["s"], ["a"]),
            *steps,
            node("ReduceSum", ["p9"], ["r"]),
            node("Add", ["x", "r"], ["y"]),
            initializers=[ints("s", 1000, 1000)],
        )
    )
    start = time.process_time()
    with engine.load(path, target="cpu", threads=1) as model:
        assert time.process_time() - start < 10  # as far as a process can tell
        with pytest.raises(engine.DeadlineExceeded):
            model.predict([np.ones(1, np.float32)], timeout_s=0.01)


def test_constants_that_are_not_folded_are_computed_all_the_same(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(19)]
    path = tmp_path / "many.onnx"
    path.write_bytes(
        chain(
            *[node("ConstantOfShape", ["s"], [name]) for name in names],
            *[node("ReduceSum", [name], [f"r{name}"]) for name in names],
            node("Sum", ["x", *[f"r{name}" for name in names]], ["y"]),
            initializers=[ints("s", 1_000_000)],
        )
    )
    with engine.load(path, target="cpu", threads=1) as model:
        [y] = model.predict([np.array([3], np.float32)])
    np.testing.assert_array_equal(y.get_data_to_numpy(), [3])
