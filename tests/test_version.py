"""One version for the core and the plugins, which pin each other, and one command that sets it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version as installed
from pathlib import Path

import pytest
from modules import module_of

import engine

ROOT = Path(__file__).parents[1]
COMMAND = ROOT / ".ci" / "version.py"


@pytest.fixture(scope="module")
def command():
    return module_of(COMMAND)


@pytest.fixture
def copy(command, tmp_path) -> Path:
    """Every file of a checkout that states the version, in a folder of its own."""
    for place in command.versions():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / place, tmp_path / place)
    return tmp_path


def test_every_place_states_the_cores_version(command):
    stated = command.versions()
    assert {version for versions in stated.values() for version in versions} == {engine.__version__}
    # The core and seven plugins: a literal each; the core pins the plugins, mindir for three
    # extras, and each pins it.
    assert stated["engine/host/version.py"] == [engine.__version__]
    assert sum(len(stated[place]) for place in stated if place.endswith("__init__.py")) == 7
    assert sum(len(stated[place]) for place in stated if place.endswith("pyproject.toml")) == 16


def test_the_changes_say_what_is_new_in_it():
    headings = [text for text in (ROOT / "CHANGELOG.md").read_text().splitlines() if "## " in text]
    assert headings[0].split()[:2] == ["##", engine.__version__]


def test_what_is_installed_has_it():
    assert installed("inference-engine") == engine.__version__


def test_the_builds_take_it_from_there():
    for project in [ROOT, *sorted((ROOT / "plugins").iterdir())]:
        if not (project / "pyproject.toml").exists():
            continue
        settings = tomllib.loads((project / "pyproject.toml").read_text())
        assert "version" in settings["project"]["dynamic"]
        source = project / settings["tool"]["hatch"]["version"]["path"]
        assert f'__version__ = "{engine.__version__}"' in source.read_text()


def test_one_command_sets_it_everywhere(command, copy):
    before = {place: (copy / place).read_text() for place in command.versions(copy)}
    command.set_version("12.34.5rc1", copy)
    assert {version for some in command.versions(copy).values() for version in some} == {
        "12.34.5rc1"
    }
    for place, text in before.items():  # and nothing else
        assert (copy / place).read_text().replace("12.34.5rc1", engine.__version__) == text
    command.set_version(engine.__version__, copy)
    assert {place: (copy / place).read_text() for place in before} == before


def test_a_place_that_states_none_is_an_error_that_names_it(command, copy):
    (copy / "docs" / "cli.md").write_text("nothing\n")
    with pytest.raises(ValueError, match=r"cli\.md: states no version"):
        command.versions(copy)


@pytest.mark.parametrize("version", ["1.2", "v1.2.3", "1.2.3-rc1", ""])
def test_what_is_no_version_is_refused(version):
    done = subprocess.run(
        [sys.executable, COMMAND, version], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"got {version!r}" in done.stderr
