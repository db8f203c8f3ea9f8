"""engine.explain inside of nodes: how often bodies run, and the work of the nodes in them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from onnx import parser

import engine
from engine.report.explanation.explanation import Explanation
from engine.report.explanation.node import ExplainedNode
from engine.report.explanation.page import page
from engine.report.explanation.roof import Roof

ROOF = Roof(1e9, 1e8)
IDENTITY = "(int64 i, bool go, float[4] s) => (bool on, float[4] t) { on = Identity(go)"


def explain(body: str, head: str = "", **more: Any) -> Explanation:
    opsets = ", ".join(('"" : 17', *filter(None, [head])))
    model = parser.parse_model(f"<ir_version: 10, opset_import: [{opsets}]>\n{body}")
    return engine.explain(model.SerializeToString(), roof=ROOF, **more)


def last(found: Explanation) -> ExplainedNode:
    return found.nodes[-1]


def bodies(node: ExplainedNode) -> list[tuple[str, int | None, int | None]]:
    return [(body.name, body.times, body.flops) for body in node.bodies]


def test_a_loop_of_a_known_count_has_the_work_of_all_its_iterations() -> None:
    node = last(
        explain(
            f"""net (float[4] x) => (float[4] y) <int64 n = {{10}}, bool b = {{1}}>
            {{ y = Loop <body = body {IDENTITY} t = Add(s, x) }}> (n, b, x) }}"""
        )
    )
    assert bodies(node) == [("body", 10, 4)]
    assert node.flops == 10 * 4
    assert node.moved_bytes == 10 * 3 * 16  # s, x and t; Identity moves nothing
    assert node.least_s == pytest.approx(10 * 48 / 1e8)
    assert node.bound == "memory"
    [identity, add] = node.bodies[0].nodes
    assert (identity.op_type, add.op_type, add.flops) == ("Identity", "Add", 4)
    assert (add.backend, add.device, add.provider) == (node.backend, node.device, node.provider)
    assert [spec.shape for spec in add.outputs] == [(4,)]


def test_a_product_in_a_loop_is_bound_by_computing() -> None:
    node = last(
        explain(
            """net (float[64, 64] x) => (float[64, 64] y) <int64 n = {3}, bool b = {1}>
            { y = Loop <body = body (int64 i, bool go, float[64, 64] s)
                               => (bool on, float[64, 64] t)
              { on = Identity(go) t = MatMul(s, x) }> (n, b, x) }"""
        )
    )
    assert node.flops == 3 * 2 * 64**3
    assert node.least_s == pytest.approx(node.flops / 1e9)
    assert node.bound == "compute"


@pytest.mark.parametrize("n", [1, 5])
def test_a_count_that_follows_from_a_size_is_known(n: int) -> None:
    found = explain(
        """net (float[a, 4] x) => (float[a, 4] y) <int64 zero = {0}, bool b = {1}>
        { sizes = Shape(x) n = Gather(sizes, zero) twice = Add(n, n)
          y = Loop <body = body (int64 i, bool go, float[a, 4] s) => (bool on, float[a, 4] t)
            { on = Identity(go) t = Add(s, x) }> (twice, b, x) }""",
        inputs={"x": np.ones((n, 4), np.float32)},
    )
    assert bodies(last(found)) == [("body", 2 * n, 4 * n)]


def test_what_a_loop_stacks_tells_how_often_it_ran() -> None:
    """Whatever its condition is: here it stops by itself, in the run that measures the sizes."""
    model = """net (float[4] x) => (float[4] y, float[k, 4] z) <int64 n = {9}, bool b = {1}>
        { least = ReduceMin <keepdims = 0> (x)
          y, z = Loop <body = body (int64 i, bool go, float[4] s)
                              => (bool on, float[4] t, float[4] u)
            { t = Add(s, s) u = Neg(t) on = Less(t0, limit)
              t0 = ReduceMax <keepdims = 0> (t) limit = Constant <value = float {30.0}> () }>
            (n, b, x) }"""
    model = model.replace("on = Less(t0, limit)", "").replace(
        "{30.0}> () }", "{30.0}> () on = Less(t0, limit) }"
    )
    node = last(explain(model, inputs={"x": np.ones(4, np.float32)}))
    # 2, 4, 8, 16, 32: the fifth is not below 30. Add 4, Neg 4, ReduceMax 3, Less 1.
    assert bodies(node) == [("body", 5, 12)]
    assert node.flops == 5 * 12


@pytest.mark.parametrize(
    ("begins", "gives", "times"),
    [("b", "Identity(go)", None), ("no", "Identity(go)", 0), ("yes", "Identity(no)", 1),
     ("yes", "Identity(yes)", 7), ("yes", "Not(go)", None), ("", "Identity(go)", 7)],
)  # fmt: skip
def test_a_loop_whose_condition_depends_on_data_has_the_work_of_an_iteration(
    begins: str, gives: str, times: int | None
) -> None:
    found = explain(
        f"""net (float[4] x, bool b) => (float[4] y)
        <int64 n = {{7}}, bool no = {{0}}, bool yes = {{1}}>
        {{ y = Loop <body = body (int64 i, bool go, float[4] s) => (bool on, float[4] t)
          {{ on = {gives} t = Exp(s) }}> (n, {begins}, x) }}"""
    )
    [body] = last(found).bodies
    negation = 1 if "Not" in gives else 0
    assert (body.times, body.flops) == (times, 4 + negation)
    assert last(found).flops == (None if times is None else times * 4)
    if times is None:
        text = f"Loop ({4 + negation} FLOP an iteration)"
        assert found.facts()["not known"] == f"the work of 1 node: {text}"
        assert last(found).least_s is None


def test_sizes_that_change_from_iteration_to_iteration_are_not_known() -> None:
    node = last(
        explain(
            """net (float[1, 4] x) => (float[k, 4] y) <int64 n = {3}, bool b = {1}>
            { y = Loop <body = body (int64 i, bool go, float[j, 4] s) => (bool on, float[m, 4] t)
              { on = Identity(go) u = Neg(x) v = Relu(s) t = Concat <axis = 0> (v, u) }>
              (n, b, x) }"""
        )
    )
    _, neg, relu, concat = node.bodies[0].nodes
    assert neg.flops == 4
    assert relu.flops is None
    assert [spec.shape for spec in concat.outputs] == [(None, 4)]
    assert node.flops is None
    assert [spec.shape for spec in node.outputs] == [(4, 4)]


@pytest.mark.parametrize(
    ("condition", "expected", "flops"),
    [
        ("Greater(n, three)", [("then", 1, 128), ("else", 0, 16)], 128),
        ("Less(n, three)", [("then", 0, 128), ("else", 1, 16)], 16),
        ("Identity(b)", [("then", None, 128), ("else", None, 16)], None),
    ],
)
def test_of_branches_the_one_that_is_taken_counts(
    condition: str, expected: list[Any], flops: int | None
) -> None:
    found = explain(
        f"""net (float[4, 4] x, bool b) => (float[4, 4] y) <int64 zero = {{0}}, int64 three = {{3}}>
        {{ sizes = Shape(x) n = Gather(sizes, zero) c = {condition}
          y = If <then_branch = then () => (float[4, 4] t) {{ t = MatMul(x, x) }},
                  else_branch = other () => (float[4, 4] e) {{ e = Neg(x) }}> (c) }}"""
    )
    assert bodies(last(found)) == expected
    assert last(found).flops == flops
    if flops is None:
        assert found.facts()["not known"] == "the work of 1 node: If (128 FLOP or 16 FLOP)"


def test_branches_of_the_same_work_are_known_whichever_is_taken() -> None:
    node = last(
        explain(
            """net (float[4] x, bool b) => (float[4] y)
            { y = If <then_branch = then () => (float[4] t) { t = Exp(x) },
                      else_branch = other () => (float[4] e) { e = Neg(x) }> (b) }"""
        )
    )
    assert (node.flops, node.moved_bytes) == (4, 2 * 16)
    assert node.least_s == pytest.approx(32 / 1e8)


def test_a_scan_runs_once_for_each_entry_of_its_axis() -> None:
    node = last(
        explain(
            """net (float[4] s, float[4, 3] x) => (float[4] f, float[3, 4] y)
            { f, y = Scan <num_scan_inputs = 1, scan_input_axes = [1],
                body = body (float[4] a, float[4] v) => (float[4] o, float[4] r)
                { o = Add(a, v) r = Sigmoid(o) }> (s, x) }"""
        )
    )
    assert bodies(node) == [("body", 3, 4 + 4 * 4)]
    assert node.flops == 3 * 20


FUNCTIONS = """
<domain: "local", opset_import: ["" : 17, "local" : 1]>
outer <at> (a) => (r) { b = local.inner <k: int = @at> (a) r = local.inner <k: int = @at> (b) }
<domain: "local", opset_import: ["" : 17]>
inner <k> (a) => (r) { r = Softmax <axis: int = @k> (a) }"""


@pytest.mark.parametrize("at", [0, 1])
def test_a_function_has_the_work_of_its_nodes_with_the_attributes_of_the_call(at: int) -> None:
    found = explain(
        f"net (float[2, 8] x) => (float[2, 8] y) {{ y = local.outer <at = {at}> (x) }}" + FUNCTIONS,
        '"local" : 1',
    )
    lanes = 8 if at == 0 else 2  # vectors along the axis
    softmax = 5 * 16 - 2 * lanes
    node = last(found)
    assert node.flops == 2 * softmax
    assert bodies(node) == [("function", 1, 2 * softmax)]
    assert [bodies(inner) for inner in node.bodies[0].nodes] == [[("function", 1, softmax)]] * 2


def test_a_weight_that_only_a_body_reads_counts_there() -> None:
    node = last(
        explain(
            """net (float[1, 4] x) => (float[1, 32] y) <int64 n = {2}, bool b = {1}>
            { w = Constant <value = float[4, 32] {0.0}> ()
              y = Loop <body = body (int64 i, bool go, float[1, 32] s) => (bool on, float[1, 32] t)
              { on = Identity(go) p = MatMul(x, w) t = Add(s, p) }> (n, b, z)
            }""".replace("{0.0}", "{" + ", ".join(["0.5"] * 128) + "}").replace(
                "y = Loop", "z = MatMul(x, w) y = Loop"
            )
        )
    )
    assert node.flops == 2 * (2 * 4 * 32 + 32)
    # x, w and p; s, p and t
    assert node.moved_bytes == 2 * 4 * (4 + 128 + 32 + 3 * 32)


# ---------------------------------------------------------------------------------------- shown


NESTED = """net (float[4] x, int64 n, bool c) => (float[4] y) <bool b = {1}>
    { y = Loop <body = body (int64 i, bool go, float[4] s) => (bool on, float[4] t)
      { on = Identity(go)
        t = If <then_branch = then () => (float[4] p) { [rise] p = Add(s, x) },
                else_branch = other () => (float[4] q) { q = Tanh(s) }> (c) }> (n, b, x) }"""


def test_nodes_inside_are_rows_below_the_node_that_they_are_in() -> None:
    found = explain(NESTED)
    head, rows = found.node_table(found.nodes, has_bodies=True)
    assert head[:2] == ("index", "operator")
    shown = [(row[0], row[1], row[head.index("state")]) for row in rows]
    assert shown == [
        ("0", "Loop", "runs"),
        ("0.body.0", "Identity", "each iteration"),
        ("0.body.1", "If", "each iteration"),
        ("0.body.1.then.0", "Add", "if taken"),
        ("0.body.1.else.0", "Tanh", "if taken"),
    ]
    operations = [row[head.index("operations")] for row in rows]
    assert operations == ["4 FLOP an iteration", "0 FLOP", "4 FLOP", "4 FLOP", "4 FLOP"]
    assert len(found.node_table(found.nodes)[1]) == 1


def test_the_json_and_the_page_have_them_too() -> None:
    found = explain(NESTED)
    [loop] = json.loads(json.dumps(found.to_json()))["nodes"]
    [body] = loop["bodies"]
    assert (body["name"], body["times"], body["flops"]) == ("body", None, 4)
    branches = body["nodes"][1]["bodies"]
    assert [branch["name"] for branch in branches] == ["then", "else"]
    assert branches[0]["nodes"][0]["outputs"] == [{"name": "p", "dtype": "float32", "shape": [4]}]
    text = page([found]).partition('id="data">')[2].partition("</script>")[0]
    [graph] = json.loads(text)["graphs"]
    place = str(graph["label"].index("Loop"))
    assert [row[0][0] for row in graph["inside"][place]][2] == "0.body.1.then.0 Add rise"
    assert "rise" in graph["words"][int(place)]


def test_the_time_of_a_loop_is_not_counted_once_more_for_what_it_runs() -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17]>
        net (float[64, 64] x) => (float[64, 64] y) <int64 n = {20}, bool b = {1}>
        { [first] a = Relu(x)
          [around] y = Loop <body = body (int64 i, bool go, float[64, 64] s)
                                    => (bool on, float[64, 64] t)
            { on = Identity(go) [inside] t = MatMul(s, x) }> (n, b, a) }"""
    )
    with engine.load(model.SerializeToString(), threads=1) as built:
        profile = built.profile({"x": np.ones((64, 64), np.float32)}, 1)
        found = built.explain({"x": np.ones((64, 64), np.float32)}, profile=True)
    times = {kernel.name: kernel for kernel in profile.kernels}
    outside = {"first", "around"}  # with the time inside
    raw = [run.duration_s for run in profile.runs if profile.kernels[run.kernel].name in outside]
    assert profile.kernels_s == pytest.approx(sum(raw))
    assert times["inside"].runs == 20
    assert times["inside"].nodes == times["around"].nodes == (1,)
    assert isinstance(found, Explanation)
    assert found.unplaced_s == 0
    assert found.kernels_s == pytest.approx(sum(node.time_s or 0 for node in found.nodes))


