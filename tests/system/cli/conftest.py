"""Ways to run the command line: in this process, as a shell does, and on a terminal."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.cli import main
from engine_testing.fixtures import plugin_folder  # noqa: F401
from engine_testing.plugins import install


@dataclass(frozen=True)
class Result:
    """Status and output of a run of the command line."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out, parse_constant=_refuse)

    def fails(self, said: str, status: int = 1, out: str | None = None) -> Result:
        """Assert that the command failed and said this on standard error. out: what it printed."""
        assert (self.status, out is None or self.out == out) == (status, True), self
        assert said in self.err
        return self

    @property
    def text(self) -> str:
        """Return the printed text, its words with one blank between."""
        return " ".join(self.out.split())


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


# Variables that change what is printed; each test sets what it needs.
SETTINGS = (
    "COLUMNS", "TERMINAL_WIDTH", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS",
    "ENGINE_TARGET", "ENGINE_DEBUG", "ENGINE_DISABLED_BACKENDS",
)  # fmt: skip

Run = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in this process. stdin: what it reads from standard input."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object, stdin: bytes = b"") -> Result:
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = main([str(each) for each in arguments])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture
def shell(tmp_path: Path) -> Run:
    """Runs the command line in a process of its own, its output going into pipes."""

    def run(*arguments: object, **environment: str) -> Result:
        kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        done = subprocess.run(
            [sys.executable, "-m", "engine.cli", *map(str, arguments)],
            capture_output=True, encoding="utf-8", timeout=120,
            env={**kept, "PYTHONIOENCODING": "utf-8", **environment},
        )  # fmt: skip
        return Result(done.returncode, done.stdout, done.stderr)

    return run


PLUGIN = """
import ctypes, os, signal, sys, time
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine.types import Check
from engine_testing import null_device as null
from engine_testing.null_device import *

@hookimpl
def engine_backend():
    return replace(null.engine_backend(), name={name!r}, **{manifest!r})

@hookimpl
def engine_diagnose():
    {diagnose}

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    {predict}
    return null.engine_predict(context, inputs, outputs, deadline_s)
"""


@pytest.fixture
def null_plugin() -> Callable[..., str]:
    """Installs a null backend of this name into a folder: (folder, name, ...); gives the name.

    diagnose, predict: what it does there first. manifest: changes of its BackendInfo.
    """

    def make(
        folder: Path, name: str, diagnose: str = "return []", predict: str = "pass", **manifest: Any
    ) -> str:
        source = PLUGIN.format(name=name, diagnose=diagnose, predict=predict, manifest=manifest)
        install(folder, name, f"plugin_{name}", source=source)
        return name

    return make


# Makes the terminal on its standard input its own, so that Ctrl-C there becomes a signal.
_ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def terminal() -> Run:
    """Runs the command line on a terminal of its own; `out` is all that was written to it.

    columns: of the terminal. press: keys to press once `when` has been written. then: further
    (when, press) pairs.
    """

    def run(
        *arguments: object,
        columns: int = 80,
        press: str = "",
        when: str = "",
        then: Sequence[tuple[str, str]] = (),
        cwd: Path | None = None,
        program: Sequence[object] = (sys.executable, "-m", "engine.cli"),
        **environment: str,
    ) -> Result:
        kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        ours, theirs = pty.openpty()
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        command = [sys.executable, "-ISc", _ON_TERMINAL, *map(str, (*program, *arguments))]
        child = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment},
            cwd=cwd,
            start_new_session=True,
        )
        os.close(theirs)
        shown, waiting = b"", [(when, press), *then]
        until = time.monotonic() + 60
        try:
            while time.monotonic() < until:
                if waiting and waiting[0][0].encode() in shown:
                    os.write(ours, waiting.pop(0)[1].encode())
                if select.select([ours], [], [], 0.1)[0]:
                    part = os.read(ours, 65536)
                    if not part:
                        break
                    shown += part
        except OSError:  # how Linux says that the last process has closed its end
            pass
        else:
            child.kill()
        os.close(ours)
        return Result(child.wait(60), shown.decode().replace("\r\n", "\n"), "")

    return run


@pytest.fixture(scope="session")
def digits() -> Path:
    """The folder of the digits example."""
    return Path(__file__).parents[3] / "examples" / "digits"
