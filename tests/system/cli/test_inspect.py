"""`engine inspect`: what a file holds, without building it, and where it would run."""

from __future__ import annotations

import re

import onnx
import pytest
from onnx import numpy_helper

from engine.testing import models


def test_shows_inputs_outputs_operators_and_parameters(cli, digits):
    done = cli("inspect", digits / "digits.onnx")
    assert (done.status, done.err) == (0, "")
    lines = [" ".join(text.split()) for text in done.out.splitlines()]
    assert "image float32 [batch, 1, 8, 8]" in lines
    assert "probabilities float32 [batch, 10]" in lines
    assert "label int64 [batch]" in lines
    assert "Gemm ai.onnx 2" in lines
    assert "opset ai.onnx 17" in lines
    assert "IR version 8" in lines
    assert "producer examples/digits/train.py" in lines
    assert "graph digits, 7 nodes" in lines


def test_counts_agree_with_the_file(cli, digits):
    path = digits / "digits.onnx"
    shown = cli("inspect", path, "--json", "--nodes").json
    graph = onnx.load(path).graph
    weights = [numpy_helper.to_array(each) for each in graph.initializer]
    assert shown["parameters"]["elements"] == sum(each.size for each in weights)
    assert shown["parameters"]["size_bytes"] == sum(each.nbytes for each in weights)
    assert shown["parameters"]["tensors"] == len(weights)
    assert shown["size_bytes"] == path.stat().st_size
    assert sum(each["count"] for each in shown["operators"]) == len(graph.node) == shown["nodes"]
    assert [each["operator"] for each in shown["node_list"]] == [n.op_type for n in graph.node]
    assert [each["inputs"] for each in shown["node_list"]] == [list(n.input) for n in graph.node]


def test_external_data_files_are_listed(cli, tmp_path):
    path = models.external(tmp_path)
    shown = cli("inspect", path, "--json").json
    assert shown["external_data"] == [{"file": "external.bin", "parameters": 1, "size_bytes": 1024}]
    assert re.search(r"external\.bin\s+1\s+1\.02 kB", cli("inspect", path).out)


def test_other_domains_are_shown_without_a_runtime_that_knows_them(cli, tmp_path):
    shown = cli("inspect", models.unknown_operator(tmp_path), "--json").json
    assert shown["opsets"] == {"ai.onnx": 17, "example.unknown": 1}
    assert {"domain": "example.unknown", "operator": "Frobnicate", "count": 1} in shown["operators"]
    assert "placement" not in shown


def test_nodes_are_listed_on_request(cli, tmp_path):
    path = models.foldable(tmp_path)
    without, listed = cli("inspect", path).out, cli("inspect", path, "--nodes").out
    assert "never_read" not in without
    rows = [" ".join(text.split()) for text in listed.splitlines()]
    assert "1 Mul six two, three six" in rows
    assert "2 Mul x, six y" in rows
    assert "3 Neg unused x never_read" in rows


def test_parameters_are_listed_on_request_and_agree_with_the_file(cli, digits, tmp_path):
    path = digits / "digits.onnx"
    listed = cli("inspect", path, "--json", "--parameters").json["parameter_list"]
    weights = {each.name: numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}
    assert {each["name"] for each in listed} == set(weights)
    for each in listed:
        array = weights[each["name"]]
        assert (each["dtype"], each["shape"]) == (array.dtype.name, list(array.shape))
        assert (each["size_bytes"], each["file"]) == (array.nbytes, None)
    text = cli("inspect", models.external(tmp_path), "--parameters").out
    assert re.search(r"Parameters\nname +type +shape +size +file\n", text)
    assert re.search(r"float32 +\[\d+(, \d+)*\] +1\.02 kB +external\.bin$", text, re.M)
    assert "Parameters" not in cli("inspect", path).out


def test_a_target_shows_where_each_node_runs(cli, tmp_path):
    path = models.affine(tmp_path)
    shown = cli("inspect", path, "--target", "cpu", "--json").json
    assert [(each["node"], each["device"]) for each in shown["placement"]] == [
        ("scale", "cpu:0"),
        ("shift", "cpu:0"),
    ]
    assert all(each["reason"] for each in shown["placement"])
    text = cli("inspect", path, "--target", "cpu", "--nodes").out
    assert re.search(r"cpu:0\s+cpu\s+\S+\s+2 ", text)
    assert re.search(r"Add\s+shift\s.*cpu:0", text)


def test_how_to_build_for_the_target_can_be_said(cli, tmp_path):
    arguments = ("inspect", models.affine(tmp_path), "--target", "cpu", "--set")
    assert cli(*arguments, "cpu_context.spin_us=0").status == 0
    done = cli(*arguments, "cpu_context.spin_us=often")
    assert (done.status, done.out) == (1, "")
    assert "'often'" in done.err


def test_a_target_that_is_not_there_is_refused(cli, tmp_path):
    done = cli("inspect", models.affine(tmp_path), "--target", "tpu")
    assert (done.status, done.out) == (1, "")
    assert "got tpu" in done.err


@pytest.mark.parametrize("width", [60, 120])
def test_nothing_is_cut_off_at_any_width(cli, digits, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    done = cli("inspect", digits / "digits.onnx", "--nodes", "--target", "cpu")
    assert "…" not in done.out
    assert max(map(len, done.out.splitlines())) <= width
    for text in ("probabilities", "[batch, 1, 8, 8]", "examples/digits/train.py"):
        assert text in done.out


def test_in_a_pipe_long_names_are_neither_broken_nor_cut(cli, tmp_path):
    path = models.affine(tmp_path)
    model = onnx.load(path)
    long = "a/very/long/name" * 20
    model.graph.node[1].output[0] = model.graph.output[0].name = long
    onnx.save(model, path)
    assert long in cli("inspect", path).out


def test_a_file_that_is_no_model_is_one_line_of_error(cli, tmp_path):
    for path in (models.truncated(tmp_path), tmp_path / "absent.onnx", tmp_path):
        done = cli("inspect", path)
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith("error: ")
        assert str(path) in done.err
        assert done.err.count("\n") == 1


def test_a_model_without_parameters_says_none(cli, tmp_path):
    done = cli("inspect", models.several(tmp_path))
    assert re.search(r"parameters\s+none", done.out)
    shown = cli("inspect", models.several(tmp_path), "--json").json
    assert shown["parameters"] == {
        "tensors": 0, "elements": 0, "elements_by_dtype": {}, "size_bytes": 0,
    }  # fmt: skip


def test_symbolic_names_stay_and_unknown_shapes_are_shown(cli, tmp_path):
    shown = cli("inspect", models.shared_dims(tmp_path), "--json").json
    assert [each["shape"] for each in shown["inputs"]] == [
        ["rows", "common"],
        ["common", "columns"],
    ]
    path = models.identity(tmp_path)
    model = onnx.load(path)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    assert cli("inspect", path, "--json").json["outputs"][0]["shape"] is None
    assert re.search(r"y\s+float32\s+\[\.\.\.\]", cli("inspect", path).out)
