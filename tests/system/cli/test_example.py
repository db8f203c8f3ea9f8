"""`--example`: the model that comes with the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cli.example import FILE

DIGITS = Path(__file__).parents[3] / "examples" / "digits"


def test_the_example_is_the_model_of_the_examples_folder():
    assert FILE.read_bytes() == (DIGITS / "digits.onnx").read_bytes()


@pytest.mark.parametrize("arguments", [("run",), ("bench", "--runs", 3, "--warmup", 0)])
def test_the_example_needs_no_file(cli, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli(*arguments, "--example")
    assert done.status == 0
    assert "input image: float32[1, 1, 8, 8], generated" in done.out


def test_the_example_takes_inputs_as_any_model_does(cli):
    images = DIGITS / "test_images.npz"
    done = cli("run", "--example", "--input", images, "--values", 4)
    assert "output data is: 7 6 3 7" in done.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("inspect", "--target", "cpu"), "trained_with  scikit-learn"),
        (("compare", "--a", "cpu", "--b", "reference"), "equal"),
        (("diff", "--a", "cpu", "--b", "reference"), "Nothing is apart"),
        (("explain", "--roof", "1e9,1e9"), "The 5 nodes that take longest"),
    ],
)
def test_commands_that_look_at_a_model_take_the_example_too(cli, arguments, says):
    done = cli(*arguments, "--example")
    assert done.status == 0
    assert says in done.out


def test_a_command_without_a_model_names_the_example(cli):
    cli("run").fails("missing argument 'MODEL'; give a model's file, or --example", 2)


@pytest.mark.parametrize("command", ["run", "inspect", "compare", "diff", "explain", "tune"])
def test_a_model_beside_the_example_is_refused(cli, command):
    cli(command, "m.onnx", "--example").fails(
        "got the model 'm.onnx' and --example; expected one of the two", 2
    )
