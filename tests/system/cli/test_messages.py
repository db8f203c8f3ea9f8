"""Errors as JSON, more and fewer messages, progress of a run, help that can be read."""

from __future__ import annotations

import json
import logging
import time

import click
import numpy as np
import pytest

from engine.cli.output import Talk, set_talk
from engine.cli.progress import progress
from engine_testing import models


@pytest.mark.parametrize(
    ("name", "advice"),
    [("nope.onnx", "in that folder: 'affine.onnx'"), ("afine.onnx", "did you mean '{}'?")],
)
def test_with_json_an_error_is_one_json_object_beside_its_line(cli, tmp_path, name, advice):
    near = models.affine(tmp_path)
    done = cli("run", tmp_path / name, "--json")
    assert done.status == 1
    assert done.json["error"] == {
        "path": str(tmp_path / name),
        "type": "ModelNotFound",
        "message": f"{tmp_path / name}: no such file; {advice.format(near)}",
    }
    assert done.err == f"error: {done.json['error']['message']}\n"


@pytest.mark.parametrize(
    "command",
    [
        ("run", "m.onnx", "--nope", "--json"),
        ("convert", "--json", "m.onnx"),
        ("cache", "prune", "--max-size", "20", "--json"),
        ("run", "--json", "m.onnx", "--shape", "x"),
    ],
)
def test_wrong_usage_with_json_is_an_object_too(cli, command):
    done = cli(*command)
    assert done.status == 2
    assert done.json["error"]["type"] == "UsageError"
    assert done.json["error"]["help"].startswith(f"engine {command[0]}")
    assert done.json["error"]["message"] in done.err


def test_quiet_leaves_out_notes_and_warnings_but_no_error(cli, digits, tmp_path):
    arguments = ("run", digits / "digits.onnx", "--input", digits / "test_images.npz")
    assert "note: " in cli(*arguments).err
    assert cli(*arguments, "-q").err == ""
    assert "note: " in cli(*arguments).err  # of one command, not of the process
    (tmp_path / "odd.ini").write_text("[nonsense]\nkey = 1\n")
    warned = (*arguments[:2], "--config", tmp_path / "odd.ini")
    assert "warning: configuration section [nonsense]" in cli(*warned).err
    assert cli(*warned, "--quiet").err == ""
    assert cli("run", "nope.onnx", "-q").err.startswith("error: nope.onnx")


def test_verbose_tells_phases_and_logs_and_where_an_error_comes_from(cli, tmp_path):
    done = cli("run", models.affine(tmp_path), "-v")
    assert [line.partition(": ")[2] for line in done.err.splitlines()] == [
        "compile", "running",
    ]  # fmt: skip
    assert "Traceback" in cli("run", "nope.onnx", "--verbose").err
    assert "Traceback" not in cli("run", "nope.onnx").err
    assert logging.getLogger("engine").level == logging.NOTSET


def test_verbose_counts_the_times_of_a_command_from_one_beginning(capsys):
    set_talk(Talk.VERBOSE)
    try:
        with click.Context(click.Command("two-phases")):
            for phase in ("first", "second"):
                with progress() as show:
                    show(phase, 0, None)
                time.sleep(0.01)
    finally:
        set_talk(Talk.NORMAL)
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(" s: first")
    assert float(second.removesuffix(" s: second")) >= 0.01


def test_a_run_that_takes_long_shows_that_it_lives(terminal, tmp_path):
    path = models.slow(tmp_path)
    # It takes long enough for a key to be pressed, and ends with that.
    done = terminal(
        "run", path, "--shape", "x=80000,256", "--timeout", "50", press="\x03", when="running"
    )
    assert done.status == 130
    before, _, after = done.out.partition("running")
    assert "input x: float32[80000, 256]" in before
    assert after.endswith("interrupted\n")


def pages(cli):
    """Yield the words of each command and its help page."""
    waiting = [()]
    while waiting:
        words = waiting.pop()
        done = cli(*words, "--help")
        assert (done.status, done.err) == (0, "")
        page = done.out
        yield words, page
        listed = page.partition("\nCommands:\n")[2].partition("\n\n")[0]
        waiting += [(*words, row.split()[0]) for row in listed.splitlines() if row[2:3] != " "]


def test_each_help_page_fits_80_columns_and_has_examples(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    found = dict(pages(cli))
    assert {("run",), ("cache", "why"), ("rank-table", "make"), ("plugins", "check")} <= {*found}
    for words, page in found.items():
        assert page.startswith("Usage: engine")
        assert f"\n  Examples:\n    engine {' '.join(words[:1]) or 'run'}" in page, words
        assert [
            row for row in page.splitlines() if len(row) > 80 and row[:11] != "    engine "
        ] == [], words


def test_quiet_prints_the_result_alone(cli, tmp_path):
    path = models.affine(tmp_path)
    done = cli("run", path, "-q", "-o", tmp_path / "y.npz")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "tensor name is: y, tensor size is: 12 bytes, tensor elements num is: 3, tensor shape is: "
        "float32[1, 3]",
        "output data is: 3 3 3",
    ]
    assert cli("compare", path, "-q").out.splitlines()[0] == "Outputs"
    assert cli("bench", path, "--runs", "3", "-q").out.startswith("model ")


def test_an_empty_name_of_a_model_is_no_folder(cli):
    cli("run", "").fails("expected the path of a model, got ''", 2)


def test_outputs_are_written_as_json(cli, tmp_path):
    np.save(tmp_path / "x.npy", np.float32([[1, np.inf, 3]]))
    done = cli("run", models.affine(tmp_path), "-i", tmp_path / "x.npy", "-o", tmp_path / "y.json")
    assert done.status == 0
    assert json.loads((tmp_path / "y.json").read_text()) == {"y": [[3, "inf", 7]]}
