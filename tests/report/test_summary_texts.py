"""Summaries for people: parameters that are no initializers, and long metadata."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import engine
from engine.report.summary import parameters_text, shortened


def saved(path: Path, nodes: list[onnx.NodeProto], **metadata: str) -> Path:
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path


def test_constants_and_trees_are_named_where_there_are_no_initializers(tmp_path: Path) -> None:
    value = numpy_helper.from_array(np.float32([1, 2]))
    nodes = [
        helper.make_node("Constant", [], ["a"], value=value),
        helper.make_node("Constant", [], ["b"], value=value),
        helper.make_node("Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[0.0], scale=[2.0]),
        helper.make_node("Sum", ["a", "b", "s"], ["y"]),
    ]
    graph = engine.inspect(saved(tmp_path / "m.onnx", nodes))
    text = "none but what is in nodes: 2 Constant, 1 Scaler"
    assert parameters_text(graph.parameters or (), graph.nodes or ()) == text
    assert text in str(graph)


def test_a_model_without_any_parameters_says_none(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    assert engine.inspect(saved(tmp_path / "m.onnx", nodes)).facts()["parameters"] == "none"


def test_long_metadata_is_shown_by_its_beginning(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    found = engine.inspect(saved(tmp_path / "m.onnx", nodes, words="ab" * 50_000, short="c" * 200))
    assert found.metadata["words"] == "ab" * 50_000
    assert len(str(found)) < 2_000
    assert "100,000 characters" in str(found)
    assert shortened("c" * 200) == "c" * 200
