"""Summaries for people: parameters that are no initializers, and long metadata."""

from __future__ import annotations

import onnx
from graphs import parsed

import engine
from engine.report.summary import parameters_text, shortened


def model(nodes: str) -> onnx.ModelProto:
    return parsed(f"g (float[2] x) => (float[2] y) {{ {nodes} }}")


def test_constants_and_trees_are_named_where_there_are_no_initializers() -> None:
    nodes = """
        a = Constant <value = float[2] {1, 2}> ()
        b = Constant <value = float[2] {1, 2}> ()
        s = ai.onnx.ml.Scaler <offset = [0.0], scale = [2.0]> (x)
        y = Sum(a, b, s)"""
    graph = engine.inspect(model(nodes))
    text = "none but what is in nodes: 2 Constant, 1 Scaler"
    assert parameters_text(graph.parameters or (), graph.nodes or ()) == text
    assert text in str(graph)


def test_a_model_without_any_parameters_says_none() -> None:
    assert engine.inspect(model("y = Neg(x)")).facts()["parameters"] == "none"


def test_long_metadata_is_shown_by_its_beginning() -> None:
    wordy = model("y = Neg(x)")
    onnx.helper.set_model_props(wordy, {"words": "ab" * 50_000, "short": "c" * 200})
    found = engine.inspect(wordy)
    assert found.metadata["words"] == "ab" * 50_000
    assert len(str(found)) < 2_000
    assert "100,000 characters" in str(found)
    assert shortened("c" * 200) == "c" * 200
