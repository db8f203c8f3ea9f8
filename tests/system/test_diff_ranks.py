"""engine.diff runs all ranks of a sliced model as one, and names a fault with its rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from deep_models import FAULTS, deep
from diffs import named
from graphs import written

import engine
from engine.errors import ModelError


def sliced(path: Path, folder: Path, *how: str) -> Path:
    """Slice a model for two ranks; returns the file of rank 0."""
    from engine.cli import main

    assert main(["slice", str(path), *how, "--out", str(folder), "-q"]) == 0
    return folder / f"{path.stem}0.onnx"


def with_fault(folder: Path, rank: int, op_type: str, number: int, fault: str) -> str:
    """Plant a fault in one node of one rank's file; returns what the node makes."""
    [path] = folder.glob(f"*{rank}.onnx")
    model = onnx.load(path, load_external_data=False)
    node = [node for node in model.graph.node if node.op_type == op_type][number]
    FAULTS[fault][1](node)
    onnx.save(model, path)
    return str(node.output[0])


@pytest.mark.parametrize(
    ("how", "rank", "op_type", "number", "fault"),
    [
        (("--tp", "2"), 1, "Softmax", 0, "axis"),
        (("--tp", "2"), 0, "LayerNormalization", 2, "epsilon"),
        (("--pp", "2"), 1, "LayerNormalization", 1, "epsilon"),
    ],
)
def test_a_fault_in_one_rank_of_two_is_named_with_its_rank(
    tmp_path: Path, how: tuple[str, str], rank: int, op_type: str, number: int, fault: str
) -> None:
    onnx.save(deep(60, 3), tmp_path / "net.onnx")
    good = sliced(tmp_path / "net.onnx", tmp_path / "good", *how)
    bad = sliced(tmp_path / "net.onnx", tmp_path / "bad", *how)
    value = with_fault(bad.parent, rank, op_type, number, fault)
    found = engine.diff(bad, good)
    assert named(found) == {f"rank{rank}/{value}"}


def test_ranks_are_compared_with_the_model_that_was_sliced(tmp_path: Path) -> None:
    onnx.save(deep(60, 3), tmp_path / "net.onnx")
    ranks = sliced(tmp_path / "net.onnx", tmp_path / "ranks", "--tp", "2")
    assert engine.diff(ranks, tmp_path / "net.onnx").is_within
    value = with_fault(ranks.parent, 1, "Softmax", 0, "axis")
    found = engine.diff(ranks, tmp_path / "net.onnx")
    # A rank's part of a value has no counterpart in the whole, so nodes of both ranks are named.
    assert f"rank1/{value}" in named(found)
    assert "slice that model again" in found.notes[-1]
    other = engine.diff(tmp_path / "net.onnx", ranks)
    assert other.fault is not None
    assert f"rank1/{value}" in {name for node in other.fault.nodes_b for name in node.outputs}


def test_ranks_whose_nodes_have_no_names_are_compared(tmp_path: Path) -> None:
    path = written(
        tmp_path / "net.onnx",
        "g (float[4, 8] x) => (float[4, 8] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, v) }",
        w=np.eye(8, dtype=np.float32),
        v=np.full((8, 8), 0.5, np.float32),
    )
    ranks = sliced(path, tmp_path / "ranks", "--tp", "2")
    assert engine.diff(ranks, path).is_within


def test_a_rank_that_is_missing_is_named(tmp_path: Path) -> None:
    onnx.save(deep(30, 3), tmp_path / "net.onnx")
    ranks = sliced(tmp_path / "net.onnx", tmp_path / "ranks", "--tp", "2")
    (ranks.parent / "net1.onnx").unlink()
    with pytest.raises(ModelError, match=r"is one of 2 ranks, and .*net1.onnx is missing"):
        engine.diff(ranks, tmp_path / "net.onnx")
