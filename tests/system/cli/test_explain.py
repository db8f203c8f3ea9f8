"""`engine explain`: the tables, the JSON and the page, of real models on the cpu backend."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import engine
from engine.report.explanation.roof import Roof
from engine_testing import models

ROOF = ("--roof", "1e9,1e8")


def test_the_work_of_a_model_is_shown_by_operator_and_by_node(cli, digits):
    done = cli("explain", digits / "digits.onnx", *ROOF, "--nodes")
    assert done.status == 0, done.err
    for words in (
        "7: 6 run, 1 fused",
        "image: float32[1, 1, 8, 8] (chosen so that it runs)",
        "can share runs",
        "1 GFLOP/s of float32, 100 MB/s (given)",
        "fused into 3",
        "fused, by onnxruntime's optimised graph into Relu 'rectify'",
    ):
        assert words in done.out
    # 2 products a weight, and a bias: 64 x 256 and 256 x 10.
    assert f"{2 * 64 * 256 + 256 + 2 * 256 * 10 + 10}" == "38154"
    [row] = [line.split() for line in done.out.splitlines() if line.startswith("Gemm ")]
    assert row[:4] == ["Gemm", "2", "38.2", "kFLOP"]


def test_without_nodes_only_those_that_cost_most_are_listed(cli, digits):
    done = cli("explain", digits / "digits.onnx", *ROOF)
    assert "The 5 nodes that take longest" in done.out
    assert "--nodes lists all nodes" in done.out


def test_a_fused_kernels_time_is_that_of_its_heaviest_operator(cli, digits):
    done = cli("explain", digits / "digits.onnx", *ROOF)
    rows = [line.split() for line in done.out.splitlines()]
    assert [row[-1] for row in rows if row[:1] == ["Relu"]] == ["0"]
    assert [row[1] for row in rows if row[:1] == ["3"]] == ["Gemm+Relu"]
    found = cli("explain", digits / "digits.onnx", *ROOF, "--json").json
    times = {each["operator"]: each["least_s"] for each in found["operators"]}
    assert times["Relu"] == 0
    assert times["Gemm"] == found["nodes"][3]["least_s"] + found["nodes"][4]["least_s"]


def test_the_sizes_that_are_given_count(cli, digits):
    found = cli("explain", digits / "digits.onnx", *ROOF, "--shape", "image=8,1,8,8", "--json")
    alone = cli("explain", digits / "digits.onnx", *ROOF, "--shape", "image=1,1,8,8", "--json")
    assert found.json["flops"] == 8 * alone.json["flops"]
    assert found.json["inputs"][0]["shape"] == [8, 1, 8, 8]
    assert found.json["sizes"] == "as given"
    assert [node["fused_into"] for node in alone.json["nodes"]] == [None, None, 3, *[None] * 4]
    assert alone.json["nodes"][2]["weights_bytes"] == (64 * 256 + 256) * 4


def test_profile_adds_the_time_of_each_kernel(cli, digits):
    done = cli("explain", digits / "digits.onnx", *ROOF, "--profile", "--json")
    nodes = done.json["nodes"]
    assert done.json["predict_s"] > 0
    assert [node["time_s"] is None for node in nodes] == [False, False, True, *[False] * 4]


def test_the_page_is_one_file(cli, digits, tmp_path):
    page = tmp_path / "net.html"
    done = cli("explain", digits / "digits.onnx", *ROOF, "--html", page)
    assert "open it in a browser" in done.err
    assert "probabilities" in page.read_text(encoding="utf-8")
    cli("explain", digits / "digits.onnx", "--html", tmp_path / "no" / "net.html").fails("net.html")
    cli("explain", digits / "digits.onnx", "--html", ".").fails(".: is a directory")


@pytest.mark.parametrize("roof", ["fast", "1e9", "1e9,0", "1e9,1e9,1e9", "nan,1", "1,inf"])
def test_a_roof_that_is_not_two_numbers_is_wrong_use(cli, tmp_path, roof):
    done = cli("explain", models.affine(tmp_path), "--roof", roof)
    done.fails("expected two numbers above 0", status=2, out="")


def test_a_model_that_is_not_there_is_one_line(cli, tmp_path):
    done = cli("explain", tmp_path / "absent.onnx").fails("absent.onnx: no such file")
    assert done.err.count("\n") == 1
    told = json.loads(cli("explain", tmp_path / "absent.onnx", "--json").out)
    assert told["error"]["type"] == "ModelNotFound"


def test_sizes_that_depend_on_the_data_are_measured_on_the_inputs():
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[n] x, bool b) => (int64[k, r] y, float[m] z) {
            kept = Cast <to = 9> (x)
            found = NonZero(x)
            y = Transpose(found)
            z = If <then_branch = all () => (float[q] t) { t = Compress(x, kept) },
                    else_branch = none () => (float[q] e) { e = Neg(x) }> (b)
        }"""
    )
    given = {"x": np.array([1, 0, 2, 3], np.float32), "b": np.array(True)}
    found = engine.explain(model, inputs=given, roof=Roof(1e9, 1e9))
    shapes = {spec.name: spec.shape for node in found.nodes for spec in node.outputs}
    assert shapes == {"kept": (4,), "found": (1, 3), "y": (3, 1), "z": (3,)}
    assert found.notes == ()
    [body] = found.unknown  # the work of a body depends on the data too
    assert body.op_type == "If"


