"""Sizes of the values inside of nodes, compared with those that onnx's reference computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest
from onnx import ModelProto, parser
from onnx.reference import ReferenceEvaluator

import engine
from engine.config.text import size
from engine.report.explanation.node import ExplainedNode
from engine.report.explanation.roof import Roof

Shapes: TypeAlias = dict[str, set[Any]]

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

# Each model takes x: float[2, 3, 4], says nothing of the sizes inside, and has branches whose
# results differ in rank or in a size, so that onnx's own inference ends at them.
IF_IN_IF = """net (float[a, b, c] x) => (float[p, q] y) <int64 zero = {0}, int64[1] front = {0}>
  { sizes = Shape(x) n = Gather(sizes, zero) two = Constant <value = int64 {2}> () e = Equal(n, two)
    y = If <
      then_branch = then () => (float[] t)
      { three = Constant <value = int64 {3}> () one = Constant <value = int64 {1}> ()
        m = Gather(sizes, one) f = Equal(m, three) neg = Neg(x)
        u = If <
          then_branch = inner () => (float[] i)
          { i = ReduceSum <keepdims = 0> (neg, front) },
          else_branch = other () => (float[] o) { o = Unsqueeze(x, front) }> (f)
        v = Exp(u) w = MatMul(v, k) t = Relu(w) },
      else_branch = last () => (float[] l) { l = Flatten(x) }> (e) }"""

LOOP_IN_IF = """net (float[a, b, c] x, bool s) => (float[] y)
  <int64 zero = {0}, bool yes = {1}, int64[1] front = {0}>
  { y = If <
      then_branch = then () => (float[] t)
      { sizes = Shape(x) n = Gather(sizes, zero) z = ReduceSum <keepdims = 0> (x, front)
        r = Loop <body = body (int64 i, bool go, float[] state) => (bool on, float[] next)
          { on = Identity(go) next = Add(state, z) }> (n, yes, z)
        q = MatMul(r, k) t = Neg(q) },
      else_branch = other () => (float[] e) { e = Sqrt(x) }> (s) }"""

STACKING = """net (float[2, b, c] x, bool s) => (float[] y)
  <int64 two = {2}, bool yes = {1}, int64[1] front = {0}>
  { y = If <
      then_branch = then () => (float[] t)
      { z = ReduceSum <keepdims = 0> (x, front)
        r, all = Loop <
          body = body (int64 i, bool go, float[] state) => (bool on, float[] next, float[] o)
          { on = Identity(go) next = Add(state, z) o = MatMul(next, k) }> (two, yes, z)
        t = ReduceSum <keepdims = 0> (all, front) },
      else_branch = other () => (float[] e) { e = Sqrt(x) }> (s) }"""

IF_IN_LOOP = """net (float[a, b, c] x) => (float[] y)
  <int64 n = {3}, bool yes = {1}, int64 zero = {0}, int64[1] front = {0}>
  { y = Loop <body = body (int64 i, bool go, float[] state) => (bool on, float[] next)
      { on = Identity(go) sizes = Shape(state) rank = Size(sizes)
        three = Constant <value = int64 {3}> () e = Equal(rank, three)
        sum = If <then_branch = then () => (float[] t)
                  { t = ReduceSum <keepdims = 0> (state, front) },
                  else_branch = other () => (float[] o) { o = Identity(state) }> (e)
        next = Add(state, sum) }> (n, yes, x) }"""

SCAN = """net (float[a, b, c] x) => (float[] f, float[p, q] y)
  <int64 one = {1}, int64[1] front = {0}>
  { sizes = Shape(x) m = Gather(sizes, one) three = Constant <value = int64 {3}> ()
    e = Equal(m, three) begin = ReduceMax <keepdims = 0> (x)
    f, y = Scan <num_scan_inputs = 1,
      body = body (float s, float[d, e] v) => (float o, float[g] r)
      { r = If <then_branch = then () => (float[] t) { t = ReduceSum <keepdims = 0> (v, front) },
                else_branch = other () => (float[] g) { g = Identity(v) }> (e)
        u = ReduceMax <keepdims = 0> (r) o = Add(s, u) }> (begin, x) }"""

PADS = """net (float[a, b, c] x, bool s) => (float[] y) <int64[1] front = {0}>
  { y = If <
      then_branch = then () => (float[] t)
      { sizes = Shape(x) rank = Shape(sizes) zeros = ConstantOfShape <value = int64[1] {1}> (rank)
        both = Concat <axis = 0> (zeros, sizes) pads = Cast <to = 7> (both)
        p = Pad(x, pads) t = Neg(p) },
      else_branch = other () => (float[] e) { e = Sqrt(x) }> (s) }"""

FUNCTION = """net (float[a, b, c] x) => (float[] y) { z = local.half(x) y = local.half(z) }
  <domain: "local", opset_import: ["" : 17]>
  half (v) => (r)
  { sizes = Shape(v) last = Constant <value = int64 {-1}> () n = Gather(sizes, last)
    four = Constant <value = int64 {4}> () e = Equal(n, four)
    axes = Constant <value = int64[1] {-1}> ()
    w = If <then_branch = then () => (float[] t) { t = ReduceSum <keepdims = 0> (v, axes) },
            else_branch = other () => (float[] o) { o = Unsqueeze(v, axes) }> (e)
    r = Neg(w) }"""

MODELS = {
    "if in if": IF_IN_IF,
    "loop in if": LOOP_IN_IF,
    "if in loop": IF_IN_LOOP,
    "scan": SCAN,
    "pads": PADS,
    "function": FUNCTION,
}


def model_of(text: str) -> ModelProto:
    """Return a model; it has a weight k: float[4, 5]."""
    weight = np.linspace(-1, 1, 20)
    weights = "float[4, 5] k = {" + ", ".join(map(str, weight)) + "}"
    head, bracket, rest = text.partition("<" if "y) <" in text or "y)\n  <" in text else "{")
    text = f"{head}<{weights}{',' if bracket == '<' else '> {'}{rest}"
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17, "local" : 1]>\n{text}')


def record(evaluator: ReferenceEvaluator, shapes: Shapes) -> None:
    """Have the reference, and those of its bodies and functions, write down what nodes give."""
    for node in evaluator.rt_nodes_:
        for inner in vars(node).values():
            if isinstance(inner, ReferenceEvaluator):
                record(inner, shapes)

        def run(*args: Any, _node: Any = node, _run: Any = node.run, **more: Any) -> Any:
            results = _run(*args, **more)
            for name, value in zip(_node.output, results, strict=False):
                shapes[name].add(np.shape(value))
            return results

        node.run = run


def nodes_of(nodes: tuple[ExplainedNode, ...]) -> Iterator[ExplainedNode]:
    """Yield the nodes, and those inside of them that may run."""
    for node in nodes:
        yield node
        for body in node.bodies:
            if body.times != 0:
                yield from nodes_of(body.nodes)


@pytest.mark.parametrize("name", MODELS)
def test_sizes_inside_are_those_of_the_reference(name: str) -> None:
    model = model_of(MODELS[name])
    feeds: dict[str, Any] = {"x": X}
    if any(info.name == "s" for info in model.graph.input):
        feeds["s"] = np.array(True)
    expected: Shapes = defaultdict(set)
    reference = ReferenceEvaluator(model)
    record(reference, expected)
    reference.run(None, feeds)
    found: Shapes = defaultdict(set)
    for node in nodes_of(engine.explain(model, inputs=feeds, roof=Roof(1e9, 1e8)).nodes):
        for spec in node.outputs:
            found[spec.name].add(spec.shape)
    assert {name: found[name] for name in expected} == expected


def test_what_a_loop_stacks_inside_of_a_branch_has_the_sizes_of_all_iterations() -> None:
    """Onnx's reference joins such results in place of stacking them: here it is arithmetic."""
    model = model_of(STACKING)
    feeds = {"x": X, "s": np.array(True)}
    [loop, total] = engine.explain(model, inputs=feeds).nodes[-1].bodies[0].nodes[-2:]
    assert [spec.shape for spec in loop.outputs] == [(3, 4), (2, 3, 5)]
    assert [spec.shape for spec in total.outputs] == [(3, 5)]
    assert total.flops == 3 * 5  # one sum for each pair


def test_the_operations_and_bytes_of_either_branch_are_shown_where_data_choose() -> None:
    found = engine.explain(model_of(PADS), inputs={"x": X, "s": np.array(True)})
    padded = (2 + 1 + 2) * (3 + 1 + 3) * (4 + 1 + 4)
    numbers = 8 * (3 + 1 + (1 + 3) + (6 + 6) + (6 + 6) + 6)  # of the pads: sizes, zeros, both
    floats = 4 * ((24 + padded) + (padded + padded))  # Pad and Neg
    head, [row] = found.node_table(found.nodes[-1:])
    shown = dict(zip(head, row, strict=True))
    assert shown["operations"] == f"{padded} FLOP or 24 FLOP"
    assert shown["moved"] == f"{size(numbers + floats)} or 192 bytes"
