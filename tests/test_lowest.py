""".ci/lowest.txt, which `tox -e lowest` installs, has the lowest versions that are allowed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("tests", "cli", "encryption", "plot")


def lowest_allowed() -> dict[str, tuple[int, ...]]:
    """Return the highest of the lower bounds of each distribution, by name."""
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plugin = tomllib.loads((ROOT / "plugins/cpu/pyproject.toml").read_text())["project"]
    kit = tomllib.loads((ROOT / "plugins/kit/pyproject.toml").read_text())["project"]
    requirements = [*core["dependencies"], *plugin["dependencies"], *kit["dependencies"]]
    for extra in EXTRAS:
        requirements += core["optional-dependencies"][extra]
    found: dict[str, tuple[int, ...]] = {}
    for requirement in requirements:
        if requirement.startswith("inference-engine"):
            continue
        [(name, text)] = re.findall(r"^([\w-]+)>=([\d.]+)", requirement)
        found[name] = max(found.get(name, ()), release(text))
    return found


def release(version: str) -> tuple[int, ...]:
    """Return "1.26" as (1, 26, 0): three numbers at least."""
    numbers = tuple(int(part) for part in version.split("."))
    return numbers + (0,) * (3 - len(numbers))


def test_they_are_what_the_pyprojects_allow() -> None:
    lines = (ROOT / ".ci/lowest.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert {name: release(version) for name, version in pins} == lowest_allowed()