@pytest.mark.parametrize(("outer", "inner"), [("", ""), ("[same] ", "[same] ")])
def test_a_kernel_in_a_body_is_not_taken_for_a_node_outside_of_its_name(
    outer: str, inner: str
) -> None:
    """Without names ONNX Runtime calls both MatMul_0: the first node of either graph."""
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 17]>
        net (float[8, 8] x) => (float[8, 8] y) <int64 n = {{20}}, bool b = {{1}}>
        {{ {outer}a = MatMul(x, x)
           y = Loop <body = body (int64 i, bool go, float[8, 8] s) => (bool on, float[8, 8] t)
             {{ {inner}t = MatMul(s, x) on = Identity(go) }}> (n, b, a) }}"""
    )
    with engine.load(model.SerializeToString(), threads=1) as built:
        profile = built.profile({"x": np.ones((8, 8), np.float32)}, 1)
    runs = {kernel.nodes: kernel.runs for kernel in profile.kernels if kernel.op_type == "MatMul"}
    assert runs == {(0,): 1, (1,): 20}


def test_a_kernel_beside_a_loop_in_another_thread_is_no_part_of_it() -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17]>
        net (float[64, 64] x) => (float[64, 64] y, float[64, 64] z) <int64 n = {20}, bool b = {1}>
        { [around] y = Loop <body = body (int64 i, bool go, float[64, 64] s)
                                    => (bool on, float[64, 64] t)
            { on = Identity(go) [inside] t = MatMul(s, x) }> (n, b, x)
          [beside] z = MatMul(x, x) }"""
    )
    config = {"cpu_context": {"session.execution_mode": "parallel"}}
    with engine.load(model.SerializeToString(), threads=2, config=config) as built:
        profile = built.profile({"x": np.ones((64, 64), np.float32)}, 1)
    kernels = {kernel.name: kernel for kernel in profile.kernels}
    assert (kernels["around"].nodes, kernels["beside"].nodes) == ((0,), (1,))
    whole = [run.duration_s for run in profile.runs if profile.kernels[run.kernel].nodes == (0,)]
    own_s = max(2 * max(whole) - sum(whole), 0)  # the loop's, without that of its body
    assert kernels["around"].time_s == pytest.approx(own_s, abs=1e-9)
