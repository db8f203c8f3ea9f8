"""A crash of a runtime inside of a command is told, with a hint; orderly ends are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from own_python import python

from engine_testing import models


def engine(*arguments: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return python("-m", "engine", *arguments, timeout=timeout)


@pytest.fixture
def installed(null_plugin, plugin_folder, monkeypatch) -> Callable[[str], str]:
    """Install a backend whose predict does something first."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(plugin_folder), *filter(None, sys.path)]))

    def install_odd(code: str) -> str:
        return null_plugin(plugin_folder, "odd", predict=code)

    return install_odd


@pytest.fixture
def crashing(installed: Callable[[str], str]) -> str:
    return installed("import ctypes; ctypes.string_at(0)")


@pytest.mark.parametrize(
    "command", [("run",), pytest.param(("bench", "--runs", 1), marks=pytest.mark.slow)]
)
def test_a_crash_is_told_with_a_hint_at_isolate(crashing, tmp_path, command):
    path = models.affine(tmp_path)
    done = engine(*command, path, "--target", crashing)
    assert done.returncode == -signal.SIGSEGV
    assert done.stderr.splitlines()[-1].startswith(f"error: {path}: the process has ended: ")
    assert done.stderr.endswith("--set common_context.isolate=true\n")


@pytest.mark.slow
def test_the_hint_leads_to_the_signal(crashing, tmp_path):
    path = models.affine(tmp_path)
    done = engine("run", path, "--target", crashing, "--set", "common_context.isolate=true")
    assert done.returncode == 1
    assert "crashed with SIGSEGV while it ran the model" in done.stderr
    assert "the process has ended" not in done.stderr


@pytest.mark.slow
def test_an_orderly_end_has_nothing_to_tell(installed, tmp_path):
    path, target = models.affine(tmp_path), installed("pass")
    for arguments, status in (
        (("run", path, "--target", target), 0),
        (("run", path, "--target", target, "--shape", "x=1"), 1),
        (("inspect", path, "--target", target), 0),
    ):
        done = engine(*arguments)
        assert done.returncode == status
        assert "the process has ended" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_has_nothing_more_to_tell(installed, tmp_path, number):
    target = installed("pass")
    with subprocess.Popen(
        [sys.executable, "-m", "engine", "bench", str(models.affine(tmp_path)), "--target", target,
         "--duration", "60"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as child:  # fmt: skip
        with pytest.raises(subprocess.TimeoutExpired):
            child.communicate(timeout=10)
        os.killpg(child.pid, number)  # as a terminal does it: the witness gets it too
        _, said = child.communicate(timeout=100)
    assert child.returncode == 128 + number
    assert "the process has ended" not in said


def test_the_witness_works_where_many_files_are_open(tmp_path):
    """Then its pipe has a number of two digits, which not every shell knows."""
    path = models.affine(tmp_path)
    program = (
        "import os\n"
        "held = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]\n"
        "from pathlib import Path\n"
        "from engine.cli.witness import witnessed\n"
        f"with witnessed(Path({str(path)!r})):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = python("-c", program)
    assert done.returncode == -signal.SIGKILL
    assert done.stderr.startswith(f"error: {path}: the process has ended: ")
