"""engine.explain: node by node where a model runs and why, its work, and the page that draws it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import engine
from engine import Model
from engine.report.explanation.explanation import Explanation
from engine.report.explanation.layout import NODE, drawn
from engine.report.explanation.page import page
from engine.report.explanation.roof import Roof, measured
from engine.report.explanation.traffic import moved, moved_together
from engine.types import NodeState
from engine_testing import models

pytestmark = pytest.mark.usefixtures("null_backend")

ROOF = Roof(1e9, 1e8)
X = np.ones((4, 3), np.float32)


def explain(model: Model | Path | bytes, **more: Any) -> Explanation:
    return engine.explain(model, "null", roof=ROOF, **more)


def text_model(body: str) -> bytes:
    header = '<ir_version: 8, opset_import: ["" : 17]>\n'
    return parser.parse_model(header + body).SerializeToString()


def test_each_node_has_its_place_its_work_and_its_least_time(affine: Model) -> None:
    found = explain(affine, inputs=[X])
    mul, add = found.nodes
    assert (mul.op_type, mul.backend, mul.device, mul.segment) == ("Mul", "null", "null:0", 0)
    assert [spec.shape for spec in mul.outputs] == [(4, 3)]
    assert (mul.flops, mul.moved_bytes) == (12, (12 + 1 + 12) * 4)
    assert mul.intensity == 12 / 100
    assert mul.least_s == pytest.approx(100 / 1e8)
    assert mul.bound == "memory"
    assert mul.weights_bytes == 4
    assert len(mul.weights) == 1
    assert found.flops == 24
    assert found.moved_bytes == mul.moved_bytes + (add.moved_bytes or 0)
    assert found.least_s == pytest.approx(2 * 100 / 1e8)
    assert found.unknown == ()
    assert found.sizes == "as given"


def test_the_sizes_of_the_inputs_are_said(affine: Model) -> None:
    chosen = explain(affine)
    assert "chosen" in chosen.sizes
    assert all(isinstance(dim, int) for spec in chosen.inputs for dim in spec.shape or ())
    large, small = (explain(affine, inputs={"x": X[:rows]}).flops for rows in (4, 1))
    assert large == 4 * small


def test_a_product_of_many_is_bound_by_computing() -> None:
    model = text_model(
        "net (float[64, 512] x, float[512, 512] w) => (float[64, 512] y) { y = MatMul(x, w) }"
    )
    [node] = explain(model).nodes
    assert node.flops == 2 * 64 * 512 * 512
    assert node.bound == "compute"
    assert node.least_s == pytest.approx(node.flops / 1e9)
    doubles = text_model(
        "net (double[64, 512] x, double[512, 512] w) => (double[64, 512] y) { y = MatMul(x, w) }"
    )
    [node] = explain(doubles).nodes  # of which the roof has only the bytes
    assert node.bound == "memory"


def test_work_that_depends_on_data_is_unknown_and_said() -> None:
    model = text_model(
        """net (float[4] x, int64 n, bool b) => (float[4] y)
        { y = Loop <body = body (int64 i, bool go, float[4] s) => (bool go2, float[4] t)
          { go2 = Identity(go) t = Add(s, x) }> (n, b, x) }"""
    )
    found = explain(model)
    [node] = found.nodes
    assert (node.flops, node.moved_bytes, node.least_s) == (None, None, None)
    assert found.unknown == (node,)
    assert found.facts()["not known"] == "the work of 1 node: Loop (4 FLOP an iteration)"
    assert "unknown" in str(found)


def test_a_closed_model_and_a_compiled_form_are_refused(affine: Model, tmp_path: Path) -> None:
    affine.close()
    with pytest.raises(engine.ModelStateError, match="closed"):
        affine.explain()
    with pytest.raises(engine.ModelNotFound, match=r"absent\.onnx"):
        engine.explain("absent.onnx")


def test_a_roof_is_two_numbers_above_0(affine: Model) -> None:
    with pytest.raises(TypeError, match="roof must be a Roof, but got <class 'tuple'>"):
        engine.explain(affine, roof=(1e9, 1e9))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"bytes_per_s must be a finite number above 0, but got 0"):
        Roof(1e9, 0)
    with pytest.raises(TypeError, match="flops_per_s must be a number"):
        Roof("fast", 1.0)  # type: ignore[arg-type]


def test_the_roof_of_this_processor_is_measured_once() -> None:
    roof = measured()
    assert roof is measured()
    assert roof.flops_per_s > 1e8
    assert roof.bytes_per_s > 1e7
    assert roof.source == "measured now"


def test_a_device_has_no_roof_unless_it_is_given(affine: Model) -> None:
    found = engine.explain(affine, inputs=[X])
    assert found.roof is None
    assert found.least_s is None
    assert [node.least_s for node in found.nodes] == [None, None]
    assert "the roof of null:0 is not known; give one" in found.notes


def test_an_updatable_weight_is_named(tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    with engine.load(path, "null", variable_weights=["two"]) as model:
        found = explain(model)
    assert [node.updatable for node in found.nodes] == [("two",), ()]
    assert found.facts()["updatable"] == "two"


def test_requests_that_cannot_share_a_run_have_the_node_that_stands_in_the_way() -> None:
    alone = text_model("net (float[b, 3] x) => (float[b, 3] y) { y = Softmax <axis = 0> (x) }")
    assert "Softmax" in explain(alone).batching
    shared = text_model("net (float[b, 3] x) => (float[b, 3] y) { y = Softmax <axis = 1> (x) }")
    assert explain(shared).batching == ""


def test_profile_gives_each_kernel_its_time(affine: Model) -> None:
    found = affine.explain([X], profile=True)
    assert found.predict_s is not None
    assert all(node.time_s is not None for node in found.nodes)  # type: ignore[attr-defined]


def test_the_text_the_json_and_the_html_say_the_same(affine: Model) -> None:
    found = explain(affine, inputs=[X])
    values = json.loads(json.dumps(found.to_json()))
    assert values["flops"] == found.flops
    assert [node["op_type"] for node in values["nodes"]] == ["Mul", "Add"]
    assert values["nodes"][0]["outputs"] == [
        {"name": found.nodes[0].outputs[0].name, "dtype": "float32", "shape": [4, 3]}
    ]
    assert values["batchable"] is True
    words = " ".join(ElementTree.fromstring(found._repr_html_()).itertext())
    for part in ("24 FLOP", "200 bytes", "Mul", "null:0"):
        assert part in str(found)
        assert part in words
    assert repr(found) == str(found)


# -------------------------------------------------------------------------------------- traffic


def test_bytes_that_are_moved() -> None:
    nbytes = {"x": 100, "i": 8, "y": 100, "z": 20, "open": None}
    assert moved("Add", ["x", "x"], ["y"], nbytes) == 200  # read once
    assert moved("Reshape", ["x", "i"], ["y"], nbytes) == 0
    assert moved("Gather", ["x", "i"], ["z"], nbytes) == 2 * 20 + 8
    assert moved("Shape", ["open"], ["i"], nbytes) == 8
    assert moved("Clip", ["x", "", "i"], ["y"], nbytes) == 208
    assert moved("Add", ["x", "open"], ["y"], nbytes) is None
    fused = [(["x", "i"], ["a"]), (["a"], ["y"])]
    assert moved_together(fused, frozenset({"y"}), nbytes) == 100 + 8 + 100


# --------------------------------------------------------------------------------------- layout


def grid(rows: int, columns: int) -> list[tuple[int, int]]:
    """Arrows from each node of a row to the one below and its neighbour."""
    return [
        (row * columns + column, (row + 1) * columns + (column + step) % columns)
        for row in range(rows - 1)
        for column in range(columns)
        for step in range(2)
    ]


@pytest.mark.parametrize(
    ("count", "arrows"),
    [
        (0, []),
        (1, []),
        (3, [(0, 1), (1, 2), (0, 2)]),
        (40, grid(8, 5)),
        (4, [(3, 2), (2, 1), (1, 0)]),
        (900, [(0, node) for node in range(1, 900)]),
        (900, [(node, node + 1) for node in range(899)] + [(0, node) for node in range(2, 900)]),
    ],
    ids=["empty", "one", "triangle", "grid", "backwards", "fan", "chain with long arrows"],
)
def test_arrows_go_down_and_boxes_do_not_overlap(count: int, arrows: list[tuple[int, int]]) -> None:
    drawing = drawn(count, arrows)
    assert all(drawing.layers[a] < drawing.layers[b] for a, b in arrows)
    rows: dict[int, list[float]] = {}
    for layer, x in zip(drawing.layers, drawing.xs, strict=True):
        rows.setdefault(layer, []).append(x)
    assert sorted(rows) == list(range(len(rows)))
    for row in map(sorted, rows.values()):
        assert all(b - a > NODE - 1e-6 for a, b in pairwise(row))
    for (a, b), route in zip(arrows, drawing.routes, strict=True):
        assert route is None or len(route) == drawing.layers[b] - drawing.layers[a] - 1


def test_a_chain_is_drawn_as_a_line_and_a_branch_beside_it() -> None:
    chain = drawn(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    assert len({*chain.xs}) == 1
    branch = drawn(5, [(0, 1), (1, 2), (2, 3), (3, 4), (1, 3)])
    [point] = branch.routes[4] or []
    assert abs(point - branch.xs[2]) > NODE / 2  # it does not pass through the box


# ----------------------------------------------------------------------------------------- page


def shown(html: str) -> Any:
    """Return the data of a page."""
    text = html.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    return json.loads(text)


def test_the_page_has_every_node_and_loads_nothing(affine: Model, tmp_path: Path) -> None:
    found = explain(affine, inputs=[X])
    found.save_html(tmp_path / "net.html")
    html = (tmp_path / "net.html").read_text(encoding="utf-8")
    [graph] = shown(html)["graphs"]
    assert graph["label"] == ["x", "Mul", "Add", "y"]
    assert [arrow[:2] for arrow in graph["arrows"]] == [[0, 1], [1, 2], [2, 3]]
    assert "default-src 'none'" in html
    for word in ("http://", "https://", "src=", "@import", "url("):
        assert word not in html.replace("https://www.w3.org", ""), word


HOSTILE = "</script><img src=x onerror=alert(1)>\u2028\x1b[2J"


def test_a_hostile_name_stays_text(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in (HOSTILE, "y"))
    graph = helper.make_graph([helper.make_node("Relu", [HOSTILE], ["y"], HOSTILE)], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets)
    onnx.save(model, tmp_path / "m.onnx")
    found = explain(tmp_path / "m.onnx")
    html = page([found])
    assert html.count("</script>") == 2
    assert "<img" not in html
    assert "\x1b" not in html
    assert shown(html)["graphs"][0]["name"][1].startswith("</script>")
    assert "<img" not in found._repr_html_()
    ElementTree.fromstring(found._repr_html_())
    assert "\x1b" not in str(found)


def test_constants_are_no_boxes_and_a_backend_that_tells_no_states_is_named() -> None:
    model = text_model(
        """net (float[2] x) => (float[2] y)
        { c = Constant <value = float {2.0}> () a = Mul(x, c) y = Relu(a) }"""
    )
    found = explain(model)
    [graph] = shown(page([found]))["graphs"]
    assert graph["label"] == ["x", "Mul", "Relu", "y"]
    assert "backend 'null' does not tell which nodes it folds or fuses here" in found.notes


def test_states_have_words() -> None:
    assert {*NodeState} == {NodeState.RUNS, NodeState.FUSED, NodeState.FOLDED, NodeState.UNUSED}
