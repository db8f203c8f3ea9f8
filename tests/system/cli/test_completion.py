"""`engine completion`: the scripts, what they ask the command, and what a shell makes of it."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys

import pytest

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
def test_the_script_is_one_that_the_shell_accepts(cli, shell):
    done = cli("completion", shell)
    assert (done.status, done.err) == (0, "")
    assert "_ENGINE_COMPLETE" in done.out
    needs(shell)
    checked = subprocess.run(
        [shell, "-n"], input=done.out, capture_output=True, text=True, timeout=60, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def offered(line: str, plugins: str = "") -> list[tuple[str, str]]:
    """Return what the command offers for the last word of `line`: (kind, text) pairs.

    It is asked as bash's script asks.
    """
    words = line.split(" ")
    done = subprocess.run(
        [sys.executable, "-m", "engine.cli"],
        env={
            **os.environ,
            "_ENGINE_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            "PYTHONPATH": plugins,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    pairs = [text.partition(",") for text in done.stdout.splitlines() if text]
    return [(kind, text) for kind, _, text in pairs]


def candidates(line: str, plugins: str = "") -> list[str]:
    """Return the words that the command offers for the last word of `line`."""
    return [text for kind, text in offered(line, plugins) if kind == "plain"]


def test_commands_and_options_are_offered():
    assert {"run", "inspect", "bench", "completion", "plugins"} <= set(candidates("engine "))
    assert candidates("engine ins") == ["inspect"]
    assert candidates("engine bench m.onnx --dur") == ["--duration"]
    assert candidates("engine completion ") == SHELLS
    assert candidates("engine run m.onnx --fill z") == ["zeros"]
    assert candidates("engine convert m.onnx n --fmk T") == ["TF", "TFLITE"]
    assert candidates("engine convert m.onnx n --input-type ")[:2] == ["FLOAT", "FLOAT16"]


@pytest.mark.parametrize("command", ["run", "bench", "inspect"])
def test_targets_are_offered_also_after_a_comma(tmp_path, command):
    from engine.testing.plugins import install

    install(tmp_path, "null", "engine.testing.null")
    words = candidates(f"engine {command} m.onnx --target ", str(tmp_path))
    assert words[:3] == ["cpu", "gpu", "ascend"]
    assert "null" in words
    assert len(words) == len(set(words))
    after = candidates(f"engine {command} m.onnx --target cpu,n", str(tmp_path))
    assert after == ["cpu,null"]


def test_a_plugin_whose_metadata_is_damaged_does_not_write_into_the_users_line(tmp_path):
    from engine.testing.plugins import install

    info = install(tmp_path, "torn", "torn")
    (info / "entry_points.txt").write_text("[engine.backends.v1\nnothing here")
    assert "cpu" in candidates("engine run m.onnx --target ", str(tmp_path))


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
def test_files_are_left_to_the_shell(line):
    assert offered(line) == [("file", line.rpartition(" ")[2])]


# What is typed at the prompt with Tab pressed, and what is to stand there.
TYPED = [
    ("engine ins\t", "engine inspect"),
    ("engine run dig\t", "engine run digits.onnx"),
    ("engine bench a\\ fol\tdig\t", "engine bench a\\ folder/digits.onnx"),
    ("engine run digits.onnx --target cp\t", "--target cpu"),
    ("engine run digits.onnx -i image=test_\t", "-i image=test_images.npz"),
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
    (folder / "rc").write_text('PS1="ready: "\neval "$(engine completion bash)"\n')
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
