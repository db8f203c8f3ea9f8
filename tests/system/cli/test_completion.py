"""Completion: click's scripts, what they ask the command, and what a shell makes of it."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys

import pytest
from click.shell_completion import shell_complete
from own_python import python

from engine.cli.app import app

SHELLS = ["bash", "zsh", "fish"]


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


@pytest.fixture
def engine_on_path(tmp_path, monkeypatch):
    """The command by its own name, wherever this environment keeps it."""
    script = tmp_path / "bin" / "engine"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m engine.cli "$@"\n')
    script.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    return script


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_that_the_shell_accepts(shell):
    needs(shell)
    done = python("-m", "engine.cli", env={"_ENGINE_COMPLETE": f"{shell}_source"}, check=True)
    assert "_ENGINE_COMPLETE" in done.stdout
    checked = subprocess.run(
        [shell, "-n"], input=done.stdout, capture_output=True, text=True, timeout=60, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def asked(line: str) -> dict[str, str]:
    """Return what bash's script puts into the environment to ask for the last word of `line`."""
    return {
        "_ENGINE_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }


def pairs(text: str) -> list[tuple[str, str]]:
    """Return what was answered: (kind, text) pairs."""
    parts = [line.partition(",") for line in text.splitlines() if line]
    return [(kind, text) for kind, _, text in parts]


def words(answers: list[tuple[str, str]]) -> list[str]:
    return [text for kind, text in answers if kind == "plain"]


@pytest.fixture
def offered(capsys, monkeypatch):
    """Returns what the command offers for the last word of a line."""

    def ask(line: str) -> list[tuple[str, str]]:
        for name, value in asked(line).items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        assert shell_complete(app, {}, "engine", "_ENGINE_COMPLETE", "bash_complete") == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return pairs(printed.out)

    return ask


@pytest.fixture
def candidates(offered):
    """Returns the words among them."""
    return lambda line: words(offered(line))


def test_commands_and_options_are_offered(candidates):
    assert {"run", "inspect", "bench", "plugins"} <= set(candidates("engine "))
    assert candidates("engine ins") == ["inspect"]
    assert candidates("engine bench m.onnx --dur") == ["--duration"]
    assert candidates("engine run m.onnx --fill z") == ["zeros"]
    assert candidates("engine convert m.onnx n --fmk T") == ["TF", "TFLITE"]
    assert candidates("engine convert m.onnx n --input-type ")[:2] == ["FLOAT", "FLOAT16"]


@pytest.mark.parametrize("command", ["run", "bench", "inspect"])
def test_targets_are_offered_also_after_a_comma(candidates, plugin_folder, command):
    from engine_testing.plugins import install

    install(plugin_folder, "null", "engine_testing.null_device")
    targets = candidates(f"engine {command} m.onnx --target ")
    assert targets[:3] == ["cpu", "gpu", "ascend"]
    assert "null" in targets
    assert len(targets) == len(set(targets))
    assert candidates(f"engine {command} m.onnx --target cpu,n") == ["cpu,null"]


def test_settings_are_offered_for_the_target_in_the_line(candidates, plugin_folder):
    from engine_testing.plugins import install

    install(plugin_folder, "null", "engine_testing.null_device")
    assert candidates("engine run m.onnx --set cpu_context.sp") == ["cpu_context.spin_us="]
    assert "common_context.isolate=" in candidates("engine bench m.onnx --set common")
    of_null = candidates("engine run m.onnx --target null --set null_context.del")
    assert of_null == ["null_context.delay_s="]
    assert candidates("engine run m.onnx --set null_context.del") == []
    assert candidates("engine compare m.onnx --b null --set-b null_context.del") == of_null
    assert candidates("engine run m.onnx --set cpu_context.workarounds=t") == [
        "cpu_context.workarounds=true"
    ]
    assert candidates("engine run m.onnx --target nonsense --set cpu") == []


def test_settings_of_a_conversion_are_those_of_quantization(candidates):
    assert candidates("engine convert m.onnx n --set common_quant_param.quant") == [
        "common_quant_param.quant_type="
    ]


def test_a_plugin_whose_metadata_is_damaged_does_not_write_into_the_users_line(tmp_path):
    from engine_testing.plugins import install

    info = install(tmp_path, "torn", "torn")
    (info / "entry_points.txt").write_text("[engine.backends.v1\nnothing here")
    env = {**asked("engine run m.onnx --target "), "PYTHONPATH": str(tmp_path)}
    done = python("-m", "engine.cli", env=env, check=True)
    assert done.stderr == ""
    assert "cpu" in words(pairs(done.stdout))


@pytest.mark.parametrize(
    "line",
    [
        "engine run ",
        "engine run m.onnx --config ex",
        "engine run m.onnx -i ex",
        "engine bench ex",
        "engine convert m.onnx ex",
    ],
)
def test_files_are_left_to_the_shell(offered, line):
    assert offered(line) == [("file", line.rpartition(" ")[2])]


# The words typed at the prompt with Tab pressed, and those that are to stand there.
# Each starts the command several times; the tests above ask it the same without a shell.
slow = pytest.mark.slow
TYPED = [
    pytest.param("engine ins\t", "engine inspect", marks=slow),
    pytest.param("engine run dig\t", "engine run digits.onnx", marks=slow),
    ("engine bench a\\ fol\tdig\t", "engine bench a\\ folder/digits.onnx"),
    pytest.param("engine run digits.onnx --target cp\t", "--target cpu", marks=slow),
    pytest.param("engine run digits.onnx -i test_\t", "-i test_images.npz", marks=slow),
]


@pytest.mark.parametrize(("typed", "expected"), TYPED)
def test_tab_completes_on_the_prompt_of_bash(
    terminal, engine_on_path, digits, tmp_path, typed, expected
):
    needs("bash")
    folder = tmp_path / "home"
    (folder / "a folder").mkdir(parents=True)
    for name in ("digits.onnx", "test_images.npz"):
        (folder / name).symlink_to(digits / name)
    (folder / "a folder" / "digits.onnx").symlink_to(digits / "digits.onnx")
    (folder / "rc").write_text('PS1="ready: "\neval "$(_ENGINE_COMPLETE=bash_source engine)"\n')
    # Ctrl-U and Ctrl-D: the line is not run, the shell ends.
    done = terminal(
        program=["bash", "--noprofile", "--rcfile", folder / "rc", "-i"],
        press=typed,
        when="ready: ",
        then=[(expected, "\x15\x04")],
        cwd=folder,
        columns=200,
    )
    assert expected in done.out
