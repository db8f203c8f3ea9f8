"""Facts kept of the original model: the shapes of its outputs at other shapes of its inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper, save

from engine.formats import ModelFile
from engine.plan.original import Original


@pytest.fixture
def original(tmp_path: Path) -> Original:
    """Two outputs, two and three times as long as the input, which the file does not say."""
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["x", "x"], ["twice"], axis=0),
            helper.make_node("Concat", ["x", "x", "x"], ["thrice"], axis=0),
        ],
        "several",
        [tensor("x", TensorProto.FLOAT, [None])],
        [tensor(name, TensorProto.FLOAT, [None]) for name in ("twice", "thrice")],
    )
    path = tmp_path / "several.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    file = ModelFile(path)
    return Original(file, file())


def test_another_output_is_inferred_at_the_same_shapes_too(original: Original) -> None:
    assert original.output_shapes({"x": (5,)}, ["twice"]) == {"twice": (10,)}
    assert original.output_shapes({"x": (5,)}, ["thrice"]) == {"thrice": (15,)}
