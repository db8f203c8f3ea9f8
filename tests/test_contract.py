"""The backends' contract changes with a new level and an entry in the changelog, never silently."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from modules import module_of

from engine.hookspecs import LEVEL

ROOT = Path(__file__).parents[1]
COMMAND = ROOT / ".ci/contract.py"


@pytest.fixture(scope="module")
def command() -> ModuleType:
    return module_of(COMMAND)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the files that the command reads of a checkout."""
    for path in (".ci/contract.py", ".ci/contract.json", "engine/hookspecs.py", "engine/types.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    return tmp_path


def edit(copy: Path, file: str, before: str, after: str) -> None:
    path = copy / "engine" / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, copy / ".ci/contract.py", *arguments]
    return subprocess.run(command, text=True, capture_output=True)


def test_the_contract_is_that_of_its_level(command: ModuleType) -> None:
    recorded = json.loads((ROOT / ".ci/contract.json").read_text())
    changed = command.changes(recorded, command.contract())
    assert changed == [], "see .ci/contract.py"
    assert recorded["level"] == LEVEL


def test_the_changelog_tells_backend_authors_of_each_level() -> None:
    text = (ROOT / "CHANGELOG.md").read_text().partition("### For backend authors")[2]
    told = {int(number) for number in re.findall(r"\bcontract 1\.(\d+)\b", text, re.IGNORECASE)}
    assert told >= set(range(1, LEVEL + 1))


CHANGES = [
    ("types.py", "    completed_by: tuple[str, ...] = ()",
     "    completed_by: tuple[str, ...] = ('cpu',)", "types.BackendInfo.completed_by"),
    ("types.py", 'DEADLINES = "deadlines"', 'DEADLINES = "dead_lines"',
     "types.Capability.DEADLINES"),
    ("types.py", "Sizes are in bytes", "Sizes are in bits", "types.(the module's text)"),
    ("hookspecs.py", "Never raises.", "Raises OSError.", "hookspecs.engine_diagnose"),
    ("hookspecs.py", "on_host: bool)", "on_host: bool = False)", "hookspecs.engine_buffer"),
    ("hookspecs.py", "# Hooks for memory of a device", "# Hooks", "hookspecs.(comments)"),
    ("hookspecs.py", '    "engine_load",\n', "", "hookspecs.REQUIRED"),
]  # fmt: skip


def test_a_change_without_a_new_level_is_refused_and_named(copy: Path) -> None:
    for file, before, after, _ in CHANGES:
        edit(copy, file, before, after)
    for arguments in ((), ("record",)):
        done = run(copy, *arguments)
        assert done.returncode == 1
        named = re.findall(f"^changed since level {LEVEL}: (.*)$", done.stdout, re.MULTILINE)
        assert sorted(named) == sorted(name for *_, name in CHANGES)
        assert f"set LEVEL in engine/hookspecs.py to {LEVEL + 1}" in done.stderr


def test_a_change_with_a_new_level_can_be_recorded(copy: Path) -> None:
    edit(copy, "hookspecs.py", "Never raises.", "Raises OSError.")
    edit(copy, "hookspecs.py", f"LEVEL = {LEVEL}", f"LEVEL = {LEVEL + 1}")
    assert "run: python .ci/contract.py record" in run(copy).stderr
    assert run(copy, "record").returncode == 0
    assert run(copy).returncode == 0
    assert json.loads((copy / ".ci/contract.json").read_text())["level"] == LEVEL + 1


def test_code_that_no_author_sees_may_change(copy: Path) -> None:
    edit(copy, "types.py", "return hash(_contents(self))", "return hash(tuple(_contents(self)))")
    assert run(copy).returncode == 0
