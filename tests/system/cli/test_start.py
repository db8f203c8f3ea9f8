"""Ctrl-C from the first moment of the command on, while Python still imports what it needs."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from own_python import python

ROOT = Path(__file__).parents[3]

# A process that gets a real signal at the moment when it begins to import the module in argv[1].
PROGRAM = """
import os, signal, sys
number, module = getattr(signal, sys.argv.pop(1)), sys.argv.pop(1)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Finder())
from engine_command import main
sys.exit(main())
"""
MODULES = [
    "engine", "numpy", "click",
    *(pytest.param(name, marks=pytest.mark.slow)
      for name in ("numpy.linalg", "engine.model", "engine.cli.interrupt", "engine.cli.app")),
]  # fmt: skip


def start(name: str, module: str, *arguments: str, **how: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name, module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("module", MODULES)
def test_an_interrupt_while_the_command_is_imported_ends_it_quietly(module):
    with start("SIGINT", module, "plugins") as child:
        out, errors = child.communicate(timeout=60)
    assert (child.returncode, out, errors) == (130, "", "interrupted\n")


def test_a_command_that_ignores_interrupts_goes_on():
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    with start("SIGINT", "numpy", "--version", preexec_fn=ignore) as child:
        out, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (0, "")
    assert out.startswith("engine ")


def test_the_command_begins_in_a_module_that_imports_nothing_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"engine": "engine_command:main"}
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "engine_command.py" in wheel["only-include"]
    program = "import engine_command, sys; print({'engine', 'numpy'} & {*sys.modules})"
    done = python("-c", program)
    assert (done.returncode, done.stdout) == (0, "set()\n")
