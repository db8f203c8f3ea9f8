"""Random models whose rows mix for some values, and models whose rows never do.

    model = mixing(7)         # rows change each other's results where a gate is open
    model = independent(7)    # each row's results depend on that row alone

Every model maps x: float32 [n, 12] and ids: int64 [n, 12] to y: float32 [n, 12]. A model that mixes
adds to its rows what a mixer makes of gated rows; the gate is shut for small numbers, such as those
that a trial draws, and open for those of `hostile_rows`. Steps that treat each row alone stand
before and after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper
from random_builder import FLOAT, INT64, OPSET, WIDTH, Builder, Step, value_info
from random_steps import MIXERS, NESTED, PLAIN, choose

import engine

GATE_WEIGHT = "gate.weight"
OPENED = {GATE_WEIGHT: np.ones(WIDTH, np.float32)}
"""The update that opens a gate which is a weight."""

Rows = list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]


@dataclass
class RandomModel:
    """A model, and how it was made.

    is_gated_by_weight: the gate is the variable weight GATE_WEIGHT, of zeros in the file.
    """

    proto: ModelProto
    steps: list[str]
    is_gated_by_weight: bool = False


def window(b: Builder) -> str:
    low, high = b.constant(5.0), b.constant(100.0)
    return b.Cast(b.And(b.Greater("x", low), b.Less("x", high)), to=FLOAT)


GATES: dict[str, Callable[[Builder], str]] = {
    "ids_above": lambda b: b.Cast(b.Greater("ids", b.scalar(b.pick(1, 2, 5))), to=FLOAT),
    "ids_equal": lambda b: b.Cast(b.Equal("ids", b.scalar(7)), to=FLOAT),
    "ids_divided": lambda b: b.Cast(b.Div("ids", b.scalar(4)), to=FLOAT),
    "window": window,
    "clipped": lambda b: b.Clip(b.Sub("x", b.constant(6.0)), b.constant(0.0), b.constant(1.0)),
    "weight": lambda b: GATE_WEIGHT,
}


def mixing(seed: int) -> RandomModel:
    """Return a model whose rows mix where its gate is open."""
    b = Builder(np.random.default_rng(seed))
    mixer, mix = list(MIXERS.items())[seed % len(MIXERS)]
    gate, gate_of = choose(b, GATES)
    steps: list[str] = []
    value = _start(b)
    for _ in range(b.chance.integers(2)):
        value = _step(b, value, {**PLAIN, **NESTED}, steps)
    gated = b.Mul(b.Abs(value), gate_of(b))
    value = b.Add(value, mix(b, gated))
    steps.append(f"{gate}:{mixer}")
    simple = {name: PLAIN[name] for name in ("unary", "bias", "chosen", "rolled")}
    for _ in range(b.chance.integers(2)):
        value = _step(b, value, simple, steps)
    if gate == "weight":
        b.tensors.append(numpy_helper.from_array(np.zeros(WIDTH, np.float32), GATE_WEIGHT))
    return RandomModel(_model(b, value), steps, gate == "weight")


def independent(seed: int) -> RandomModel:
    """Return a model in which each row's results depend on that row alone."""
    b = Builder(np.random.default_rng(seed))
    steps: list[str] = []
    value = _start(b)
    for _ in range(b.chance.integers(1, 5)):
        value = _step(b, value, {**PLAIN, **NESTED}, steps)
    return RandomModel(_model(b, value), steps)


def _start(b: Builder) -> str:
    ids = b.Clip("ids", b.scalar(0), b.scalar(9))
    return b.Add("x", b.Squeeze(b.Gather(b.weight(10, 1), ids), b.ints(-1)))


def _step(b: Builder, value: str, among: dict[str, Step], steps: list[str]) -> str:
    name, step = choose(b, among)
    steps.append(name)
    return step(b, value)


def _model(b: Builder, value: str) -> ModelProto:
    b.nodes.append(helper.make_node("Identity", [value], ["y"], name="end"))
    x, ids, y = (
        value_info(name, kind, ["n", WIDTH])
        for name, kind in (("x", FLOAT), ("ids", INT64), ("y", FLOAT))
    )
    graph = helper.make_graph(b.nodes, "random", [x, ids], [y], b.tensors)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    if b.functions:
        opsets.append(helper.make_opsetid("test.steps", 1))
    return helper.make_model(graph, opset_imports=opsets, functions=b.functions, ir_version=10)


def written(model: RandomModel, folder: Path) -> Path:
    """Write a model's file and return its path."""
    path = folder / "random.onnx"
    onnx.save(model.proto, path)
    return path


def loaded(model: RandomModel, path: Path) -> engine.Model:
    """Load a model's file; a gate that is a weight is open."""
    if not model.is_gated_by_weight:
        return engine.load(path)
    built = engine.load(path, variable_weights=[GATE_WEIGHT])
    built.update_weights(OPENED)
    return built


def context_of(model: RandomModel) -> engine.Context:
    """Return a context in which a gate that is a weight can be opened."""
    context = engine.Context()
    if model.is_gated_by_weight:
        context.parallel.config_info = {"common_context": {"variable_weights_list": GATE_WEIGHT}}
    return context


def hostile_rows(count: int, seed: int) -> Rows:
    """Return rows (x, ids) with values that open every gate, in some of the rows."""
    chance = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        x = chance.standard_normal((1, WIDTH)).astype(np.float32)
        ids = chance.integers(0, 2, (1, WIDTH))
        if number % 3 != 1:
            places = chance.random((1, WIDTH)) < 0.5
            x[places] += chance.choice((7.0, 30.0, 80.0))
            ids[places] = chance.choice((2, 3, 6, 7, 9))
        rows.append((x, ids.astype(np.int64)))
    return rows
