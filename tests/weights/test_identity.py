"""The digest of a model is of all that it consists of, wherever its weights lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node

from engine.formats import ModelFile
from engine.weights.digests import Digests
from engine.weights.identity import model_digest
from engine_testing.making import tensor, write

MINDIR = Path(__file__).parents[1] / "data" / "mindir" / "matmul_256.mindir"


@pytest.fixture
def digests(tmp_path: Path) -> Digests:
    folder = tmp_path / "digests"
    folder.mkdir()
    return Digests(folder)


def rewritten(path: Path, place: int) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_a_weight_that_stays_in_a_mindirs_file_is_part_of_the_model(
    tmp_path: Path, digests: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine_mindir.opening.SMALL_BYTES", 0)
    monkeypatch.setattr("engine_mindir.storage.SMALL_BYTES", 0)
    path = tmp_path / "net.mindir"
    path.write_bytes(MINDIR.read_bytes())
    source = ModelFile(path)()
    assert source.files == {}
    first = model_digest(digests, source)
    assert model_digest(digests, ModelFile(path)()) == first
    rewritten(path, 60_000)
    assert model_digest(digests, ModelFile(path)()) != first


def test_the_digest_of_a_large_model_with_variable_weights_is_that_of_its_file(
    tmp_path: Path, digests: Digests
) -> None:
    weights = {"w": np.zeros((64, 64), np.float32), "big": np.ones((64, 20_000), np.float32)}
    nodes = [make_node("MatMul", ["x", "w"], ["h"]), make_node("MatMul", ["h", "big"], ["y"])]
    x, y = tensor("x", [1, 64]), tensor("y", [1, 20_000])
    path = write(tmp_path, "large", [x], [y], nodes, weights)

    def digest(*names: str) -> str:
        source = ModelFile(path, variable_weights=names)()
        assert source.are_mapped == bool(names)
        return model_digest(digests, source)

    first = {digest(), digest("w"), digest("big"), digest("w", "big"), digest("big", "w")}
    assert len(first) == 5
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    assert model_digest(digests, ModelFile(link, variable_weights=("w",))()) == digest("w")
    rewritten(path, path.stat().st_size // 2)  # in `big`, of which no byte is hashed itself
    assert not {digest(), digest("w"), digest("w", "big")} & first
