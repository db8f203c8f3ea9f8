"""`engine bench` with several models, settings or a saved run."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec

import pytest

from engine.cli.saved_run import Held
from engine.report.speed.interval import Change, Verdict
from engine_testing import models
from engine_testing.plugins import install


@pytest.fixture
def null(plugin_folder, tmp_path):
    """Return the arguments for a model whose run takes 2 ms and not much more."""
    install(plugin_folder, "null", "engine_testing.null_device")
    path = models.affine(tmp_path)
    return (path, "--target", "null", "--set", "null_context.delay_s=0.002", "--duration", 0.4)


def test_settings_are_compared_in_turn_with_a_control(cli, null):
    found = cli("bench", *null, "--versus", "null_context.delay_s=0.004", "--json").json
    without, again, versus = found["contenders"]
    assert (without["name"], again["name"]) == ("without", "without, again")
    assert versus["name"] == "null_context.delay_s=0.004"
    assert (without["is_control"], again["is_control"]) == (False, True)
    assert again["verdict"] != "slower"
    # The rest of a run, which both have, takes up to as long again on a busy machine.
    assert 1.3 < versus["low"] <= versus["ratio"] <= versus["high"] < 2.3
    assert versus["verdict"] == "slower"
    assert min(versus["run_s"], versus["first_run_s"]) >= 0.004
    assert without["first_run_s"] != again["first_run_s"]  # each has its own
    assert len({len(one["blocks_s"]) for one in found["contenders"]}) == 1
    assert found["is_too_slow"]


def test_a_comparison_fails_above_a_limit_only_if_that_is_asked_for(cli, null):
    slower = (*null, "--versus", "null_context.delay_s=0.004")
    done = cli("bench", *slower)
    assert done.status == 0
    [row] = [line for line in done.out.splitlines() if line.startswith("null_context.delay")]
    assert "  slower by " in row
    assert cli("bench", *slower, "--fail-above", "10%").status == 1
    faster = (*null[:3], "--set", "null_context.delay_s=0.004", *null[5:])
    done = cli("bench", *faster, "--versus", "null_context.delay_s=0.002", "--fail-above", "10%")
    assert done.status == 0
    assert "faster by" in done.out


def test_models_are_compared_on_the_same_inputs(cli, tmp_path):
    path = models.affine(tmp_path)
    other = tmp_path / "other.onnx"
    shutil.copy(path, other)
    found = cli("bench", path, other, "--shape", "x=4,3", "--duration", 0.2, "--json").json
    assert [one["model"] for one in found["contenders"]] == [str(path), str(path), str(other)]
    assert found["inputs"][0]["shape"] == [4, 3]
    for one in found["contenders"]:
        assert one["samples_per_s"] == pytest.approx(4 / one["run_s"])


def test_a_model_from_standard_input_is_compared_with_itself(cli, tmp_path):
    data = models.affine(tmp_path).read_bytes()
    arguments = ("--versus", "cpu_context.spin_us=0", "--threads", 1, "--duration", 0.2, "--json")
    found = cli("bench", "-", *arguments, stdin=data).json
    assert [one["model"] for one in found["contenders"]] == ["-"] * 3


def test_targets_and_configs_are_compared_when_given_twice(cli, null, tmp_path):
    found = cli(
        "bench", null[0], "--target", "cpu", "--target", "null", "--duration", 0.2, "--json"
    )
    assert [one["ran_on"] for one in found.json["contenders"]][1:] == [
        "cpu:0 (onnxruntime:CPUExecutionProvider)", "null:0 (reference)"
    ]  # fmt: skip
    files = []
    for delay_s in (0.002, 0.004):
        files.append(tmp_path / f"{delay_s}.ini")
        files[-1].write_text(f"[null_context]\ndelay_s = {delay_s}\n")
    arguments = ("--target", "null", "--config", files[0], "--config", files[1])
    found = cli("bench", null[0], *arguments, "--duration", 0.4, "--json").json
    assert found["contenders"][2]["name"] == str(files[1])
    assert found["contenders"][2]["verdict"] == "slower"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--versus", "a.b=1", "--target", "cpu", "--target", "null"), "differ in one of these"),
        (("--target", "cpu", "--target", "cpu"), "got one of them twice"),
        (
            ("--versus", "a.b=1", "--runs", 3),
            "--runs: a comparison, or a run to save, chooses its own number of runs; leave it out",
        ),
        (
            ("--versus", "a.b=1", "--clients", "2"),
            "--clients: a comparison, or a run to save",
        ),
        (("--versus", "a.b=1", "--plot"), "a comparison is drawn by --plot-file"),
        (("--versus", "a.b=1", "--save", "r.json"), "--save, --against: are for one model"),
        (("--versus", "a.b=1", "--by-layer"), "--by-layer: is for the runs of one model"),
        (("--fail-above", "3%"), "--fail-above: is for a comparison"),
        (("--versus", "a.b=1", "--fail-above", "0%"), "expected per cent above 0, as 3%"),
        (("--versus", "a.b=1", "--fail-above", "some"), "expected per cent above 0, as 3%"),
        (("--versus", "ab"), "--set, --versus: expected SECTION.KEY=VALUE"),
        (("input.npy",), "extra arguments (input.npy); inputs go behind --input, several with"),
        (("--threads", "1,x"), "'x' is not a valid int"),
        (("--clients", "1,0"), "must be greater than or equal to 1"),
    ],
)
def test_a_comparison_that_cannot_be_is_wrong_usage(cli, tmp_path, options, error):
    cli("bench", models.affine(tmp_path), *options).fails(error, 2)


def test_a_contender_that_cannot_run_ends_the_comparison_before_it_begins(cli, tmp_path):
    path = models.affine(tmp_path)
    cli("bench", path, tmp_path / "absent.onnx").fails("no such file", out="")
    cli("bench", path, "--versus", "cpu_context.no_such=1").fails("no_such", 2, out="")


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_a_comparison_is_drawn_into_a_file(cli, null, tmp_path):
    file = tmp_path / "ratios.svg"
    done = cli("bench", *null, "--versus", "null_context.delay_s=0.004", "--plot-file", file)
    assert done.err.endswith(f"plot written to {file}\n")
    assert b"<svg" in file.read_bytes()


# -------------------------------------------------------------------------------- a saved run


def test_where_the_saved_model_differs_from_itself_nothing_is_said():
    slower, equal, noisy = Change(1.5, 1.4, 1.6), Change(1.0, 0.99, 1.01), Change(1.2, 1.1, 1.3)
    for control, verdict in ((equal, Verdict.SLOWER), (noisy, Verdict.UNKNOWN)):
        found = Held(None, None, None, 0.03, 8, 1.0, direct=slower, control=control)
        assert found.verdict(slower) is verdict
        assert found.is_too_slow is (verdict is Verdict.SLOWER)


def test_a_changed_setting_is_found_against_a_saved_run_by_running_both(cli, null, tmp_path):
    file = tmp_path / "run.json"
    done = cli("bench", *null, "--save", file)
    assert done.err.endswith(f"run saved to {file}\n")
    slower = (*null[:3], "--set", "null_context.delay_s=0.004", *null[5:])
    found = cli("bench", *slower, "--against", file, "--json").json
    assert found["changes"]["direct"]["verdict"] == "slower"
    assert 1.3 < found["changes"]["direct"]["ratio"] < 2.3
    assert found["changes"]["control"]["verdict"] != "slower"
    assert found["changes"]["by_reference"]["ratio"] > 1
    [difference] = found["differences"]
    assert difference.startswith("set: ")
    done = cli("bench", *slower, "--against", file, "--fail-above", "10%")
    assert done.status == 1
    assert "both models in turn, today" in done.text
    assert "the saved model with itself (control)" in done.text


def test_the_same_model_is_compared_by_the_reference(cli, null, tmp_path):
    file = tmp_path / "run.json"
    cli("bench", *null, "--save", file)
    found = cli("bench", *null, "--against", file, "--json").json
    assert found["differences"] == []
    assert (found["changes"]["direct"], found["changes"]["control"]) == (None, None)
    assert 0.5 < found["changes"]["by_reference"]["ratio"] < 2


def test_a_saved_model_that_is_gone_is_compared_by_the_reference(cli, null, tmp_path):
    other = tmp_path / "old" / "model.onnx"
    other.parent.mkdir()
    shutil.copy(null[0], other)
    file = tmp_path / "run.json"
    cli("bench", other, *null[1:], "--save", file)
    other.write_bytes(b"another one")
    done = cli("bench", *null, "--set", "null_context.delay_s=0.003", "--against", file, "--json")
    assert f"{other} is not there as it was" in done.err
    assert done.json["changes"]["direct"] is None


def test_a_run_of_another_machine_or_with_other_inputs_is_refused(cli, null, tmp_path):
    file = tmp_path / "run.json"
    cli("bench", *null, "--save", file)
    cli("bench", *null, "--shape", "x=5,3", "--against", file).fails(
        "inputs: x: float32[1, 3] then, x: float32[5, 3] now", out=""
    )
    said = json.loads(file.read_text())
    said["machine"]["processor"] = "an abacus"
    file.write_text(json.dumps(said))
    cli("bench", *null, "--against", file).fails("processor: an abacus then", out="")


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("created", 1e30, "a date that is none"),
        ("created", float("nan"), "a date that is none"),
        ("seconds", [1e-300, 1e-300], "a time that is none"),
    ],
)
def test_a_saved_run_with_an_impossible_figure_is_refused(cli, null, tmp_path, key, value, text):
    file = tmp_path / "run.json"
    cli("bench", *null, "--save", file)
    said = json.loads(file.read_text()) | {key: value}
    file.write_text(json.dumps(said))
    cli("bench", *null, "--against", file).fails(text, out="")


def test_a_file_without_a_runs_fields_says_the_missing_one(cli, null, tmp_path):
    (tmp_path / "run.json").write_text("{}")
    done = cli("bench", *null, "--against", tmp_path / "run.json")
    done.fails("has written, got another file: it has no 'format'", out="")


@pytest.mark.parametrize("setting", ["spin", "null_context.no_such_key=1"])
def test_a_wrong_setting_of_a_contender_names_its_option(cli, null, setting):
    cli("bench", *null, "--versus", setting).fails("--set, --versus: ", 2)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"format": 99}', '{"format": 1, "model": 3}', "\u00ff", "null"]
)
def test_a_file_that_holds_no_run_is_refused(cli, null, tmp_path, text):
    file = tmp_path / "run.json"
    file.write_text(text, encoding="latin-1")
    cli("bench", *null, "--against", file).fails(
        f"{file}: expected a run that engine bench --save has written", out=""
    )


def test_a_run_is_not_saved_where_it_cannot_be(cli, null, tmp_path):
    cli("bench", *null, "--save", tmp_path / "no" / "run.json").fails(
        f"{tmp_path / 'no' / 'run.json'}: no such folder: {tmp_path / 'no'}; make it first", out=""
    )
    cli("bench", "-", "--save", tmp_path / "r.json", stdin=null[0].read_bytes()).fails(
        "give it as a file"
    )
    cli("bench", "--url", "http://localhost:1", "--save", tmp_path / "r.json").fails(
        "a model on a server depends on more", 2
    )
