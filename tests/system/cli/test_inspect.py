"""`engine inspect`: what a file holds, without building it, and where it would run."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from graphs import written
from onnx import numpy_helper

import engine
from engine_testing import models
from engine_testing.making import graph


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


def test_what_integers_stand_for_is_shown(cli, tmp_path):
    text = """(uint8[n, 3] x) => (int8[n, 3] y) {
        real = DequantizeLinear(x, xs, xz)
        y = QuantizeLinear<axis = -1>(real, ys, yz)
    }"""
    constants = {
        "xs": np.array(0.5, np.float32), "xz": np.array(128, np.uint8),
        "ys": np.array([1, 2, 4], np.float32), "yz": np.array([0, -1, 1], np.int8),
    }  # fmt: skip
    path = graph(tmp_path, "quantized", text, constants)
    shown = cli("inspect", path).out
    assert re.search(r"x +uint8 +\[n, 3\] +scale 0\.5, zero point 128\n", shown)
    assert re.search(r"y +int8 +\[n, 3\] +3 scales along axis 1\n", shown)
    values = cli("inspect", path, "--json").json
    assert values["inputs"][0]["quantization"] == {
        "scale": [0.5], "zero_point": [128], "axis": None
    }  # fmt: skip
    assert values["outputs"][0]["quantization"] == {
        "scale": [1, 2, 4], "zero_point": [0, -1, 1], "axis": 1
    }  # fmt: skip
    plain = cli("inspect", models.affine(tmp_path), "--json").json
    assert "quantization" not in plain["inputs"][0]


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
    cli(*arguments, "cpu_context.spin_us=often").fails("'often'", out="")


def test_a_target_that_is_not_there_is_refused(cli, tmp_path):
    cli("inspect", models.affine(tmp_path), "--target", "tpu").fails("got tpu", 2, out="")


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
    (tmp_path / "empty").mkdir()
    for path in (models.truncated(tmp_path), tmp_path / "absent.onnx", tmp_path / "empty"):
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


def test_memory_builds_the_model_and_shows_what_it_takes(cli, null_backend, tmp_path):
    path = models.heavy(tmp_path)  # 4 MiB of weights
    shown = cli("inspect", path, "--memory", "--target", "null", "--json").json
    assert shown["memory"]["private_bytes"] == 4 << 20
    [part] = shown["memory"]["parts"]
    assert (part["backend"], part["device"], part["shared_bytes"]) == ("null", "null:0", 0)
    assert "placement" in shown
    out = cli("inspect", path, "--memory", "--target", "null").out
    assert re.search(r"null:0 +null +4\.19 MB +0 bytes +0 bytes +none known", out)
    assert "memory" not in cli("inspect", path, "--target", "null", "--json").json


def test_memory_says_that_weights_in_attributes_are_not_counted(cli, tmp_path):
    """A model of ai.onnx.ml has no tensors."""
    node = "ai.onnx.ml.LinearRegressor <coefficients = [1.0, 1.0, 1.0], intercepts = [0.0]> (x)"
    ends = "(float[b, 3] x) => (float[b, 1] y)"
    path = written(tmp_path / "linear.onnx", f"g {ends} {{ y = {node} }}")
    said = "those that LinearRegressor has in attributes are not counted"
    assert f"weights: {said}" in cli("inspect", path, "--memory").text
    assert cli("inspect", path, "--memory", "--json").json["memory"]["uncounted"] == said
    why = cli("cache", "why", path, "--set", "common_context.compile_cache=on")
    assert f"its weights are 0 bytes ({said}), and models below" in why.text
    with engine.load(path) as model:
        assert f"\nweights: {said}\n" in str(model.memory())


def test_memory_is_the_cpus_where_no_target_is_named(cli, digits):
    pytest.importorskip("engine_cpu", reason="needs the cpu backend")
    shown = cli("inspect", digits / "digits.onnx", "--memory", "--json").json
    assert shown["memory"]["private_bytes"] == shown["parameters"]["size_bytes"]
    assert "placement" not in shown


# ----------------------------------------------------------------------- folders and standard input


def test_each_model_of_a_folder_is_a_line(cli, tmp_path):
    for number in (10, 9):
        models.affine(tmp_path).rename(tmp_path / f"m{number}.onnx")
    (tmp_path / "broken.onnx").write_text("no model")
    (tmp_path / "notes.txt").write_text("no model either")
    done = cli("inspect", tmp_path)
    assert done.status == 0
    rows = [row.split("  ")[0] for row in done.out.splitlines() if row.strip()]
    assert rows == ["model", "broken.onnx", "m9.onnx", "m10.onnx"]
    assert "x: float32 [batch, 3]" in done.out
    assert "unreadable" in done.out
    facts = cli("inspect", tmp_path, "--json").json
    assert facts["folder"] == str(tmp_path)
    broken, first, second = facts["models"]
    assert "broken.onnx" in broken["error"]
    assert first["inputs"][0]["shape"] == ["batch", 3]
    assert second["model"] == str(tmp_path / "m10.onnx")
    assert "give the path of one" in cli("inspect", tmp_path, "--nodes").err
    assert cli("inspect", tmp_path, "--target", "cpu").status == 2


COMMANDS = ["run", "inspect", "bench", "compare", "diff"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_comes_by_standard_input(cli, tmp_path, command):
    model = models.affine(tmp_path).read_bytes()
    more = {"inspect": ["--target", "cpu"], "bench": ["--runs", "3"]}.get(command, [])
    done = cli(command, "-", *more, "--json", stdin=model)
    assert (done.status, done.err if command != "bench" else "") == (0, "")
    facts = done.json
    if command == "inspect":
        assert (facts["model"], facts["size_bytes"]) == ("standard input", len(model))
        assert facts["inputs"][0]["shape"] == ["batch", 3]
    if command in ("compare", "diff"):
        assert facts["is_within"]


@pytest.mark.parametrize("command", ["run", "bench", "compare", "diff"])
@pytest.mark.parametrize("text", ["-", "x=-", "x=a.npy,-"])
def test_standard_input_is_the_model_or_an_input_and_not_both(cli, command, text):
    cli(command, "-", "--input", text).fails(
        "standard input is the model already; give the input a file", 2
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "standard input: empty; expected"),
        (b"no model", "standard input: is a text file; expected a binary ONNX"),
    ],
)
def test_standard_input_that_is_no_model_is_said(cli, data, said):
    done = cli("inspect", "-", stdin=data)
    assert (done.status, done.err.startswith(f"error: {said}")) == (1, True), done.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_model_on_standard_input_is_called_so(cli, tmp_path, command):
    damaged = models.affine(tmp_path).read_bytes()[:60]
    done = cli(command, "-", "--json", stdin=damaged)
    side = "a: " if command in ("compare", "diff") else ""
    said = f"{side}standard input: damaged ONNX file: "
    assert (done.status, done.err.startswith(f"error: {said}")) == (1, True), done.err
    assert done.json["error"]["message"].startswith(said)


def test_standard_input_is_one_model_and_read_where_that_is_said(cli):
    done = cli("compare", "-", "-").fails(
        "error: invalid value: standard input holds one model; give OTHER a file", 2
    )
    for words in (("slice", "-", "--tp", "2", "--out", "s"), ("convert", "-", "net")):
        done = cli(*words)
        assert done.status == 1
        assert done.err.startswith("error: standard input is not read by this command; give a file")
