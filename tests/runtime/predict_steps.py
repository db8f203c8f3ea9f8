"""Steps that tests of this folder have in common."""

from __future__ import annotations

from onnx.parser import parse_model

import engine


def parsed(graph: str, target: str, opset: int = 17, ir_version: int = 8) -> engine.Model:
    """Build a graph that is written as ONNX's text format writes it, without its name."""
    versions = f'ir_version: {ir_version}, opset_import: ["": {opset}, "ai.onnx.ml": 1]'
    return engine.load(parse_model(f"<{versions}> values {graph}"), target=target)