def product(path):
    """Write y = x w, x float32[2, 4] and w float32[4, 8]."""
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [2, 4]), ("y", [2, 8]))
    )
    weights = numpy_helper.from_array(np.ones((4, 8), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    graph = helper.make_graph([node], "net", [x], [y], [weights])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), path)
    return path


def test_each_rank_of_a_sliced_model_is_explained(cli, tmp_path):
    path, slices = product(tmp_path / "net.onnx"), tmp_path / "slices"
    assert cli("slice", path, "--tp", "2", "--out", slices).status == 0
    done = cli("explain", slices, *ROOF, "--json", "--html", tmp_path / "ranks.html")
    assert done.status == 0, done.err
    ranks = done.json["ranks"]
    assert [(rank["rank"], rank["world_size"]) for rank in ranks] == [(0, 2), (1, 2)]
    for rank in ranks:  # each has half of the columns
        [half] = [node for node in rank["nodes"] if node["op_type"] == "MatMul"]
        assert half["flops"] == 2 * 2 * 4 * 4
        assert {node["backend"] for node in rank["nodes"]} == {"cpu", "ranks"}
        assert [spec["shape"] for spec in rank["nodes"][-1]["outputs"]] == [[2, 8]]
        assert all(node["flops"] is not None for node in rank["nodes"])
        assert all(node["moved_bytes"] is not None for node in rank["nodes"])
    assert "graphs" in (tmp_path / "ranks.html").read_text(encoding="utf-8")
    text = cli("explain", slices, *ROOF).out
    assert "0 of 2" in text
    assert "1 of 2" in text


def test_the_kernels_of_each_rank_are_measured(cli, tmp_path):
    path, slices = product(tmp_path / "net.onnx"), tmp_path / "slices"
    assert cli("slice", path, "--tp", "2", "--out", slices).status == 0
    done = cli("explain", slices, *ROOF, "--profile", "--json")
    assert done.status == 0, done.err
    for rank in done.json["ranks"]:
        times = {node["op_type"]: node["time_s"] for node in rank["nodes"]}
        assert times["MatMul"] > 0
        assert rank["predict_s"] > 0


def test_ranks_take_no_inputs_and_must_be_whole(cli, tmp_path):
    path, slices = product(tmp_path / "net.onnx"), tmp_path / "slices"
    assert cli("slice", path, "--tp", "2", "--out", slices).status == 0
    cli("explain", slices, "--shape", "x=1,4").fails("leave out --input and --shape", status=2)
    product(slices / "other.onnx")
    cli("explain", slices).fails("but other.onnx is no rank; give the path of one")
    (slices / "other.onnx").unlink()
    (slices / "net1.onnx").rename(slices / "net0b.onnx")
    (slices / "net0.onnx").unlink()
    cli("explain", slices).fails("is one rank's part of a sliced model")
