"""Two ways to run the command line: in this process, and as a user's shell does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.cli import main
from engine.testing.fixtures import plugin_folder  # noqa: F401


@dataclass(frozen=True)
class Result:
    """What a run of the command line left."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out, parse_constant=_refuse)


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


# What in the environment changes what is printed; each test sets what it needs.
SETTINGS = (
    "COLUMNS", "TERMINAL_WIDTH", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS",
    "ENGINE_TARGET", "ENGINE_DEBUG", "ENGINE_DISABLED_BACKENDS",
)  # fmt: skip

Run = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in this process."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Result:
        capsys.readouterr()
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
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={**kept, "PYTHONIOENCODING": "utf-8", **environment},
            timeout=120,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def digits() -> Path:
    """The folder of the digits example."""
    return Path(__file__).parents[3] / "examples" / "digits"
