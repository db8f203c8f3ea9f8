"""Misspelt words: the error names the nearest one that there is."""

from __future__ import annotations

import click
import pytest

from engine.cli.commands import LateGroup
from engine.options import nearest
from engine_testing import models


@pytest.mark.parametrize(
    ("word", "near"),
    [
        *((word, "") for word in ("tpu", "xpu", "vpu", "ipu", "hpu", "dsp", "mps")),
        *((word, "cpu") for word in ("cpi", "CPU", "pcu", "cup", "cppu")),
        *((word, "gpu") for word in ("gup", "gpi", "gpuu")),
    ],
)
def test_another_device_of_three_letters_is_not_taken_for_a_misspelt_one(word, near):
    assert nearest(word, ["cpu", "gpu", "ascend"]) == near


@pytest.mark.parametrize(
    ("command", "near"),
    [
        ("rn m.onnx", "no such command 'rn'; did you mean 'run'?"),
        ("inspct m.onnx", "no such command 'inspct'; did you mean 'inspect'?"),
        ("ranktable show x", "no such command 'ranktable'; did you mean 'rank-table'?"),
        ("cache prunne", "no such command 'prunne'; did you mean 'prune'?"),
        ("rank-table shw x", "no such command 'shw'; did you mean 'show'?"),
        ("run m.onnx --targte cpu", "no such option '--targte'; did you mean '--target'?"),
        ("bench m.onnx --client 2", "no such option '--client'; did you mean '--clients'?"),
        ("bench m.onnx --batch 4", "did you mean '--batches'?"),
        ("bench m.onnx --profile", "'--profile'; did you mean: engine run --profile?"),
        ("run m.onnx --duration 3", "did you mean: engine bench --duration SECONDS?"),
        ("bench m.onnx --rate 3", "did you mean '--rates'?"),
        ("run m.onnx --target cppu", "invalid value for --target: target elements must be in"),
        ("run m.onnx a.png", "unexpected extra argument (a.png); inputs go behind --input, sev"),
        ("bench m.onnx -i a.png b.png c.png", "(b.png c.png); inputs go behind --input, several"),
        ("cache prune --maxsize 2GB", "did you mean '--max-size'?"),
        ("run m.onnx --fill rndom", "'rndom' is not one of 'ones', 'zeros', 'random'; did you"),
        ("run m.onnx --layout nhwc", "did you mean 'NHWC'?"),
        ("slice m.onnx --tp 2 --out d --outputs lst", "did you mean 'last'?"),
        ("convert m.onnx net --fmk ONX", "did you mean 'ONNX'?"),
        ("convert --fmk=ONNX --modelFil=m.onnx --outputFile=n", "did you mean '--modelFile'?"),
        ("run m.onnx --set cpu_contxt.spin_us=0", "did you mean [cpu_context]?"),
        ("run m.onnx --set cpu.spin_us=0", "did you mean [cpu_context]?"),
        ("run m.onnx --set cpu_context.spinus=0", "did you mean 'spin_us'?"),
        ("run m.onnx --set common_context.isolat=1", "did you mean 'isolate'?"),
        ("convert m.onnx net --set comon_quant_param.bit_num=8", "did you mean [common_quant_pa"),
    ],
)
def test_a_misspelt_word_is_told_the_nearest(cli, tmp_path, monkeypatch, command, near):
    monkeypatch.chdir(tmp_path)
    models.affine(tmp_path).rename("m.onnx")
    done = cli(*command.split()).fails(near, 2)
    assert len(done.err.splitlines()) == 2  # and where to find the help


def test_a_device_s_number_behind_a_target_is_told_its_option(cli, tmp_path):
    cli("run", models.affine(tmp_path), "--target", "reference:0").fails(
        "or target 'reference' with --device-id 0"
    )


@pytest.mark.parametrize("command", ["compare", "diff"])
def test_a_command_of_two_sides_names_its_options_for_their_targets(cli, command):
    cli(command, "m.onnx", "--target", "cpu").fails(
        "no such option '--target'; this command has --a and --b\n", 2
    )


def test_what_is_like_nothing_is_told_nothing(cli):
    assert cli("zzz").err.splitlines()[0] == "error: no such command 'zzz'"
    assert cli("run", "m", "--zzz").err.splitlines()[0] == "error: no such option '--zzz'"


def test_a_command_of_an_extra_that_is_not_installed_names_the_extra():
    group = LateGroup("engine", late={})  # without the commands that others install
    with pytest.raises(click.UsageError) as raised, group.make_context("engine", ["serve"]) as own:
        group.invoke(own)
    advice = 'run: pip install "inference-engine[serve]"'
    assert raised.value.message == f"no such command 'serve'; {advice}"


def test_a_model_in_place_of_a_command_is_told_how_to_run(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models.affine(tmp_path).rename("my net.onnx")
    assert "did you mean: engine run 'my net.onnx'?" in cli("my net.onnx").err


@pytest.mark.parametrize("option", ["--input", "--shape"])
def test_a_misspelt_input_is_told_the_nearest(cli, tmp_path, option):
    path = models.shared_dims(tmp_path)
    done = cli("run", path, option, {"--input": "lft=x.npy", "--shape": "lft=1,3"}[option]).fails(
        "the model has no input 'lft'"
    )
    assert done.err.endswith("did you mean 'left'?\n")


def test_the_ranks_of_a_launch_may_be_given_as_to_mpirun(cli):
    assert cli("launch", "-np", "2", "nope.py").err.startswith("error: nope.py: no such file")
