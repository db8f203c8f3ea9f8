"""Properties of every command: usage, errors, exit statuses, pipes, colours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from graphs import written
from own_python import python

import engine
from engine_testing import models


def test_version_is_the_packages(cli):
    done = cli("--version")
    assert (done.status, done.out) == (0, f"engine {engine.__version__}\n")


def test_help_names_a_default_a_range_and_what_a_flag_does_not_take(cli):
    text = cli("run", "--help").text
    assert "--seed N For --fill random. [default: 0; x>=0]" in text
    assert "--json Print JSON, for programs." in text
    assert "Usage: engine run [OPTIONS] [MODEL] Run a model once" in text
    assert 'default: ""' not in cli("bench", "--help").text


def test_help_explains_the_exit_statuses(cli):
    text = cli("--help").text
    assert "Exit status: 0 done 1 the engine refused or failed" in text
    assert "130 interrupted" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nope"], "no such command 'nope'"),
        (["run"], "missing argument 'MODEL'"),
        (["run", "m.onnx", "--nope"], "no such option"),
        (["run", "m.onnx", "--fill", "twos"], "invalid value for '--fill': 'twos' is not one of"),
        (["run", "m.onnx", "--seed", "x"], "invalid value for '--seed'"),
        (["run", "m.onnx", "--values", "-1"], "invalid value for '--values'"),
        (["inspect", "m.onnx", "n.onnx"], "n.onnx"),
        (["inspect", "m.onnx", "--set", "cpu_context.spin_us=0"], "give --target or --memory"),
        (["bench", "m.onnx", "--clients", "0"], "'--clients'"),
        (["bench", "m.onnx", "--runs", "9", "--duration", "9"], "expected one of the two"),
        (["bench", "m.onnx", "--duration", "0"], "expected a number of seconds, 0.001 or more"),
        (["bench", "m.onnx", "--duration", "nan"], "0.001 or more, got nan"),
        (["bench", "m.onnx", "--warmup", "inf"], "0 or more, got inf"),
        (["bench", "m.onnx", "--plot-file", "p.txt"], "ending in .png, .svg, .pdf, got 'p.txt'"),
    ],
)
def test_wrong_usage_is_status_2_and_names_the_help(cli, arguments, expected):
    done = cli(*arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert expected in done.err
    assert not re.search("Value error|Input should", done.err)  # the words of a library
    assert done.err.splitlines()[-1].startswith("help: engine")


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["run", "m.onnx", "--shape"], "run"),
        (["convert", "m.onnx", "out", "--quantize"], "convert"),
        (["run", "--seed"], "run"),
        (["cache", "prune", "--max-size"], "cache prune"),
        (["cache", "--folder"], "cache"),
        (["launch", "-n"], "launch"),
    ],
)
def test_an_option_without_its_value_names_the_help_of_its_command(cli, arguments, command):
    done = cli(*arguments).fails("requires an argument", 2, out="")
    assert done.err.splitlines()[-1] == f"help: engine {command} --help"


def test_without_a_command_the_help_is_shown_with_status_2(cli):
    done = cli()
    assert done.status == 2
    assert "Usage: engine" in done.out


@pytest.mark.parametrize("command", ["run", "inspect", "bench", "convert"])
def test_an_address_is_told_from_a_file(cli, command):
    more = ["out"] if command == "convert" else []
    cli(command, "https://models.example/net.onnx", *more).fails(
        "is an address; download the model and give the path", out=""
    )


def test_a_rank_takes_the_file_of_its_part(cli, tmp_path, monkeypatch):
    models.affine(tmp_path).rename(tmp_path / "net1.onnx")
    assert "no such file" in cli("inspect", tmp_path / "net.onnx").err
    monkeypatch.setenv("ENGINE_RANK", "1")
    monkeypatch.setenv("ENGINE_WORLD_SIZE", "2")
    assert f"{tmp_path}/net1.onnx" in cli("inspect", tmp_path / "net.onnx").out.replace("\n", "")


@pytest.mark.parametrize("command", ["run", "inspect", "bench"])
def test_a_folder_stands_for_the_one_model_in_it(cli, tmp_path, command):
    folder = tmp_path / "hub"
    folder.mkdir()
    cli(command, folder).fails("hub: is a folder without a model")
    models.affine(folder)
    assert cli(command, folder, *(["--duration", "0.01"] if command == "bench" else [])).status == 0


@pytest.mark.parametrize("command", ["run", "inspect", "bench"])
def test_a_missing_model_is_one_line_of_error(cli, command):
    done = cli(command, "absent.onnx")
    assert (done.status, done.out) == (1, "")
    assert done.err == "error: absent.onnx: no such file; give the path of a model\n"


@pytest.mark.parametrize(
    "command",
    [
        "run",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("inspect", "bench", "convert")),
    ],
)
def test_a_model_that_may_not_be_read_is_an_error_and_not_wrong_usage(tmp_path, command):
    path = models.affine(tmp_path)
    path.chmod(0)
    without = []
    if os.geteuid() == 0:  # who may read everything
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is not installed, which takes the right away from root")
        without = ["setpriv", "--bounding-set=-all"]
    arguments = [command, path, tmp_path / "out"][: 3 if command == "convert" else 2]
    command = [*without, sys.executable, "-m", "engine.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be opened: Permission denied" in done.stderr


def test_errors_have_no_traceback_unless_asked_for(cli, tmp_path, monkeypatch):
    path = models.truncated(tmp_path)
    quiet = cli("run", path)
    assert (quiet.status, quiet.out, quiet.err.count("\n")) == (1, "", 1)
    monkeypatch.setenv("ENGINE_DEBUG", "1")
    loud = cli("run", path).fails("Traceback (most recent call last)")
    assert loud.err.splitlines()[-1] == quiet.err.strip()


@pytest.mark.slow
def test_what_goes_into_a_pipe_has_no_escape_codes(shell, digits):
    for arguments in (
        ["--help"],
        ["plugins"],
        ["inspect", digits / "digits.onnx", "--nodes", "--target", "cpu"],
        ["run", digits / "digits.onnx"],
        ["bench", digits / "digits.onnx", "--runs", "3", "--warmup", "0", "--plot"],
        ["run", "absent.onnx"],
    ):
        done = shell(*arguments)
        assert done.out + done.err
        assert "\x1b" not in done.out + done.err


def test_names_that_cannot_be_printed_here_are_spelled_out(cli, shell, tmp_path):
    path = written(tmp_path / "m.onnx", 'g (float[n] x) => (float[n] "数") { "数" = Identity(x) }')
    assert "数" in cli("run", path).out
    assert "数" in cli("inspect", path).out
    done = shell("inspect", path, PYTHONIOENCODING="ascii")
    assert (done.status, done.err) == (0, "")
    assert r"\u6570" in done.out


BLOCKED = """
import sys
sys.modules[{package!r}] = None
from engine.cli import main
sys.exit(main(["plugins"]))
"""


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_its_libraries_the_command_says_how_to_get_them(package):
    done = python("-c", BLOCKED.format(package=package))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"needs {package}" in done.stderr
    assert 'pip install "inference-engine[cli]"' in done.stderr


def test_importing_engine_or_its_main_loads_no_library_of_the_command_line():
    loaded = "{'rich', 'click', 'onnxruntime', 'onnx', 'engine.cli.app'} & {*sys.modules}"
    done = python("-c", f"import sys, engine, engine.cli; print(sorted({loaded}))", check=True)
    assert done.stdout == "[]\n"


def test_the_help_and_inspect_load_no_runtime(digits):
    code = (
        "import sys\nfrom engine.cli import main\n"
        f"main(['inspect', {str(digits / 'digits.onnx')!r}])\n"
        "print('onnxruntime' in sys.modules, file=sys.stderr)"
    )
    done = python("-c", code, check=True)
    assert done.stderr == "False\n"


def test_what_the_engine_logs_is_a_message_and_not_a_result(cli, tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", "ascend_ge")
    done = cli("run", models.affine(tmp_path), "--target", "ascend,cpu")
    assert done.status == 0
    assert done.err.startswith("warning: ")
    assert "warning" not in done.out
