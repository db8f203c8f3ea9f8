"""engine tune: what it prints and writes, and who takes the file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import engine
from engine.config.reader import read_config
from engine_testing import models

pytestmark = pytest.mark.usefixtures("few")
SHORT = ("--budget", 0.5)


@pytest.fixture
def few(monkeypatch):
    """No backends beside cpu and reference: others would take seconds to be looked at."""
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", "gpu_trt,ascend_ge,openvino,jax,null")


def test_the_written_file_is_taken_by_the_other_commands(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = models.affine(tmp_path)
    done = cli("tune", path, *SHORT)
    assert done.status == 0, done.err
    assert "goal latency of one client" in done.text
    assert done.out.splitlines()[-1] == f"engine run {path} --config affine.tuned.ini"
    config = tmp_path / "affine.tuned.ini"
    assert read_config(str(config))["tuned"]["default"] == "cpu"
    for command in ("run", ("bench", "--runs", 3, "--warmup", 0), ("inspect", "--target", "cpu")):
        name, *more = (command,) if isinstance(command, str) else command
        assert cli(name, path, *more, "--config", config).status == 0
    text = config.read_text()
    config.write_text(text.replace("machine=", "machine=old "))
    cli("run", path, "--config", config).fails(
        f"error: {config}: [tuned] was measured for another machine: expected 'old "
    )


def test_json_has_the_evidence_and_a_plot_is_drawn(cli, tmp_path):
    path = models.affine(tmp_path)
    plot, out = tmp_path / "p.svg", tmp_path / "t.toml"
    done = cli(
        "tune", path, *SHORT, "--json", "--plot", plot, "--out", out, "--target", "cpu",
        "--shape", "x=4,3", "--set", "cpu_context.deterministic=1",
    )  # fmt: skip
    assert done.status == 0, done.err
    found = done.json
    assert found["config"] == str(out)
    assert found["inputs"] == {"x": [4, 3]}
    assert found["goal"] == "latency of one client"
    assert {trial["setup"]["targets"][0] for trial in found["trials"]} == {"cpu"}
    [default] = [t for t in found["trials"] if t["setup"] == found["default"]]
    assert default["figures"]["ratio"] == 1.0
    assert default["figures"]["p50_s"] <= default["figures"]["p99_s"]
    assert found["frontier"]
    marked = [trial["setup"] for trial in found["trials"] if trial["is_chosen"]]
    assert marked == [found["chosen"]]
    assert "<svg" in plot.read_text()
    config = read_config(str(out))
    assert config["cpu_context"]["deterministic"] == "1"
    assert json.loads(config["tuned"]["evidence"])["inputs"] == {"x": [4, 3]}


def products(folder: Path, size: int = 256) -> Path:
    """Write a model that quantizing makes smaller: products with weights of few values."""
    generator = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(
            generator.choice([-0.5, 0.5], (size, size)).astype("f"), f"w{place}"
        )
        for place in range(2)
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"]), helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("MatMul", ["a", "w1"], ["y"]),
    ]  # fmt: skip
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", size]) for name in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "products", [x], [y], weights),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    path = folder / "products.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.slow
def test_quantized_forms_are_tried_where_an_error_is_allowed(cli, tmp_path):
    pytest.importorskip("ml_dtypes")
    path = products(tmp_path)
    found = cli(
        "tune", path, "--max-error", 0.2, "--budget", 20, "--target", "cpu", "--json",
        "--out", tmp_path / "t.ini",
    ).json  # fmt: skip
    tried = {trial["setup"]["form"]: trial for trial in found["trials"]}
    assert {"dynamic-int8", "weights-int8", "weights-int4"} <= set(tried)
    assert 0 < tried["weights-int8"]["error"] < 0.01
    without = cli(
        "tune", path, "--budget", 0.5, "--target", "cpu", "--json", "--out", tmp_path / "u.ini"
    ).json
    assert {trial["setup"]["form"] for trial in without["trials"]} == {""}


@pytest.mark.slow
def test_a_quantized_form_that_is_chosen_is_written_and_serves(cli, tmp_path):
    """Weights of 33 MB do not fit the caches: with a quarter of them to read, int8 wins."""
    pytest.importorskip("ml_dtypes")
    path = products(tmp_path, 2048)
    config = tmp_path / "t.ini"
    arguments = ("tune", path, "--max-error", 0.1, "--budget", 120, "--target", "cpu")
    done = cli(*arguments, "--set", "cpu_context.arithmetic=exact", "--out", config)
    assert done.status == 0, done.err
    tuned = read_config(str(config))["tuned"]
    form = json.loads(tuned["evidence"])["chosen"]["form"]
    assert form in ("dynamic-int8", "weights-int8", "weights-int4"), done.out
    [made] = tmp_path.glob(f"t.{form}.*")
    assert tuned["file"] == made.name
    assert made.stat().st_size < path.stat().st_size / 3
    assert done.out.splitlines()[-1] == f"engine run {made} --config {config}"
    assert cli("run", made, "--config", config).status == 0

    x = np.random.default_rng(1).random((1, 2048), np.float32)
    with engine.load(path) as model:
        expected = model(x=x)["y"]
    context = engine.Context()
    context.parallel.config_path = str(config)
    with engine.ModelParallelRunner() as runner:
        runner.build_from_file(str(made), context)
        [found] = runner.predict([x])
    difference = found.get_data_to_numpy() - expected
    assert 0 < np.linalg.norm(difference) <= 0.1 * np.linalg.norm(expected)

    said = f"another model: expected '{tuned['model'][:12]}', of '{made.name}', which was written"
    cli("run", path, "--config", config).fails(said)
    content = bytearray(made.read_bytes())
    content[len(content) // 2] ^= 1  # of a weight
    made.write_bytes(content)
    cli("run", made, "--config", config).fails(said)
    made.unlink()
    cli("run", made, "--config", config).fails(f"{made.name}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--clients", 0), "--clients"),
        (("--p99-ms", 0), "expected a number of milliseconds above 0, got 0"),
        (("--max-error", 2), "expected a number from 0 to 1, got 2"),
        (("--budget", 0), "expected a number of seconds above 0, got 0"),
        (("--plot", "p.bmp"), "expected a file name ending in .png, .svg, .pdf, got 'p.bmp'"),
        (("--target", "cpu,"), "expected targets with commas between"),
        (("--shape", "x"), "--shape"),
        (("--set", "cpu"), "--set"),
        (("--set", "cpu_context.spin=1"), "[cpu_context] spin is unknown and not read; did you"),
        (("--target", "nowhere"), "invalid value for --target: target elements must be in"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_measured(cli, tmp_path, options, said):
    cli("tune", models.affine(tmp_path), *options).fails(said, 2, out="")


def test_a_setting_of_another_target_that_is_tried_is_taken(cli, tmp_path):
    options = ("--set", "cpu_context.spin_us=0", "--target", "reference,cpu")
    done = cli("tune", models.affine(tmp_path), *options, *SHORT, "--out", tmp_path / "t.ini")
    assert done.status == 0, done.err


def test_the_example_is_tuned_without_a_file(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli("tune", "--example", *SHORT, "--target", "cpu")
    assert done.status == 0, done.err
    assert (tmp_path / "example.tuned.ini").is_file()


def test_standard_input_is_not_read(cli):
    cli("tune", "-").fails("standard input is not read by this command; give a file's path")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--config", "none.ini"), "none.ini: no such file; give --config a configuration file"),
        (("--out", "/no/such/t.ini"), "is in no folder that can be written to"),
        (("--shape", "x=4,4"), "shapes: input 'x' is float32[batch, 3], got [4, 4]"),
    ],
)
def test_what_cannot_be_is_an_error_of_one_line(cli, tmp_path, options, said):
    done = cli("tune", models.affine(tmp_path), *options).fails(said, 1, out="")
    assert len(done.err.splitlines()) == 1


def test_without_matplotlib_the_fix_for_a_plot_names_no_option_of_another_command(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    done = cli("tune", "absent.onnx", "--plot", "p.png").fails('"inference-engine[plot]"', out="")
    assert "use --plot" not in done.err  # it is a file here, and no plot in the terminal
