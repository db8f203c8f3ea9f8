"""`engine run`: what it prints and writes, and how it is told where to run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import engine
from engine.report.measurement import DeviceShare, devices_text
from engine.types import DType
from engine_testing import models


def test_prints_each_output_in_the_manner_of_the_tutorial(cli, tmp_path):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    done = cli("run", models.affine(tmp_path), "--input", tmp_path / "x.npy")
    assert done.status == 0
    assert (
        "tensor name is: y, tensor size is: 24 bytes, tensor elements num is: 6, "
        "tensor shape is: float32[2, 3]\noutput data is: 1 3 5 7 9 11\n"
    ) in done.out
    assert f"input x: float32[2, 3], from {tmp_path / 'x.npy'}" in done.out
    assert done.err == ""


def test_prints_every_output_in_the_models_order(cli, tmp_path):
    done = cli("run", models.several(tmp_path))
    names = re.findall(r"tensor name is: (\w+),", done.out)
    values = re.findall(r"output data is: (.*)", done.out)
    assert names == ["y", "b", "x"]
    assert values == ["0 0 0 0 0 0", "1 1 1 1 1 1", "2 2 2 2 2 2"]  # of inputs that are all ones


def test_prints_the_first_values_of_a_long_output_and_says_so(cli, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(8, dtype=np.float32))
    path = models.identity(tmp_path)
    done = cli("run", path, "--input", tmp_path / "x.npy", "--values", 3)
    assert "output data is: 0 1 2 ... (first 3 of 8)" in done.out
    none = cli("run", path, "--input", tmp_path / "x.npy", "--values", 0)
    assert "output data is" not in none.out
    assert "tensor elements num is: 8" in none.out


def test_a_model_without_inputs_runs(cli, tmp_path):
    done = cli("run", models.constant(tmp_path))
    assert done.status == 0
    assert "output data is: 1 2 3\n" in done.out


def test_outputs_are_written_as_npz_by_name(cli, tmp_path):
    out = tmp_path / "out.npz"
    done = cli("run", models.several(tmp_path), "--output", out)
    assert f"outputs written to {out}" in done.out
    with np.load(out) as stored:
        assert sorted(stored.files) == ["b", "x", "y"]
        np.testing.assert_array_equal(stored["x"], np.full((2, 3), 2, np.float32))
        assert stored["x"].dtype == np.float32


def test_a_single_output_is_written_as_npy(cli, tmp_path):
    done = cli("run", models.affine(tmp_path), "-o", tmp_path / "y.npy", "--json")
    assert done.json["output_file"] == str(tmp_path / "y.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.full((1, 3), 3, np.float32))


@pytest.mark.parametrize(
    ("name", "status", "expected"),
    [
        ("out.npy", 2, "the model has 3 outputs, and .npy holds one"),
        ("out.txt", 2, "expected a file name ending in .npz, .npy or .json, or -, got"),
        ("absent/out.npz", 1, "absent/out.npz: no such folder: "),
        ("folder.npz", 1, "folder.npz: is a directory"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused(cli, tmp_path, name, status, expected):
    (tmp_path / "folder.npz").mkdir()
    done = cli("run", models.several(tmp_path), "--output", tmp_path / name).fails(expected, status)
    assert done.out == ""
    assert not list(tmp_path.rglob("*out*"))


def test_json_holds_what_the_text_says(cli, tmp_path):
    done = cli("run", models.mixed_dtypes(tmp_path), "--shape", "x=2", "--json").json
    assert done["outputs"] == [
        {"name": "y", "dtype": "float32", "shape": [2], "size_bytes": 8, "elements": 2,
         "first_values": [1.0, 1.0]},
        {"name": "is_big", "dtype": "bool", "shape": [2], "size_bytes": 2, "elements": 2,
         "first_values": [False, False]},
    ]  # fmt: skip
    assert done["backend"] == "cpu"
    assert done["devices"][0]["device"] == "cpu:0"
    assert sum(each["nodes"] for each in done["devices"]) == 2
    assert 0 < done["predict_s"] < 60
    assert 0 < done["build_s"] < 60


def test_json_stays_json_where_a_value_is_not_finite(cli, tmp_path):
    np.save(tmp_path / "x.npy", np.array([np.nan, np.inf, -np.inf, 1], np.float32))
    done = cli("run", models.identity(tmp_path), "-i", tmp_path / "x.npy", "--json").json
    assert done["outputs"][0]["first_values"] == ["nan", "inf", "-inf", 1.0]


@pytest.mark.parametrize("dtype", [DType.STRING, DType.FLOAT16, DType.FLOAT64, DType.UINT8])
def test_every_kind_of_element_is_read_printed_and_written(cli, tmp_path, dtype):
    out = tmp_path / "y.npy"
    done = cli("run", models.moved(tmp_path, dtype), "--json", "--output", out)
    assert done.status == 0, done.err
    one = "1" if dtype is DType.STRING else 1
    assert done.json["outputs"][0]["first_values"] == [one] * 6
    assert np.load(out).tolist() == [[one] * 2] * 3


def test_what_a_file_had_to_hold_in_another_type_is_an_input_again(cli, tmp_path):
    path = models.moved(tmp_path, DType.BFLOAT16)
    done = cli("run", path, "-o", tmp_path / "y.npy")
    assert done.err == f"note: {tmp_path / 'y.npy'}: y is stored as float32, exactly\n"
    x = np.load(tmp_path / "y.npy").reshape(2, 3) * np.arange(6).reshape(2, 3)
    x[0, 0] = np.nan
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    done = cli("run", path, "-i", tmp_path / "x.npy", "--json")
    assert done.json["outputs"][0]["first_values"] == ["nan", 3, 1, 4, 2, 5]
    np.save(tmp_path / "x.npy", np.full((2, 3), 0.1, np.float32))  # which bfloat16 does not have
    cli("run", path, "-i", tmp_path / "x.npy").fails(
        "got float32[2, 3]; save it as array.astype(ml_dtypes.bfloat16)", out=""
    )


def test_a_run_that_takes_too_long_is_stopped(cli, tmp_path):
    path = models.slow(tmp_path)
    done = cli("run", path, "--shape", "x=20000,256", "--timeout", 0.05)
    assert done.status == 1
    assert done.err.startswith("error: it took longer than --timeout, 0.05 s: ")
    assert done.err.endswith("leave --timeout out\n")
    assert done.out == "input x: float32[20000, 256], generated: all ones\n"
    cli("run", path, "--timeout", 0).fails("above 0, got 0", 2)


def test_a_target_that_is_not_there_is_refused_with_the_reason(cli, tmp_path):
    done = cli("run", models.affine(tmp_path), "--target", "tpu").fails("got tpu", 2)
    assert "installed: " in done.err
    cli("run", models.affine(tmp_path), "--target", "cpu,").fails("targets with commas between", 2)


def test_the_number_of_a_device_is_for_every_target_but_the_host_behind_another(cli, tmp_path):
    path = models.affine(tmp_path)
    cli("run", path, "--device-id", 1).fails("device 'cpu:1' is not there", out="")
    assert "cpu:1" in cli("inspect", path, "--target", "cpu", "--device-id", 1).err
    assert "ran on cpu:0 " in cli("run", path, "--target", "gpu,cpu", "--device-id", 1).out


def test_a_later_target_is_used_where_the_first_cannot_be_had(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", "gpu_trt")
    done = cli("run", models.affine(tmp_path), "--target", "gpu,cpu", "--json")
    assert done.json["backend"] == "cpu"
    assert re.search(r"warning: .*'gpu' passed over", done.err)


def test_the_backend_is_told_where_two_serve_one_device(cli, tmp_path):
    path = models.affine(tmp_path)
    assert "ran on cpu:0 (onnxruntime:CPUExecutionProvider): " in cli("run", path).out
    places = [
        DeviceShare("cpu", "cpu:0", "CPUExecutionProvider", 5),
        DeviceShare("reference", "cpu:0", "reference", 1),
    ]
    assert devices_text(places) == "cpu:0 (cpu, CPUExecutionProvider), cpu:0 (reference)"


def test_settings_reach_the_backend_and_win_over_the_file(cli, tmp_path):
    path = models.affine(tmp_path)
    config = tmp_path / "config.ini"
    config.write_text("[cpu_context]\nspin_us = soon\n")
    cli("run", path, "--config", config).fails("'spin_us': expected int")
    good = cli("run", path, "--config", config, "--set", "cpu_context.spin_us=0")
    assert (good.status, good.err) == (0, "")
    for misspelt, near in (
        ("cpu_context.spin_uss", "'spin_us'"),
        ("cpu_contex.spin_us", "[cpu_context]"),
    ):
        cli("run", path, "--set", f"{misspelt}=1").fails(
            f"unknown and not read; did you mean {near}?", 2, out=""
        )
    of_another = cli("run", path, "--set", "gpu_trt_context.optimization_level=1")
    assert of_another.status == 0
    config.write_text("[cpu_context]\nspin_uss = 1\n")
    told = cli("run", path, "--config", config)
    assert (told.status, "did you mean 'spin_us'?" in told.err) == (0, True)
    cli("run", path, "--config", tmp_path / "absent.ini").fails("absent.ini: no such file")
    cli("run", path, "--set", "other_key=1").fails("expected SECTION.KEY=VALUE", 2)


def test_a_mindir_is_resized_for_the_input_that_is_given(cli, tmp_path):
    """Its file fixes the batch, as MindSpore exports models; Model.resize changes that."""
    path = Path(__file__).parents[2] / "data/mindir/mlp.mindir"
    with engine.load(path) as model:
        [spec] = model.inputs
        fixed, rest = spec.shape[0], spec.shape[1:]
        assert isinstance(fixed, int)
        rows = np.random.default_rng(0).random((fixed + 3, *rest), np.float32)
        [expected] = model({spec.name: rows[:fixed]}).values()
    np.save(tmp_path / "rows.npy", rows)
    given = cli("run", path, "--input", tmp_path / "rows.npy", "-o", tmp_path / "y.npy")
    assert given.status == 0, given.err
    assert f"note: resized from {spec}" in given.err
    y = np.load(tmp_path / "y.npy")
    assert y.shape[0] == fixed + 3
    np.testing.assert_allclose(y[:fixed], expected, rtol=1e-5, atol=1e-6)
    sizes = ",".join(map(str, rows.shape))
    made = cli("bench", path, "--shape", f"{spec.name}={sizes}", "--runs", 2, "--warmup", 0)
    assert made.status == 0, made.err
    cli("run", path, "--shape", f"{spec.name}={fixed},{rest[0] + 1}").fails(f"expected {spec}, got")
