"""What every command has in common: usage, errors, exit statuses, pipes, colours."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import engine
from engine.testing import models


def test_version_is_the_packages(cli):
    done = cli("--version")
    assert (done.status, done.out) == (0, f"engine {engine.__version__}\n")


# Help in a process of its own: typer decides about colours when it is imported.
@pytest.mark.parametrize("command", [(), ("run",), ("inspect",), ("plugins",), ("plugins", "list")])
def test_every_command_has_help_with_examples(shell, command):
    done = shell(*command, "--help")
    assert (done.status, done.err) == (0, "")
    text = " ".join(done.out.split())
    assert "Usage: engine" in text
    assert f"Examples engine {' '.join(command[:1]) or 'run'}" in text


@pytest.mark.parametrize("command", [(), ("run",), ("inspect",), ("plugins",)])
def test_help_is_not_cut_off_on_a_narrow_terminal(shell, command):
    done = shell(*command, "--help", COLUMNS="60")
    assert "…" not in done.out
    assert max(map(len, done.out.splitlines())) <= 60


def test_help_explains_the_exit_statuses(shell):
    text = " ".join(shell("--help").out.split())
    assert "Exit status 0 done 1 the engine refused or failed" in text
    assert "130 interrupted" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nope"], "no such command 'nope'"),
        (["run"], "missing argument 'MODEL'"),
        (["run", "m.onnx", "--nope"], "no such option"),
        (["run", "m.onnx", "--fill", "twos"], "'twos' is not one of"),
        (["run", "m.onnx", "--seed", "x"], "'--seed'"),
        (["run", "m.onnx", "--values", "-1"], "'--values'"),
        (["inspect", "m.onnx", "n.onnx"], "n.onnx"),
    ],
)
def test_wrong_usage_is_status_2_and_names_the_help(cli, arguments, expected):
    done = cli(*arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert expected in done.err
    assert done.err.splitlines()[-1].startswith("help: engine")


def test_without_a_command_the_help_is_shown_with_status_2(cli):
    done = cli()
    assert done.status == 2
    assert "Usage: engine" in done.out


@pytest.mark.parametrize("command", ["run", "inspect"])
def test_a_missing_model_is_one_line_of_error(cli, command):
    done = cli(command, "absent.onnx")
    assert (done.status, done.out) == (1, "")
    assert done.err == "error: absent.onnx: no such file; give the path of a model\n"


def test_errors_have_no_traceback_unless_asked_for(shell, tmp_path):
    path = models.truncated(tmp_path)
    quiet = shell("run", path)
    assert (quiet.status, quiet.out, quiet.err.count("\n")) == (1, "", 1)
    loud = shell("run", path, ENGINE_DEBUG="1")
    assert loud.status == 1
    assert "Traceback (most recent call last)" in loud.err
    assert loud.err.splitlines()[-1] == quiet.err.strip()


def test_what_goes_into_a_pipe_has_no_escape_codes(shell, digits):
    for arguments in (
        ["--help"],
        ["plugins"],
        ["inspect", digits / "digits.onnx", "--nodes", "--target", "cpu"],
        ["run", digits / "digits.onnx"],
        ["run", "absent.onnx"],
    ):
        done = shell(*arguments)
        assert done.out + done.err
        assert "\x1b" not in done.out + done.err


def _on_a_terminal(arguments: list[str], **environment: str) -> str:
    """What the command line prints on a terminal of 60 columns."""
    unset = ("FORCE_COLOR", "NO_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TERMINAL_WIDTH")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    ours, theirs = pty.openpty()
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "engine.cli", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env={**kept, "TERM": "xterm-256color", "COLUMNS": "60", **environment},
        )
    finally:
        os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # how Linux says that the last process has closed its end
        pass
    os.close(ours)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    return shown.decode()


def test_names_that_cannot_be_printed_here_are_spelled_out(shell, tmp_path):
    path = models.identity(tmp_path)
    model = onnx.load(path)
    model.graph.node[0].output[0] = model.graph.output[0].name = "数"
    onnx.save(model, path)
    for command in ("run", "inspect"):
        done = shell(command, path, PYTHONIOENCODING="ascii")
        assert (done.status, done.err) == (0, "")
        assert r"\u6570" in done.out
        assert "数" in shell(command, path).out


def test_a_terminal_gets_styles_and_no_colour_where_none_is_wanted(digits):
    arguments = ["inspect", str(digits / "digits.onnx")]
    assert "\x1b[1m" in _on_a_terminal(arguments)
    colours = [f"\x1b[{code}m" for code in (*range(30, 38), *range(90, 98))]
    assert "\x1b[" in _on_a_terminal(["--help"])
    plain = _on_a_terminal(["--help"], NO_COLOR="1")
    assert not any(colour in plain for colour in colours)
    assert "\x1b[1;36m" not in plain


def test_a_reader_that_leaves_early_is_not_an_error(digits):
    command = [sys.executable, "-m", "engine.cli", "inspect", str(digits / "digits.onnx")]
    for _ in range(3):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "wb") as closed:
            done = subprocess.run(
                command, stdout=closed, stderr=subprocess.PIPE, timeout=60, check=False
            )
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_is_an_error(digits):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "engine.cli", "inspect", str(digits / "digits.onnx")],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert b"error: " in done.stderr


def test_an_interrupt_is_status_130_without_a_traceback(tmp_path):
    # A pipe that nobody fills keeps the command reading its input until the signal comes.
    pipe = tmp_path / "x.bin"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "engine.cli", "run", models.affine(tmp_path), "-i", pipe]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            with open(_opened_by_reader(pipe, child), "wb"):
                # Python sees a signal that comes just before a blocking read only after it.
                time.sleep(0.5)
                child.send_signal(signal.SIGINT)
                out, errors = child.communicate(timeout=60)
        finally:
            child.kill()
    assert (child.returncode, out, errors) == (130, b"", b"interrupted\n")


def _opened_by_reader(pipe: Path, reader: subprocess.Popen[bytes]) -> int:
    """The pipe's writing end, once `reader` has the other one open."""
    while reader.poll() is None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            time.sleep(0.02)
    raise AssertionError(reader.communicate())


BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
from engine.cli import main
sys.exit(main(["plugins"]))
"""


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_its_libraries_the_command_says_how_to_get_them(package):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(package=package)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"needs {package}" in done.stderr
    assert 'pip install "inference-engine[cli]"' in done.stderr


def test_importing_engine_or_its_main_loads_no_library_of_the_command_line():
    code = (
        "import sys, engine, engine.cli\n"
        "print(sorted({'typer', 'rich', 'click', 'onnxruntime', 'onnx', 'engine.cli.app'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_the_help_and_inspect_load_no_runtime(digits):
    code = (
        "import sys\nfrom engine.cli import main\n"
        f"main(['inspect', {str(digits / 'digits.onnx')!r}])\n"
        "print('onnxruntime' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "False\n"


def test_what_the_engine_logs_is_a_message_and_not_a_result(cli, tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", "ascend_ge")
    done = cli("run", models.affine(tmp_path), "--target", "ascend,cpu")
    assert done.status == 0
    assert done.err.startswith("warning: ")
    assert "warning" not in done.out
