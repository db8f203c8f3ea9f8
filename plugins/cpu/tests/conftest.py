from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import engine
from engine import Model
from engine_testing.making import graph

Load = Callable[..., Model]

sys.path.insert(0, str(Path(__file__).parent))  # several files use `rewrite_graphs`
os.environ["ENGINE_CACHE"] = "off"  # what a test builds is no business of the user's cache


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Build one of the testing models for the cpu; keys of [cpu_context] by keyword."""

    def build(make: Callable[[Path], Path], **options: str) -> Model:
        config = {"cpu_context": options} if options else None
        return engine.load(make(tmp_path), target="cpu", config=config)

    return build


@pytest.fixture
def build(tmp_path: Path) -> Load:
    """Build a model of these nodes for the cpu.

    inputs, outputs: "name:type" in ONNX's words: "x:float[n,3]", "x:float" (a scalar), "x:float[]"
    (of any shape), "s:seq(float[n])". constants: arrays by name. config: of the
    model. Further keywords go to onnx.helper.make_model.
    """

    def make(
        nodes: Sequence[Any],
        inputs: Sequence[str],
        outputs: Sequence[str],
        opset: int,
        constants: dict[str, Any] | None = None,
        opsets: dict[str, int] | None = None,
        config: Any = None,
        **extra: Any,
    ) -> Model:
        graph = helper.make_graph(
            nodes,
            "g",
            [value(each) for each in inputs],
            [value(each) for each in outputs],
            [onnx.numpy_helper.from_array(v, name) for name, v in (constants or {}).items()],
        )
        imports = {"": opset, **(opsets or {})}
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(*each) for each in imports.items()],
            **{"ir_version": 10, **extra},
        )
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return engine.load(path, target="cpu", config=config)

    return make


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """y = relu(x @ w + b) * (2 + 1), with two nodes that no output needs; w has 64 KB."""
    random = np.random.default_rng(1)
    constants = {
        "w": random.standard_normal((64, 256)).astype(np.float32),
        "b": random.standard_normal(256).astype(np.float32),
        "two": np.float32(2),
        "one": np.float32(1),
    }
    text = """(float[n, 64] x) => (float[n, 256] y) {
        [product] product = MatMul (x, w)
        [sum] sum = Add (product, b)
        [positive] positive = Relu (sum)
        [three] three = Add (two, one)
        [unread] unread = Neg (sum)
        [unused] unused = Neg (two)
        [y] y = Mul (positive, three)
    }"""
    return graph(tmp_path, "model", text, constants)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for a compiled form."""
    folder = tmp_path / "form"
    folder.mkdir()
    return folder


def value(text: str) -> onnx.ValueInfoProto:
    """A value info from "name:type"."""
    name, _, kind = text.partition(":")
    parsed: onnx.GraphProto = onnx.parser.parse_graph(f"g ({kind} {name}) => () {{ }}")
    return parsed.input[0]
